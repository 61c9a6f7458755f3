//! Settings of a kernel interface for a receiver.

use std::net::SocketAddr;
use std::sync::Arc;

use devmem_linux::nic_setup::{Flow, NicSetup, QueueChoice, SetupPlan, SetupRequest};
use steer::RxQueueId;

use super::nic::Nic;
use super::prepared::Prepared;
use crate::error::Error;
use crate::flows::Flows;
use crate::restore::Drift;

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
    pub(crate) fn commands(&self, flows: &Flows, queues: u16) -> Result<Vec<String>, Error> {
        Ok(plan(self, flows, queues)?.commands())
    }

    /// Applies the settings. Returns them and the chosen queues.
    pub(crate) fn prepare(
        &self,
        flows: &Flows,
        queues: u16,
    ) -> Result<(Arc<Prepared>, Vec<RxQueueId>), Error> {
        let applied = plan(self, flows, queues)?.apply();
        let setup = applied.map_err(Error::from)?;
        let ids = setup.queues().iter().map(|queue| {
            // No NIC has more queues than a u16 can count.
            u16::try_from(queue.0).map(RxQueueId)
        });
        let Ok(ids) = ids.collect::<Result<Vec<_>, _>>() else {
            return Err(Error::no_such_queues(queues, u16::MAX));
        };
        let prepared = Prepared::new(setup);
        let known = &mut self.known().prepared;
        known.retain(|other| other.strong_count() > 0);
        known.push(Arc::downgrade(&prepared));
        Ok((prepared, ids))
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
