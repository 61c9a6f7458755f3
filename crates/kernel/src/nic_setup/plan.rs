//! The planned changes of a set-up.

use devmem_uapi::text::Printable;
use std::fmt;
use std::net::IpAddr;

use super::control::{KernelNic, NicControl};
use super::reading::Reading;
use super::request::{Flow, SetupRequest};
use super::setup::NicSetup;
use super::state::{StateError, StateFile};
use super::undo::{netkit_words, table_words};
use crate::ethtool::{DataSplit, EthtoolError, TcpFlow};
use crate::netdev::{KernelRxQueueId, QueueUser};

/// Why a NIC cannot be set up. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// A setting could not be read.
    #[error(transparent)]
    Read(#[from] EthtoolError),
    /// The driver lacks something that device memory needs.
    #[error("{interface} ({driver}) cannot be prepared: {}", missing.join("; "), interface = Printable(.interface))]
    Unsupported {
        /// The interface.
        interface: String,
        /// Its driver, or "no driver".
        driver: String,
        /// The missing features, each in a few words.
        missing: Vec<String>,
    },
    /// There are not enough unused queues.
    #[error(
        "{interface} has {free} unused RX queues, {asked} are needed: queue 0 is never used\
         {}", used_words(.used)
    )]
    NotEnoughQueues {
        /// The interface.
        interface: String,
        /// Number of requested queues.
        asked: u32,
        /// Number of unused queues, without queue 0.
        free: u32,
        /// The queues in use, and their users.
        used: Vec<(KernelRxQueueId, QueueUser)>,
    },
    /// A requested queue cannot be used.
    #[error("queue {queue} of {interface}: {why}", interface = Printable(.interface))]
    BadQueue {
        /// The interface.
        interface: String,
        /// The queue.
        queue: KernelRxQueueId,
        /// The reason.
        why: String,
    },
    /// No rule can describe the flow.
    #[error("flow to {}: {why}", flow.local)]
    BadFlow {
        /// The flow.
        flow: Flow,
        /// The reason.
        why: &'static str,
    },
    /// An agent should have set the interface up, and has not.
    #[error("{interface} is not set up for device memory: {}", missing.join("; "), interface = Printable(.interface))]
    NotConfigured {
        /// The interface.
        interface: String,
        /// What is missing or wrong, each in a few words.
        missing: Vec<String>,
        /// The commands for the agent, if they are known.
        commands: Vec<String>,
    },
    /// The state file cannot be used: another process has set the interface up, or a crashed one left it changed.
    #[error(transparent)]
    State(#[from] StateError),
}

fn used_words(used: &[(KernelRxQueueId, QueueUser)]) -> String {
    let words = used
        .iter()
        .map(|(id, user)| format!(", queue {id} is used by {user}"));
    words.collect()
}

/// One change that a plan would make.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// Turn a feature on.
    Feature {
        /// Its kernel name.
        name: String,
    },
    /// Turn header split on.
    Split {
        /// As it is.
        before: DataSplit,
        /// The threshold as it is; `None` if the driver has none.
        thresh_before: Option<u32>,
    },
    /// Remove the queues from the main RSS table. Both tables are the same if it does not contain them.
    RssAway {
        /// As it is.
        before: Vec<u32>,
        /// As it will be.
        table: Vec<u32>,
    },
    /// Create an RSS context that spreads over the queues, if the driver supports contexts.
    Context {
        /// Its table.
        table: Vec<u32>,
    },
    /// Steer a flow.
    Steer {
        /// The rules to try, narrow ones first.
        rules: Vec<TcpFlow>,
        /// Whether an RSS context spreads it, if the driver supports contexts.
        spread: bool,
        /// The queue, if none does.
        queue: KernelRxQueueId,
    },
    /// Make a netkit pair, and lease the queues to its peer.
    Lease {
        /// Name of its primary end.
        netkit: String,
        /// Name of its peer.
        peer: String,
        /// The queues.
        queues: Vec<KernelRxQueueId>,
    },
}

/// The planned changes. None has been made yet.
pub struct SetupPlan {
    pub(super) nic: Box<dyn NicControl + Send>,
    pub(super) state: Result<StateFile, StateError>,
    pub(super) queues: Vec<KernelRxQueueId>,
    pub(super) steps: Vec<Step>,
    warnings: Vec<String>,
}

impl fmt::Debug for SetupPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            nic,
            state: _,
            queues,
            steps,
            warnings,
        } = self;
        f.debug_struct("SetupPlan")
            .field("interface", &nic.name())
            .field("queues", queues)
            .field("steps", steps)
            .field("warnings", warnings)
            .finish()
    }
}

impl NicSetup {
    /// Reads the NIC and plans the changes. From here on the interface is reserved for this process: no other process can set
    /// it up meanwhile.
    ///
    /// # Errors
    ///
    /// See [`PlanError`]. [`StateError::Leftover`]: a crashed process left the NIC changed; restore first.
    pub fn plan(request: &SetupRequest) -> Result<SetupPlan, PlanError> {
        let nic = KernelNic::by_name(&request.interface)?;
        plan_for(Box::new(nic), request)
    }
}

/// Why a kernel cannot lease queues.
const NO_LEASES: &str = "this kernel cannot lease its queues, which needs Linux 7.1, and 7.2 to bind device memory to them";

/// Plans as [`NicSetup::plan`] does, for any [`NicControl`].
pub(super) fn plan_for(
    mut nic: Box<dyn NicControl + Send>,
    request: &SetupRequest,
) -> Result<SetupPlan, PlanError> {
    let folder = request.state_folder.as_deref();
    let state = match StateFile::claim(nic.name(), nic.index(), folder) {
        Err(error @ (StateError::Busy { .. } | StateError::Leftover { .. })) => {
            return Err(error.into());
        }
        // A plan needs no state file; applying the plan reports why there is none.
        other => other,
    };
    let reading = Reading::of(nic.as_mut())?;
    reading.refuse_what_is_missing(nic.name())?;
    if !request.leases.is_empty() && !nic.can_lease() {
        return Err(PlanError::Unsupported {
            interface: nic.name().to_owned(),
            driver: nic.driver().unwrap_or_else(|| "no driver".to_owned()),
            missing: vec![NO_LEASES.to_owned()],
        });
    }
    let queues = reading.choose_queues(nic.name(), &request.queues)?;
    let steps = reading.steps(&queues, &request.flows, &request.leases)?;
    Ok(SetupPlan {
        warnings: reading.warnings(nic.name(), &queues),
        nic,
        state,
        queues,
        steps,
    })
}

impl SetupPlan {
    /// Creates a plan of given steps, for tests on interfaces that do not support a complete set-up.
    #[cfg(test)]
    pub(super) fn of_steps(
        nic: Box<dyn NicControl + Send>,
        state: StateFile,
        steps: Vec<Step>,
    ) -> Self {
        Self {
            nic,
            state: Ok(state),
            queues: Vec::new(),
            steps,
            warnings: Vec::new(),
        }
    }

    /// Returns the planned queues.
    pub fn queues(&self) -> &[KernelRxQueueId] {
        &self.queues
    }

    /// Returns the changes, in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Returns warnings about settings that could send data of the flows to other queues, or other data to these queues.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns the planned changes as commands.
    pub fn commands(&self) -> Vec<String> {
        let name = self.nic.name();
        let commands = self.steps.iter().filter_map(|step| step.command(name));
        commands.collect()
    }
}

impl Step {
    /// Returns the change as a command; `None` if nothing changes.
    pub(super) fn command(&self, interface: &str) -> Option<String> {
        Some(match self {
            Self::Feature { name } => format!("ethtool -K {interface} {name} on"),
            Self::Split {
                thresh_before: None,
                ..
            } => format!("ethtool -G {interface} tcp-data-split on"),
            Self::Split { .. } => format!("ethtool -G {interface} tcp-data-split on hds-thresh 0"),
            Self::RssAway { before, table } if before == table => return None,
            Self::RssAway { table, .. } => format!("ethtool -X {interface} {}", table_words(table)),
            Self::Context { table } => {
                format!("ethtool -X {interface} context new {}", table_words(table))
            }
            Self::Steer { rules, queue, .. } => {
                let narrowest = rules.first().map_or_else(String::new, TcpFlow::to_string);
                format!("ethtool -N {interface} {narrowest} action {queue}")
            }
            Self::Lease {
                netkit,
                peer,
                queues,
            } => netkit_words(interface, netkit, peer, queues),
        })
    }
}

/// Returns the rules that match a flow, the narrowest first. NICs differ in the rules that they can match.
pub(super) fn rules_for(flow: &Flow) -> Result<Vec<TcpFlow>, PlanError> {
    let bad = |why| PlanError::BadFlow { flow: *flow, why };
    let local = canonical(flow.local.ip());
    let peer = flow.peer.map(canonical);
    let local_port = Some(flow.local.port()).filter(|port| *port != 0);
    if local_port.is_none() && (peer.is_none() || flow.peer_port.is_none()) {
        return Err(bad(
            "its port, or the peer's address and port, must be given",
        ));
    }
    if peer.is_some_and(|peer| peer.is_ipv6() != local.is_ipv6()) {
        return Err(bad("both addresses must be of the same IP version"));
    }
    let to_local = TcpFlow {
        ipv6: local.is_ipv6(),
        source: None,
        source_port: None,
        destination: Some(local).filter(|ip| !ip.is_unspecified()),
        destination_port: local_port,
    };
    let mut rules = Vec::new();
    if peer.is_some() {
        let from_peer = TcpFlow {
            source: peer,
            ..to_local
        };
        if flow.peer_port.is_some() {
            rules.push(TcpFlow {
                source_port: flow.peer_port,
                ..from_peer
            });
        }
        // Without the local port it would match all programs' connections to the peer.
        if local_port.is_some() {
            rules.push(from_peer);
        }
    }
    if local_port.is_none() {
        return Ok(rules);
    }
    rules.push(to_local);
    if to_local.destination.is_some() {
        rules.push(TcpFlow {
            destination: None,
            ..to_local
        });
    }
    Ok(rules)
}

/// Converts an IPv4-mapped address to IPv4: packets to it are IPv4 packets.
fn canonical(ip: IpAddr) -> IpAddr {
    ip.to_canonical()
}
