//! Applied settings of an interface of the kernel for a receiver.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use devmem_linux::netdev::KernelRxQueueId;
use devmem_linux::nic_setup::{Configured, NicSetup};

use crate::error::Forked;
use crate::home::Home;
use crate::restore::{Drift, RestoreReport};

/// Applied settings. The previous ones are restored when the set-up and every binding of its queues are dropped. In a child of
/// fork(2) they belong to the parent, and dropping it changes nothing.
#[derive(Debug)]
pub(crate) struct Prepared {
    home: Home,
    queues: Vec<KernelRxQueueId>,
    /// What an agent must have set where it cannot be seen.
    unseen: Vec<String>,
    /// `None` after restoring, and for settings of an agent.
    setup: Mutex<Option<NicSetup>>,
}

impl Prepared {
    pub(super) fn new(setup: NicSetup) -> Arc<Self> {
        Arc::new(Self {
            home: Home::here(),
            queues: setup.queues().to_vec(),
            unseen: Vec::new(),
            setup: Mutex::new(Some(setup)),
        })
    }

    /// Settings of an agent, which this process neither changes nor restores.
    pub(super) fn by_agent(found: &Configured) -> Arc<Self> {
        Arc::new(Self {
            home: Home::here(),
            queues: found.queues().to_vec(),
            unseen: found.unseen().to_vec(),
            setup: Mutex::new(None),
        })
    }

    /// Returns what an agent must have set where it cannot be seen from here.
    pub(crate) fn unseen(&self) -> Vec<String> {
        self.unseen.clone()
    }

    /// Fails in a child of fork(2).
    pub(crate) fn check(&self) -> Result<(), Forked> {
        self.home.check()
    }

    pub(super) fn queues(&self) -> &[KernelRxQueueId] {
        &self.queues
    }

    fn setup(&self) -> MutexGuard<'_, Option<NicSetup>> {
        self.setup.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Restores the previous settings now and returns a report.
    pub(crate) fn restore(&self) -> RestoreReport {
        let setup = self.setup().take();
        setup
            .map(|setup| setup.restore().into())
            .unwrap_or_default()
    }

    /// Returns the settings that have changed since; none if the NIC cannot be read.
    pub(crate) fn drifts(&self) -> Vec<Drift> {
        let mut setup = self.setup();
        let drifts = setup
            .as_mut()
            .map(|setup| setup.verify().unwrap_or_default());
        let drifts = drifts.into_iter().flatten();
        drifts.map(Drift::from).collect()
    }

    /// Returns the changes as commands.
    pub(crate) fn changes(&self) -> Vec<String> {
        let setup = self.setup();
        setup.as_ref().map(NicSetup::changes).unwrap_or_default()
    }
}
