//! Settings of a kernel interface for a receiver: made by us, or by an agent.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use devmem_linux::nic_setup::{Configured, Flow, NicSetup, QueueChoice, SetupPlan, SetupRequest};
use steer::RxQueueId;

use super::nic::Nic;
use super::prepared::{Prepared, from_peer};
use super::rights::Rights;
use crate::error::Error;
use crate::flows::Flows;
use crate::restore::Drift;

/// What a receiver needs of an interface.
enum Plan {
    /// Settings to make.
    Ours(Box<SetupPlan>),
    /// Queues that an agent has prepared.
    Agents(Configured),
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

    /// Returns the planned changes as commands; none for an interface that an agent sets up. Changes nothing.
    pub(crate) fn commands(&self, flows: &Flows, queues: u16) -> Result<Vec<String>, Error> {
        Ok(match plan(self, flows, queues)? {
            Plan::Ours(plan) => plan.commands(),
            Plan::Agents(_) => Vec::new(),
        })
    }

    /// Applies the settings, or finds those of an agent. Returns them and the queues.
    pub(crate) fn prepare(
        &self,
        flows: &Flows,
        queues: u16,
    ) -> Result<(Arc<Prepared>, Vec<RxQueueId>), Error> {
        let prepared = match plan(self, flows, queues)? {
            Plan::Ours(plan) => Prepared::new(plan.apply().map_err(Error::from)?),
            Plan::Agents(found) => Prepared::by_agent(&found),
        };
        let ids = prepared.queues().iter().map(|queue| {
            // No NIC has more queues than a u16 can count.
            u16::try_from(queue.0).map(RxQueueId)
        });
        let Ok(ids) = ids.collect::<Result<Vec<_>, _>>() else {
            return Err(Error::no_such_queues(queues, u16::MAX));
        };
        let known = &mut self.known().prepared;
        known.retain(|other| other.strong_count() > 0);
        known.push(Arc::downgrade(&prepared));
        Ok((prepared, ids))
    }
}

fn plan(nic: &Nic, flows: &Flows, queues: u16) -> Result<Plan, Error> {
    let Flows { local, peers } = flows;
    let any_v4 = || Flow::to(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), local.port()));
    let covers_both = local.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    let request = SetupRequest {
        interface: nic.name().to_owned(),
        queues: QueueChoice::Count(queues.into()),
        flows: match peers.is_empty() {
            // As for listeners.
            true if covers_both => vec![Flow::to(*local), any_v4()],
            true => vec![Flow::to(*local)],
            false => peers.iter().map(|peer| from_peer(*peer, *local)).collect(),
        },
        leases: Vec::new(),
        state_folder: None,
    };
    Ok(match nic.rights() {
        Rights::All => Plan::Ours(Box::new(NicSetup::plan(&request)?)),
        Rights::Bind | Rights::Ask(_) => Plan::Agents(Configured::find(&request)?),
    })
}
