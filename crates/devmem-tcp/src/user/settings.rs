//! The settings of the software NIC of a shard for a receiver.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use nic::{Nic, Rings, TcpDataSplit};
use steer::{
    FlowType, IndirectionTable, IpMatch, NtupleRule, PortMatch, QueueRange, Rss, RuleAction,
    RuleLocation, RxQueueId,
};

use crate::driver::{Driver, StackIndex};
use crate::error::Error;
use crate::flows::{Flows, any_like};

/// The applied settings of a shard. Dropping it restores the previous ones.
pub(super) struct ShardSettings {
    driver: Driver,
    at: StackIndex,
    applied: Applied,
}

impl ShardSettings {
    pub(super) fn apply(
        driver: &Driver,
        at: StackIndex,
        flows: &Flows,
        queues: u16,
    ) -> Result<Arc<Self>, Error> {
        let applied = driver.with(at, |stack, _| apply(stack.nic_mut(), flows, queues))?;
        Ok(Arc::new(Self {
            driver: driver.clone(),
            at,
            applied,
        }))
    }

    /// Steers what comes from `peer`, too, until the returned value is dropped.
    pub(super) fn steer_from(self: &Arc<Self>, peer: SocketAddr) -> Result<SteeredShard, Error> {
        let flows = Flows {
            local: any_like(peer),
            peers: vec![SocketAddr::new(peer.ip().to_canonical(), peer.port())],
        };
        let mut locations = Vec::new();
        self.driver.with(self.at, |stack, _| {
            for rule in rules(&flows, self.applied.action) {
                locations.push(stack.nic_mut().insert_rule(None, rule).map_err(refused)?);
            }
            Ok::<_, Error>(())
        })?;
        Ok(SteeredShard {
            settings: Arc::clone(self),
            locations,
        })
    }

    /// Returns the queues for device memory.
    pub(super) fn queues(&self) -> &[RxQueueId] {
        &self.applied.queues
    }

    /// Returns whether a binding to `queues` of the stack with index `at` needs them.
    pub(super) fn concern(&self, at: StackIndex, queues: &[RxQueueId]) -> bool {
        self.at == at && queues.iter().any(|queue| self.queues().contains(queue))
    }
}

/// Rules of a shard that steer the segments of a peer. Dropping it removes them.
pub(super) struct SteeredShard {
    settings: Arc<ShardSettings>,
    locations: Vec<RuleLocation>,
}

impl fmt::Debug for SteeredShard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SteeredShard")
            .field(&self.locations)
            .finish()
    }
}

impl Drop for SteeredShard {
    fn drop(&mut self) {
        let Self {
            settings,
            locations,
        } = self;
        settings.driver.undo(settings.at, |stack| {
            for location in locations.drain(..) {
                // It is there: nobody else removes it.
                let _ = stack.nic_mut().remove_rule(location);
            }
        });
    }
}

impl fmt::Debug for ShardSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.applied.fmt(f)
    }
}

impl Drop for ShardSettings {
    fn drop(&mut self) {
        self.driver
            .undo(self.at, |stack| self.applied.restore(stack.nic_mut()));
    }
}

/// The rules that were added, and the previous values of changed settings.
#[derive(Debug)]
struct Applied {
    queues: Vec<RxQueueId>,
    /// Where the rules steer.
    action: RuleAction,
    rules: Vec<RuleLocation>,
    rings: Rings,
    rss: Rss,
}

impl Applied {
    /// Restores the previous settings, the last one first. The NIC had each of them before and refuses none, except that
    /// header split stays on while a queue is bound; a correct program unbinds first.
    fn restore(&self, nic: &mut Nic) {
        for location in self.rules.iter().rev() {
            let _ = nic.remove_rule(*location);
        }
        let _ = nic.set_rss(self.rss.clone());
        let _ = nic.set_rings(self.rings);
    }
}

fn apply(nic: &mut Nic, flows: &Flows, wanted: u16) -> Result<Applied, Error> {
    let channels = nic.rx_queue_count();
    if wanted == 0 || wanted >= channels {
        return Err(Error::no_such_queues(wanted, channels));
    }
    let first = channels - wanted;
    let queues: Vec<_> = (first..channels).map(RxQueueId).collect();
    let mut applied = Applied {
        action: action(&queues, RxQueueId(first)),
        queues,
        rules: Vec::new(),
        rings: nic.rings(),
        rss: nic.rss().clone(),
    };
    let result = make(nic, flows, first, &mut applied);
    if result.is_err() {
        applied.restore(nic);
    }
    result.map(|()| applied)
}

/// Makes the settings one by one, and records each rule for its later removal.
fn make(nic: &mut Nic, flows: &Flows, first: u16, applied: &mut Applied) -> Result<(), Error> {
    nic.set_rings(Rings {
        tcp_data_split: TcpDataSplit::Enabled,
        ..applied.rings
    })
    .map_err(refused)?;
    let entries = applied.rss.table.entries().len();
    let table = IndirectionTable::round_robin(entries, first).map_err(refused)?;
    nic.set_rss(Rss {
        table,
        ..applied.rss.clone()
    })
    .map_err(refused)?;
    for rule in rules(flows, applied.action) {
        let location = nic.insert_rule(None, rule);
        applied.rules.push(location.map_err(refused)?);
    }
    Ok(())
}

/// Spreads over the queues, of which `first` is the first one.
fn action(queues: &[RxQueueId], first: RxQueueId) -> RuleAction {
    let last = queues.last().copied().unwrap_or(first);
    match QueueRange::new(first, last) {
        Some(range) if queues.len() > 1 => RuleAction::Spread(range),
        _ => RuleAction::Queue(first),
    }
}

/// The software NIC refuses a setting, usually because a binding depends on the current one.
fn refused(error: impl fmt::Display) -> Error {
    Error::invalid(error.to_string())
}

/// Returns one rule for each peer, or one for all. The unspecified IPv6 address covers both families, as for listeners.
fn rules(flows: &Flows, action: RuleAction) -> Vec<NtupleRule> {
    let Flows { local, peers } = flows;
    let to_local = rule(*local, action);
    if peers.is_empty() && local.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
        let v4 = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), local.port());
        return vec![to_local, rule(v4, action)];
    }
    let from = |peer: &SocketAddr| {
        let mut rule = to_local;
        rule.src_ip = IpMatch::exact(peer.ip());
        rule.src_port = PortMatch::exact(peer.port());
        rule
    };
    match peers.is_empty() {
        true => vec![to_local],
        false => peers.iter().map(from).collect(),
    }
}

fn rule(local: SocketAddr, action: RuleAction) -> NtupleRule {
    let flow = if local.is_ipv6() {
        FlowType::Tcp6
    } else {
        FlowType::Tcp4
    };
    let mut rule = NtupleRule::any(flow, action);
    if !local.ip().is_unspecified() {
        rule.dst_ip = IpMatch::exact(local.ip());
    }
    if local.port() != 0 {
        rule.dst_port = PortMatch::exact(local.port());
    }
    rule
}
