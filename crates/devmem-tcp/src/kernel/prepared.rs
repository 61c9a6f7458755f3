//! Applied settings of an interface of the kernel for a receiver.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use devmem_linux::netdev::KernelRxQueueId;
use devmem_linux::nic_setup::{Configured, Flow, NicSetup};

use crate::error::{Error, Forked};
use crate::flows::any_like;
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
    /// How many [`Steered`] each peer has, which share one rule. Locked before `setup`.
    steered: Mutex<HashMap<SocketAddr, usize>>,
}

/// Segments from a peer are steered to the queues until it is dropped.
#[derive(Debug)]
pub(crate) struct Steered {
    prepared: Arc<Prepared>,
    peer: SocketAddr,
}

impl Prepared {
    pub(super) fn new(setup: NicSetup) -> Arc<Self> {
        Arc::new(Self {
            home: Home::here(),
            queues: setup.queues().to_vec(),
            unseen: Vec::new(),
            setup: Mutex::new(Some(setup)),
            steered: Mutex::default(),
        })
    }

    /// Settings of an agent, which this process neither changes nor restores.
    pub(super) fn by_agent(found: &Configured) -> Arc<Self> {
        Arc::new(Self {
            home: Home::here(),
            queues: found.queues().to_vec(),
            unseen: found.unseen().to_vec(),
            setup: Mutex::new(None),
            steered: Mutex::default(),
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

    fn steered(&self) -> MutexGuard<'_, HashMap<SocketAddr, usize>> {
        self.steered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Steers what comes from `peer`, too. Rules of an agent's settings are the agent's.
    pub(crate) fn steer_from(self: &Arc<Self>, peer: SocketAddr) -> Result<Steered, Error> {
        let mut steered = self.steered();
        let count = steered.entry(peer).or_default();
        if let (0, Some(setup)) = (*count, self.setup().as_mut()) {
            let added = setup.steer(&from_peer(peer, any_like(peer)));
            added.map_err(|error| Error::not_steered(setup.interface(), peer, &error))?;
        }
        *count += 1;
        Ok(Steered {
            prepared: Arc::clone(self),
            peer,
        })
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

impl Drop for Steered {
    fn drop(&mut self) {
        let Self { prepared, peer } = self;
        if prepared.check().is_err() {
            return;
        }
        let mut steered = prepared.steered();
        let Some(count) = steered.get_mut(peer) else {
            return;
        };
        *count -= 1;
        if *count > 0 {
            return;
        }
        steered.remove(peer);
        if let Some(setup) = prepared.setup().as_mut() {
            // A rule that stays is removed when the settings are restored.
            let _ = setup.unsteer(&from_peer(*peer, any_like(*peer)));
        }
    }
}

/// Returns the flow of connections to `peer`, from an address and port of this machine, either of which may be unspecified.
pub(super) fn from_peer(peer: SocketAddr, local: SocketAddr) -> Flow {
    Flow {
        peer: Some(peer.ip()),
        peer_port: Some(peer.port()),
        ..Flow::to(local)
    }
}
