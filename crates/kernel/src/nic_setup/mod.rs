//! Preparing a NIC for device memory, and putting everything back.
//!
//! [`NicSetup::plan`] reads the NIC and says what it would change, as commands that a person could type.
//! [`SetupPlan::apply`] changes it and reads everything back; the [`NicSetup`] it returns restores exactly what was
//! there before when it is dropped or told to. What was changed is in a state file before it is changed, so that
//! [`restore_from_state_file`] can do the same after a crash.
//!
//! The order: RSS table, features, header split, RSS context, flow rules; and back in reverse. A driver that
//! re-opens the NIC to change header split may forget the table: it is set again after, and put back last.

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
pub use leftover::{Leftover, Standing};
pub use plan::{PlanError, SetupPlan, Step};
pub use restore::{RestoreReport, restore_from_state_file};
pub use state::{StateError, state_files};
pub use state_fault::StateFault;

use crate::netdev::RxQueueId;
use control::NicControl;
use state::StateFile;
use undo::Undo;

/// Which RX queues to prepare. Queue 0 is never one of them: it takes what nobody steers, and some drivers
/// cannot bind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueChoice {
    /// So many, from the last one down, without those that are in use.
    Count(u32),
    /// These.
    These(Vec<RxQueueId>),
}

/// A flow that is to arrive in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// This end. An unspecified address is any of this machine's; the port must be given.
    pub local: SocketAddr,
    /// The peer's address, if it is known: the rule is narrower then.
    pub peer: Option<IpAddr>,
    /// The peer's port, if that is known too.
    pub peer_port: Option<u16>,
}

impl Flow {
    /// Returns the flow from anybody to `local`.
    pub fn to(local: SocketAddr) -> Self {
        Self {
            local,
            peer: None,
            peer_port: None,
        }
    }
}

/// What to prepare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetupRequest {
    /// The interface.
    pub interface: String,
    /// Its queues.
    pub queues: QueueChoice,
    /// The flows to steer to them.
    pub flows: Vec<Flow>,
    /// Where to keep the state file; by default /run/devmem-tcp for root, else
    /// `$XDG_RUNTIME_DIR/devmem-tcp`.
    pub state_folder: Option<PathBuf>,
}

/// A prepared NIC. Dropping it restores what was there before; close bindings of its queues first.
pub struct NicSetup {
    nic: Box<dyn NicControl + Send>,
    state: StateFile,
    queues: Vec<RxQueueId>,
    /// The RSS context that spreads over the queues, if there are several.
    context: Option<u32>,
    undo: Vec<Undo>,
}

/// Something that is no longer as it was set up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drift {
    /// What, and how it is now.
    pub what: String,
    /// The command that mends it, where one can be given.
    pub command: Option<String>,
}

impl fmt::Display for Drift {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl NicSetup {
    /// Returns the queues that are prepared.
    pub fn queues(&self) -> &[RxQueueId] {
        &self.queues
    }

    /// Returns the interface's name.
    pub fn interface(&self) -> &str {
        self.nic.name()
    }

    /// Returns where the state file is, for a person who wants to restore by hand.
    pub fn state_file(&self) -> &std::path::Path {
        self.state.path()
    }

    /// Returns where the flow rules were put: the numbers that `ethtool -n` shows and `ethtool -N delete` takes.
    pub fn rule_locations(&self) -> Vec<u32> {
        let rules = self.undo.iter().filter_map(|undo| match undo {
            Undo::Rule { location, .. } => *location,
            _ => None,
        });
        rules.collect()
    }

    /// Says what was changed, as commands.
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
            undo,
        } = self;
        f.debug_struct("NicSetup")
            .field("interface", &nic.name())
            .field("state_file", &state.path())
            .field("queues", queues)
            .field("context", context)
            .field("undo", undo)
            .finish()
    }
}
