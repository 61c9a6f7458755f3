//! A NIC that is set up.

use std::fmt;

use super::control::NicControl;
use super::request::LeasedQueue;
use super::state::StateFile;
use super::undo::Undo;
use crate::netdev::KernelRxQueueId;

/// A NIC that is set up. Dropping it restores the previous settings; close bindings of its queues first.
pub struct NicSetup {
    pub(super) nic: Box<dyn NicControl + Send>,
    pub(super) state: StateFile,
    pub(super) queues: Vec<KernelRxQueueId>,
    /// The RSS context that spreads over the queues, if there are several.
    pub(super) context: Option<u32>,
    pub(super) leases: Vec<LeasedQueue>,
    pub(super) undo: Vec<Undo>,
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

    /// Returns the leases; none without [`SetupRequest::leases`](super::SetupRequest::leases).
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
