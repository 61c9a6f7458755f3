//! Settings of a kernel interface for a receiver.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use devmem_linux::netdev::KernelRxQueueId;
use devmem_linux::nic_setup::{
    Drift, Flow, NicSetup, QueueChoice, RestoreReport, SetupPlan, SetupRequest,
};
use steer::RxQueueId;

use super::nic::Nic;
use crate::error::Error;
use crate::home::Home;
use crate::plan::Flows;

/// Applied settings. The previous ones are restored when the set-up and every binding of its queues are dropped. In a child of
/// fork(2) they belong to the parent: all methods return nothing, and dropping it changes nothing.
#[derive(Debug)]
pub(crate) struct Prepared {
    home: Home,
    queues: Vec<KernelRxQueueId>,
    /// `None` after restoring.
    setup: Mutex<Option<NicSetup>>,
}

impl Prepared {
    pub(super) fn queues(&self) -> &[KernelRxQueueId] {
        &self.queues
    }

    /// Restores the previous settings now and returns a report.
    pub(crate) fn restore(&self) -> RestoreReport {
        if !self.home.is_here() {
            return RestoreReport::default();
        }
        let setup = self
            .setup
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        setup.map(NicSetup::restore).unwrap_or_default()
    }

    /// Returns the settings that have changed since; none if the NIC cannot be read.
    pub(crate) fn drifts(&self) -> Vec<Drift> {
        if !self.home.is_here() {
            return Vec::new();
        }
        let mut setup = self.setup.lock().unwrap_or_else(PoisonError::into_inner);
        let drifts = setup
            .as_mut()
            .map(|setup| setup.verify().unwrap_or_default());
        drifts.unwrap_or_default()
    }

    /// Returns the changes as commands.
    pub(crate) fn changes(&self) -> Vec<String> {
        if !self.home.is_here() {
            return Vec::new();
        }
        let setup = self.setup.lock().unwrap_or_else(PoisonError::into_inner);
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
}

fn plan(nic: &Nic, flows: &Flows, queues: u16) -> Result<SetupPlan, Error> {
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
    NicSetup::plan(&request).map_err(Error::from)
}

/// Returns the planned changes as commands. Changes nothing.
pub(crate) fn commands(nic: &Nic, flows: &Flows, queues: u16) -> Result<Vec<String>, Error> {
    Ok(plan(nic, flows, queues)?.commands())
}

/// Applies the settings. Returns them and the chosen queues.
pub(crate) fn prepare(
    nic: &Arc<Nic>,
    flows: &Flows,
    queues: u16,
) -> Result<(Arc<Prepared>, Vec<RxQueueId>), Error> {
    let applied = plan(nic, flows, queues)?.apply();
    let setup = applied.map_err(Error::from)?;
    let ids = setup.queues().iter().map(|queue| {
        // No NIC has more queues than a u16 can count.
        u16::try_from(queue.0).map(RxQueueId)
    });
    let Ok(ids) = ids.collect::<Result<Vec<_>, _>>() else {
        return Err(crate::plan::no_such_queues(queues, u16::MAX));
    };
    let prepared = Arc::new(Prepared {
        home: Home::here(),
        queues: setup.queues().to_vec(),
        setup: Mutex::new(Some(setup)),
    });
    let known = &mut nic.known().prepared;
    known.retain(|other| other.strong_count() > 0);
    known.push(Arc::downgrade(&prepared));
    Ok((prepared, ids))
}
