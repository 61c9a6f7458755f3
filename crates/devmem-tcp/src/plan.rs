//! The NIC settings that receiving into device memory needs: plan, apply, restore.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, PoisonError, Weak};

use devmem_uapi::Errno;
use nic::{Features, Nic, Rings, TcpDataSplit};
use steer::{
    FlowType, IndirectionTable, IpMatch, NtupleRule, PortMatch, QueueRange, Rss, RuleAction,
    RuleLocation, RxQueueId,
};

use crate::error::Error;
use crate::kernel::{self, Prepared};
use crate::netdev::{Backend, Netdev};
use crate::restore::{Drift, RestoreReport};
use crate::shards::UserShard;

/// The settings that a receiver needs, not applied yet. `Display` lists them, one per line.
///
/// They are: header split on with threshold 0; no device-memory queue in the RSS indirection table; rules that steer TCP for
/// the local address and port to the device-memory queues. These are the last queues of the NIC, never queue 0.
#[derive(Debug)]
#[must_use = "nothing changes until `apply`"]
pub struct ReceivePlan {
    netdev: Netdev,
    flows: Flows,
    queues: u16,
}

/// The TCP segments that are steered.
#[derive(Clone, Debug)]
pub(crate) struct Flows {
    /// Where they go; port 0 stands for any port.
    pub(crate) local: SocketAddr,
    /// Where they come from: one of these, or anywhere if there is none.
    pub(crate) peers: Vec<SocketAddr>,
}

impl ReceivePlan {
    pub(crate) fn new(netdev: Netdev, local: SocketAddr) -> Self {
        Self {
            netdev,
            flows: Flows {
                local,
                peers: Vec::new(),
            },
            queues: 1,
        }
    }

    /// Sets the number of queues for device memory, 1 by default. Flows are spread over them by a hash of their addresses and
    /// ports (RSS).
    pub fn queues(mut self, queues: u16) -> Self {
        self.queues = queues;
        self
    }

    /// Steers only segments from this address and port: for connections that are made to it, the local port of which is not
    /// known before and given as 0. May be repeated for further peers.
    ///
    /// An interface of the kernel needs the local port or a peer: otherwise the segments of all programs would be steered.
    pub fn from_peer(mut self, peer: SocketAddr) -> Self {
        self.flows.peers.push(peer);
        self
    }

    /// Returns the changes: for an interface of the kernel as `ethtool` commands, for a user-space NIC as text. Changes nothing.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind) if the interface does not support a setting.
    pub fn commands(&self) -> Result<Vec<String>, Error> {
        self.netdev.check()?;
        match &self.netdev.backend {
            Backend::User(_) => Ok(self.to_string().lines().map(str::to_owned).collect()),
            Backend::Kernel(nic) => kernel::commands(nic, &self.flows, self.queues),
        }
    }

    /// Applies the settings. Dropping the returned value restores the previous ones.
    ///
    /// For an interface of the kernel, each setting is written to a state file before it is made, and read back afterwards.
    /// If the process is killed, `devmem-tcp restore` restores the previous settings from that file.
    ///
    /// # Errors
    /// The NIC has too few queues, or refuses a setting. Settings that were already made are restored.
    pub fn apply(self) -> Result<Setup, Error> {
        let Self {
            netdev,
            flows,
            queues,
        } = self;
        netdev.check()?;
        match &netdev.backend {
            Backend::User(nic) => {
                let apply = |shard: &UserShard| UserSettings::apply(shard, &flows, queues);
                let restores: Vec<_> = nic.shards().iter().map(apply).collect::<Result<_, _>>()?;
                let queues = restores.first().map(|it| it.applied.queues.clone());
                let settings = Settings::User {
                    _restores: restores,
                };
                Ok(Setup {
                    queues: queues.unwrap_or_default(),
                    settings,
                })
            }
            Backend::Kernel(nic) => {
                let (prepared, queues) = kernel::prepare(nic, &flows, queues)?;
                let settings = Settings::Kernel(prepared);
                Ok(Setup { queues, settings })
            }
        }
    }
}

impl fmt::Display for ReceivePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "header split on, threshold 0")?;
        writeln!(f, "RSS away from the last {} queue(s)", self.queues)?;
        let Flows { local, peers } = &self.flows;
        match peers.is_empty() {
            true => write!(f, "TCP to {local} steered to them"),
            false => write!(f, "TCP from {peers:?} to {local} steered to them"),
        }
    }
}

/// The applied settings of a receiver. The previous settings are restored exactly when this and every binding of its queues are
/// dropped, in whatever order: a binding keeps the settings that its queues need.
///
/// So memory that is bound to the queues of a set-up that was dropped still receives the payload:
///
/// ```
/// # use devmem_tcp::{Dmabuf, Netdev, Placement, RxBatch};
/// # use std::io::Write;
/// # let (a, nic) = Netdev::pair("seed=1".parse()?)?;
/// # let memory = Dmabuf::anonymous(1 << 20)?;
/// # let local = "10.77.0.2:5201".parse()?;
/// let rx = nic.bind_rx(&memory, nic.plan_receive(local).apply()?.queues())?;
/// # let listener = nic.listen(local)?;
/// # a.connect(local)?.write_all(b"payload")?;
/// # let (mut stream, _) = listener.accept()?;
/// stream.set_placement(Placement::Strict);                      // accepts no bytes in host memory
/// # let mut batch = RxBatch::with_capacity(4);
/// assert_eq!(stream.recv(&mut batch)?, 7);
/// # drop(rx);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// In a child of fork(2), dropping it changes nothing.
#[derive(Debug)]
#[must_use = "dropping it restores the previous settings, unless a binding needs them"]
pub struct Setup {
    queues: Vec<RxQueueId>,
    settings: Settings,
}

#[derive(Debug)]
enum Settings {
    /// Of each shard.
    User {
        _restores: Vec<Arc<UserSettings>>,
    },
    Kernel(Arc<Prepared>),
}

/// The applied settings of a shard of a NIC in user space. Dropping it restores the previous ones.
#[derive(Debug)]
pub(crate) struct UserSettings {
    shard: UserShard,
    applied: Applied,
}

impl UserSettings {
    fn apply(shard: &UserShard, flows: &Flows, queues: u16) -> Result<Arc<Self>, Error> {
        let applied = shard.with(|stack, _| apply(stack.nic_mut(), flows, queues))??;
        let settings = Arc::new(Self {
            shard: shard.clone(),
            applied,
        });
        settings.register();
        Ok(settings)
    }

    /// Makes it known to later bindings.
    fn register(self: &Arc<Self>) {
        let setups = &self.shard.shared.setups;
        let mut setups = setups.lock().unwrap_or_else(PoisonError::into_inner);
        setups.retain(|setup| setup.strong_count() > 0);
        setups.push(Arc::downgrade(self));
    }

    /// Returns the settings that a binding to `queues` of `shard` needs.
    pub(crate) fn needed_by(shard: &UserShard, queues: &[RxQueueId]) -> Vec<Arc<Self>> {
        let setups = shard.shared.setups.lock();
        let setups = setups.unwrap_or_else(PoisonError::into_inner);
        let alive: Vec<_> = setups.iter().filter_map(Weak::upgrade).collect();
        drop(setups);
        let mut needed = alive;
        needed.retain(|setup| {
            let ours = &setup.applied.queues;
            setup.shard.at == shard.at && queues.iter().any(|queue| ours.contains(queue))
        });
        needed
    }
}

impl Setup {
    /// Returns the queues to bind device memory to.
    pub fn queues(&self) -> &[RxQueueId] {
        &self.queues
    }

    /// Returns the changes made to an interface of the kernel, as commands. Empty for a user-space NIC.
    pub fn changes(&self) -> Vec<String> {
        match &self.settings {
            Settings::User { .. } => Vec::new(),
            Settings::Kernel(prepared) => prepared.changes(),
        }
    }

    /// Returns which of these settings have changed since, by another program or a device reset. Always empty for a
    /// user-space NIC.
    pub fn verify(&self) -> Vec<Drift> {
        match &self.settings {
            // No other process can change this NIC.
            Settings::User { .. } => Vec::new(),
            Settings::Kernel(prepared) => prepared.drifts().into_iter().map(Drift::from).collect(),
        }
    }

    /// Restores the previous settings now and returns a report; dropping restores them without one. Drop bindings of the
    /// queues first: while one exists, header split stays on.
    pub fn restore(self) -> RestoreReport {
        match &self.settings {
            Settings::User { .. } => RestoreReport::default(),
            Settings::Kernel(prepared) => prepared.restore().into(),
        }
    }
}

impl Drop for UserSettings {
    fn drop(&mut self) {
        let restore = |stack: &mut stack::Stack, _| self.applied.restore(stack.nic_mut());
        // In a child of fork(2) the settings belong to the parent.
        let _ = self.shard.with(restore);
    }
}

/// The rules that were added, and the previous values of changed settings.
#[derive(Debug)]
struct Applied {
    queues: Vec<RxQueueId>,
    rules: Vec<RuleLocation>,
    rings: Rings,
    rss: Rss,
    features: Features,
}

impl Applied {
    /// Restores the previous settings, the last one first. The NIC had each of them before and refuses none, except that
    /// header split stays on while a queue is bound; a correct program unbinds first.
    fn restore(&self, nic: &mut Nic) {
        for location in self.rules.iter().rev() {
            let _ = nic.remove_rule(*location);
        }
        let _ = nic.set_rss(self.rss.clone());
        nic.set_features(self.features);
        let _ = nic.set_rings(self.rings);
    }
}

fn apply(nic: &mut Nic, flows: &Flows, wanted: u16) -> Result<Applied, Error> {
    let channels = nic.channels().rx;
    if wanted == 0 || wanted >= channels {
        return Err(no_such_queues(wanted, channels));
    }
    let first = channels - wanted;
    let mut applied = Applied {
        queues: (first..channels).map(RxQueueId).collect(),
        rules: Vec::new(),
        rings: nic.rings(),
        rss: nic.rss().clone(),
        features: nic.features(),
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
        hds_thresh: 0,
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
    nic.set_features(Features {
        ntuple: true,
        ..applied.features
    });
    let last = applied.queues.last().copied().unwrap_or(RxQueueId(first));
    let action = match QueueRange::new(RxQueueId(first), last) {
        Some(queues) if applied.queues.len() > 1 => RuleAction::Spread(queues),
        _ => RuleAction::Queue(RxQueueId(first)),
    };
    for rule in rules(flows, action) {
        let location = nic.insert_rule(None, rule);
        applied.rules.push(location.map_err(refused)?);
    }
    Ok(())
}

/// Too many queues or none: queue 0 always uses host memory, so at most `channels - 1` can use device memory.
pub(crate) fn no_such_queues(wanted: u16, channels: u16) -> Error {
    let most = channels.saturating_sub(1);
    Error::invalid(format!(
        "{wanted} queues cannot take device memory: the NIC has {channels} and keeps queue 0"
    ))
    .with_remedy(format!(
        "ask for 1 to {most}, or open the NIC with more queues"
    ))
}

/// The software NIC refuses a setting, usually because a binding depends on the current one.
fn refused(error: impl fmt::Display) -> Error {
    Error::of_stack(Errno::EINVAL, &error)
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
