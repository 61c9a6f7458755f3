//! What a NIC needs before device memory can be received on it: said, done, and undone.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use devmem_linux::nic_setup::{Drift, RestoreReport};
use nic::{Features, Nic, Rings, TcpDataSplit};
use steer::{
    FlowType, IndirectionTable, IpMatch, NtupleRule, PortMatch, Rss, RuleAction, RuleLocation,
    RxQueueId,
};

use crate::error::SetupError;
use crate::kernel::{self, Prepared};
use crate::netdev::{Backend, Netdev, UserNic};

/// The settings a receiver needs, not made yet. `Display` says them one a line.
///
/// Header split on with threshold 0, RSS away from the device-memory queues, and rules that steer TCP to the
/// local address and port to those queues. The queues are the NIC's last ones; queue 0 is never taken.
#[derive(Debug)]
pub struct ReceivePlan {
    netdev: Netdev,
    local: SocketAddr,
    queues: u16,
}

impl ReceivePlan {
    pub(crate) fn new(netdev: Netdev, local: SocketAddr) -> Self {
        Self {
            netdev,
            local,
            queues: 1,
        }
    }

    /// How many queues shall take device memory; 1 unless said otherwise. Several share the flows by the low
    /// bits of the source port.
    pub fn queues(mut self, queues: u16) -> Self {
        self.queues = queues;
        self
    }

    /// What would be done, as commands that a person could type for an interface of the kernel. Changes nothing.
    ///
    /// # Errors
    /// The interface cannot be prepared.
    pub fn commands(&self) -> Result<Vec<String>, SetupError> {
        self.netdev.check()?;
        match &self.netdev.backend {
            Backend::User(_) => Ok(self.to_string().lines().map(str::to_owned).collect()),
            Backend::Kernel(nic) => kernel::commands(nic, self.local, self.queues),
        }
    }

    /// Makes the settings. What was there before comes back when the returned value is dropped.
    ///
    /// For an interface of the kernel they are read back, too, and noted in a state file first: `devmem-tcp restore`
    /// puts back what a process left that was killed.
    ///
    /// # Errors
    /// The NIC has too few queues, or refuses a setting. Nothing is changed then.
    pub fn apply(self) -> Result<Setup, SetupError> {
        let Self {
            netdev,
            local,
            queues,
        } = self;
        netdev.check()?;
        match &netdev.backend {
            Backend::User(nic) => {
                let applied = nic
                    .shared
                    .driver
                    .with(nic.at, |stack, _| apply(stack.nic_mut(), local, queues))??;
                let queues = applied.queues.clone();
                let nic = nic.clone();
                let _restores = UserSettings { nic, applied };
                let settings = Settings::User { _restores };
                Ok(Setup { queues, settings })
            }
            Backend::Kernel(nic) => {
                let (prepared, queues) = kernel::prepare(nic, local, queues)?;
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
        write!(f, "TCP to {} steered to them", self.local)
    }
}

/// The settings made for a receiver. Dropping it puts back exactly what was there before; for an interface of the
/// kernel, as soon as no binding of these queues is left. In a child by fork(2) dropping it changes nothing: the settings are
/// the parent's.
#[derive(Debug)]
pub struct Setup {
    queues: Vec<RxQueueId>,
    settings: Settings,
}

#[derive(Debug)]
enum Settings {
    User { _restores: UserSettings },
    Kernel(Arc<Prepared>),
}

/// The settings of a NIC in user space; dropping it puts them back.
#[derive(Debug)]
struct UserSettings {
    nic: UserNic,
    applied: Applied,
}

impl Setup {
    /// The queues that take device memory: those to bind.
    pub fn queues(&self) -> &[RxQueueId] {
        &self.queues
    }

    /// What was changed on an interface of the kernel, as commands.
    pub fn changes(&self) -> Vec<String> {
        match &self.settings {
            Settings::User { .. } => Vec::new(),
            Settings::Kernel(prepared) => prepared.changes(),
        }
    }

    /// What somebody else, or a reset of the device, has changed of these settings since.
    pub fn verify(&self) -> Vec<Drift> {
        match &self.settings {
            // Nobody else has this NIC.
            Settings::User { .. } => Vec::new(),
            Settings::Kernel(prepared) => prepared.drifts(),
        }
    }

    /// Puts back what was there before, now, and says how that went; dropping does the same and keeps silent. Drop
    /// bindings of the queues first, or the kernel keeps header split on.
    pub fn restore(self) -> RestoreReport {
        match &self.settings {
            Settings::User { .. } => RestoreReport::default(),
            Settings::Kernel(prepared) => prepared.restore(),
        }
    }
}

impl Drop for UserSettings {
    fn drop(&mut self) {
        let UserNic { shared, at } = &self.nic;
        let restore = |stack: &mut stack::Stack, _| self.applied.restore(stack.nic_mut());
        // In a child by fork(2) the settings are the parent's.
        let _ = shared.driver.with(*at, restore);
    }
}

/// What was changed, and what was there before.
#[derive(Debug)]
struct Applied {
    queues: Vec<RxQueueId>,
    rules: Vec<RuleLocation>,
    rings: Rings,
    rss: Rss,
    features: Features,
}

impl Applied {
    /// Undoes the settings, last first. The NIC took each of them before and refuses none now; header split
    /// stays on while a queue is still bound, as unbinding comes first in every right program.
    fn restore(&self, nic: &mut Nic) {
        for location in self.rules.iter().rev() {
            let _ = nic.remove_rule(*location);
        }
        let _ = nic.set_rss(self.rss.clone());
        nic.set_features(self.features);
        let _ = nic.set_rings(self.rings);
    }
}

fn apply(nic: &mut Nic, local: SocketAddr, wanted: u16) -> Result<Applied, SetupError> {
    let channels = nic.channels().rx;
    if wanted == 0 || wanted >= channels {
        return Err(SetupError::Queues { wanted, channels });
    }
    let first = channels - wanted;
    let mut applied = Applied {
        queues: (first..channels).map(RxQueueId).collect(),
        rules: Vec::new(),
        rings: nic.rings(),
        rss: nic.rss().clone(),
        features: nic.features(),
    };
    let result = make(nic, local, first, &mut applied);
    if result.is_err() {
        applied.restore(nic);
    }
    result.map(|()| applied)
}

/// Makes the settings one by one, noting each rule that is to be removed again.
fn make(
    nic: &mut Nic,
    local: SocketAddr,
    first: u16,
    applied: &mut Applied,
) -> Result<(), SetupError> {
    nic.set_rings(Rings {
        tcp_data_split: TcpDataSplit::Enabled,
        hds_thresh: 0,
        ..applied.rings
    })?;
    let entries = applied.rss.table.entries().len();
    let table = IndirectionTable::round_robin(entries, first)?;
    nic.set_rss(Rss {
        table,
        ..applied.rss.clone()
    })?;
    nic.set_features(Features {
        ntuple: true,
        ..applied.features
    });
    // One rule for each value of the low bits of the source port: as many as it takes to reach every queue.
    let shares = u16::try_from(applied.queues.len().next_power_of_two()).unwrap_or(u16::MAX);
    for share in 0..shares {
        let queue = applied.queues[usize::from(share) % applied.queues.len()];
        applied
            .rules
            .push(nic.insert_rule(None, rule(local, share, shares - 1, queue))?);
    }
    Ok(())
}

fn rule(local: SocketAddr, share: u16, mask: u16, queue: RxQueueId) -> NtupleRule {
    let flow = if local.is_ipv6() {
        FlowType::Tcp6
    } else {
        FlowType::Tcp4
    };
    let mut rule = NtupleRule::any(flow, RuleAction::Queue(queue));
    if !local.ip().is_unspecified() {
        rule.dst_ip = IpMatch::exact(local.ip());
    }
    if local.port() != 0 {
        rule.dst_port = PortMatch::exact(local.port());
    }
    rule.src_port = PortMatch { port: share, mask };
    rule
}
