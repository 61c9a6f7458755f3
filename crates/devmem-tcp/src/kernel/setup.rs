//! Settings of a kernel interface for a receiver.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use devmem_linux::netdev::KernelRxQueueId;
use devmem_linux::nic_setup::{Flow, NicSetup, QueueChoice, SetupPlan, SetupRequest};
use steer::RxQueueId;

use super::nic::Nic;
use crate::error::{Forked, Refusal, SetupError};
use crate::flows::Flows;
use crate::home::Home;
use crate::restore::{Drift, RestoreReport};

/// Applied settings. The previous ones are restored when the set-up and every binding of its queues are dropped. In a child of
/// fork(2) they belong to the parent, and dropping it changes nothing.
#[derive(Debug)]
pub(crate) struct Prepared {
    home: Home,
    queues: Vec<KernelRxQueueId>,
    /// `None` after restoring.
    setup: Mutex<Option<NicSetup>>,
}

impl Prepared {
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

impl Nic {
    /// Returns a setting of one of our set-ups that has changed since.
    pub(super) fn drift(&self) -> Option<Drift> {
        let prepared: Vec<_> = {
            let known = self.known();
            let alive = known.prepared.iter().filter_map(std::sync::Weak::upgrade);
            alive.collect()
        };
        prepared
            .iter()
            .find_map(|setup| setup.drifts().into_iter().next())
    }

    /// Returns the planned changes as commands. Changes nothing.
    pub(crate) fn commands(&self, flows: &Flows, queues: u16) -> Result<Vec<String>, SetupError> {
        Ok(plan(self, flows, queues)?.commands())
    }

    /// Applies the settings. Returns them and the chosen queues.
    pub(crate) fn prepare(
        &self,
        flows: &Flows,
        queues: u16,
    ) -> Result<(Arc<Prepared>, Vec<RxQueueId>), SetupError> {
        let applied = plan(self, flows, queues)?.apply();
        let setup = applied.map_err(Refusal::from)?;
        let ids = setup.queues().iter().map(|queue| {
            // No NIC has more queues than a u16 can count.
            u16::try_from(queue.0).map(RxQueueId)
        });
        let Ok(ids) = ids.collect::<Result<Vec<_>, _>>() else {
            return Err(SetupError::Queues {
                wanted: queues,
                channels: u16::MAX,
            });
        };
        let prepared = Arc::new(Prepared {
            home: Home::here(),
            queues: setup.queues().to_vec(),
            setup: Mutex::new(Some(setup)),
        });
        let known = &mut self.known().prepared;
        known.retain(|other| other.strong_count() > 0);
        known.push(Arc::downgrade(&prepared));
        Ok((prepared, ids))
    }
}

fn plan(nic: &Nic, flows: &Flows, queues: u16) -> Result<SetupPlan, SetupError> {
    let Flows { local, peers } = flows;
    let to_local = Flow::to(*local);
    let from = |peer: &SocketAddr| Flow {
        peer: Some(peer.ip()),
        peer_port: Some(peer.port()),
        ..to_local
    };
    let request = SetupRequest {
        interface: nic.name().to_owned(),
        queues: QueueChoice::Count(queues.into()),
        flows: match peers.is_empty() {
            true => vec![to_local],
            false => peers.iter().map(from).collect(),
        },
        state_folder: None,
    };
    Ok(NicSetup::plan(&request).map_err(Refusal::from)?)
}
