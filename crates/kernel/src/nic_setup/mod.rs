//! Setting up a NIC for device memory, and restoring its previous settings.
//!
//! [`NicSetup::plan`] reads the NIC and returns the planned changes, also as `ethtool` commands. [`SetupPlan::apply`] makes
//! the changes and reads them back. The returned [`NicSetup`] restores exactly the previous settings when it is dropped or
//! [`restore`](NicSetup::restore) is called. Each change is written to a state file before it is made, so that
//! [`restore_from_state_file`] can restore the settings after a crash.
//!
//! An agent also leases the queues to the netkits of pods ([`SetupRequest::leases`]). In the pod, or wherever an agent has set the NIC
//! up, [`Configured::find`] finds its queues and checks what can be seen, and writes nothing.
//!
//! The order is RSS table, features, header split, RSS context, flow rules, leases; settings are restored in reverse order. A driver
//! that re-opens the NIC to change header split may forget the RSS table: it is set again afterwards, and restored last.

mod apply;
mod control;
mod leftover;
mod plan;
mod reading;
mod restore;
mod state;
mod state_fault;
mod trial;
mod undo;

#[cfg(any(test, fuzzing, feature = "test-util"))]
mod fuzz;
#[cfg(any(test, fuzzing, feature = "test-util"))]
#[cfg_attr(
    not(test),
    allow(dead_code, reason = "fuzzing needs less of it than the tests do")
)]
mod model;
#[cfg(test)]
mod tests;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

#[cfg(any(test, fuzzing, feature = "test-util"))]
pub(crate) use fuzz::{fuzz_state_file, fuzz_table};

pub use apply::{ApplyError, StepError};
pub use leftover::{Leftover, LeftoverStatus};
pub use plan::{PlanError, SetupPlan, Step};
pub use reading::Configured;
pub use restore::{RestoreReport, restore_from_state_file};
pub use state::{StateError, state_files};
pub use state_fault::StateFault;

use crate::netdev::KernelRxQueueId;
use control::NicControl;
use state::StateFile;
use undo::Undo;

/// The RX queues to prepare. Queue 0 is never one of them: it receives all packets that are not steered, and some drivers
/// cannot bind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueChoice {
    /// This number of queues, from the last one down, without queues in use.
    Count(u32),
    /// These queues.
    These(Vec<KernelRxQueueId>),
}

/// A flow that is to arrive in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// The local address and port. An unspecified address matches any. Port 0 matches any, and needs the peer's
    /// address and port.
    pub local: SocketAddr,
    /// The peer's address, if it is known; it makes the rule narrower.
    pub peer: Option<IpAddr>,
    /// The peer's port, if it is known.
    pub peer_port: Option<u16>,
}

impl Flow {
    /// Returns the flow from any peer to `local`.
    pub fn to(local: SocketAddr) -> Self {
        Self {
            local,
            peer: None,
            peer_port: None,
        }
    }
}

/// The request for a set-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetupRequest {
    /// The interface.
    pub interface: String,
    /// Its queues.
    pub queues: QueueChoice,
    /// The flows to steer to them.
    pub flows: Vec<Flow>,
    /// Leases of the queues to pods; none to bind them here. Each takes as many as it names, the first one the first of them, and has
    /// flows of its own.
    pub leases: Vec<NewLease>,
    /// Folder of the state file; by default /run/devmem-tcp for root, else
    /// `$XDG_RUNTIME_DIR/devmem-tcp`.
    pub state_folder: Option<PathBuf>,
}

/// A netkit pair to be made for a pod, whose peer gets queues of a set-up. It is removed when the settings are restored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewLease {
    /// Name of the primary end, which stays.
    pub netkit: String,
    /// Name of the peer, which is to be moved to the network namespace of the pod.
    pub peer: String,
    /// Number of queues.
    pub queues: u32,
    /// The flows to steer to them.
    pub flows: Vec<Flow>,
}

/// A queue of the NIC that was leased, and the number that the netkit has for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeasedQueue {
    /// Name of the netkit's primary end.
    pub netkit: String,
    /// The queue of the NIC.
    pub queue: KernelRxQueueId,
    /// The netkit's number of it.
    pub leased: KernelRxQueueId,
}

/// A NIC that is set up. Dropping it restores the previous settings; close bindings of its queues first.
pub struct NicSetup {
    nic: Box<dyn NicControl + Send>,
    state: StateFile,
    queues: Vec<KernelRxQueueId>,
    /// The RSS context that spreads over the queues, if there are several.
    context: Option<u32>,
    leases: Vec<LeasedQueue>,
    undo: Vec<Undo>,
}

/// A setting that has changed since the set-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drift {
    /// The setting and its current value.
    pub what: String,
    /// The command that restores it, if there is one.
    pub command: Option<String>,
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl NicSetup {
    /// Returns the queues to bind.
    pub fn queues(&self) -> &[KernelRxQueueId] {
        &self.queues
    }

    /// Returns the leases; none without [`SetupRequest::leases`].
    pub fn leases(&self) -> &[LeasedQueue] {
        &self.leases
    }

    /// Returns the interface's name.
    pub fn interface(&self) -> &str {
        self.nic.name()
    }

    /// Returns the path of the state file, for restoring by hand.
    pub fn state_file(&self) -> &std::path::Path {
        self.state.path()
    }

    /// Returns the locations of the flow rules, as in `ethtool -n` and `ethtool -N delete`.
    pub fn rule_locations(&self) -> Vec<u32> {
        let rules = self.undo.iter().filter_map(|undo| match undo {
            Undo::Rule { location, .. } => *location,
            _ => None,
        });
        rules.collect()
    }

    /// Returns the changes as commands.
    pub fn changes(&self) -> Vec<String> {
        let name = self.nic.name();
        let changes = self.undo.iter().filter(|undo| undo.is_change());
        changes.map(|undo| undo.command(name)).collect()
    }
}

impl fmt::Debug for NicSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            nic,
            state,
            queues,
            context,
            leases,
            undo,
        } = self;
        f.debug_struct("NicSetup")
            .field("interface", &nic.name())
            .field("state_file", &state.path())
            .field("queues", queues)
            .field("context", context)
            .field("leases", leases)
            .field("undo", undo)
            .finish()
    }
}
