//! What would be changed, and why it cannot be.

use std::fmt;
use std::net::IpAddr;

use super::control::{KernelNic, NicControl};
use super::reading::Reading;
use super::state::{StateError, StateFile};
use super::undo::table_words;
use super::{Flow, NicSetup, SetupRequest};
use crate::ethtool::{DataSplit, EthtoolError, TcpFlow};
use crate::netdev::{QueueUser, RxQueueId};

/// Why a NIC cannot be prepared. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// A setting could not be read.
    #[error(transparent)]
    Read(#[from] EthtoolError),
    /// The driver lacks what device memory needs.
    #[error("{interface} ({driver}) cannot be prepared: {}", missing.join("; "))]
    Unsupported {
        /// The interface.
        interface: String,
        /// Its driver, or "no driver".
        driver: String,
        /// What it lacks, each in a few words.
        missing: Vec<String>,
    },
    /// There are not enough queues that nobody uses.
    #[error(
        "{interface} has {free} RX queues to spare, {asked} are needed: queue 0 is never taken\
         {}", used_words(.used)
    )]
    NotEnoughQueues {
        /// The interface.
        interface: String,
        /// How many were asked for.
        asked: u32,
        /// How many there are, without queue 0 and those in use.
        free: u32,
        /// Those in use.
        used: Vec<(RxQueueId, QueueUser)>,
    },
    /// A queue was asked for that cannot be had.
    #[error("queue {queue} of {interface}: {why}")]
    BadQueue {
        /// The interface.
        interface: String,
        /// The queue.
        queue: RxQueueId,
        /// Why not.
        why: String,
    },
    /// A flow that no rule can describe.
    #[error("flow to {}: {why}", flow.local)]
    BadFlow {
        /// The flow.
        flow: Flow,
        /// Why not.
        why: &'static str,
    },
    /// The state file cannot be had: another process is at work, or a crashed one left something to restore.
    #[error(transparent)]
    State(#[from] StateError),
}

fn used_words(used: &[(RxQueueId, QueueUser)]) -> String {
    let words = used
        .iter()
        .map(|(id, user)| format!(", queue {id} is used by {user}"));
    words.collect()
}

/// One change that a plan would make.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Step {
    /// Switch a feature on.
    Feature {
        /// Its kernel name.
        name: String,
    },
    /// Switch header split on.
    Split {
        /// As it is.
        before: DataSplit,
        /// The threshold as it is; `None` if the driver has none.
        thresh_before: Option<u32>,
    },
    /// Move the main RSS table off the queues. Both tables are the same where it is off them already.
    RssAway {
        /// As it is.
        before: Vec<u32>,
        /// As it will be.
        table: Vec<u32>,
    },
    /// Make an RSS context that spreads over the queues, where the driver has contexts.
    Context {
        /// Its table.
        table: Vec<u32>,
    },
    /// Steer a flow.
    Steer {
        /// The rules to try, narrow ones first.
        rules: Vec<TcpFlow>,
        /// The queue, where there is no context.
        queue: RxQueueId,
    },
}

/// What would be changed. Nothing has been yet.
pub struct SetupPlan {
    pub(super) nic: Box<dyn NicControl + Send>,
    pub(super) state: Result<StateFile, StateError>,
    pub(super) queues: Vec<RxQueueId>,
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
    /// Reads the NIC and works out what to change. Holds the interface for this process from here on, so that no
    /// other changes it meanwhile.
    ///
    /// # Errors
    ///
    /// See [`PlanError`]. [`StateError::Leftover`]: a crashed process left the NIC changed; restore first.
    pub fn plan(request: &SetupRequest) -> Result<SetupPlan, PlanError> {
        let nic = KernelNic::by_name(&request.interface)?;
        plan_for(Box::new(nic), request)
    }
}

/// As [`NicSetup::plan`], for any NIC.
pub(super) fn plan_for(
    mut nic: Box<dyn NicControl + Send>,
    request: &SetupRequest,
) -> Result<SetupPlan, PlanError> {
    let folder = request.state_folder.as_deref();
    let state = match StateFile::claim(nic.name(), nic.index(), folder) {
        Err(error @ (StateError::Busy { .. } | StateError::Leftover { .. })) => {
            return Err(error.into());
        }
        // Looking needs no state file; changing will say why there is none.
        other => other,
    };
    let reading = Reading::of(nic.as_mut())?;
    reading.refuse_what_is_missing(nic.name())?;
    let queues = reading.choose_queues(nic.name(), &request.queues)?;
    let steps = reading.steps(&queues, &request.flows)?;
    Ok(SetupPlan {
        warnings: reading.warnings(nic.name(), &queues),
        nic,
        state,
        queues,
        steps,
    })
}

impl SetupPlan {
    /// A plan of given steps, for tests on interfaces that could not be prepared as a whole.
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

    /// Returns the queues that would be prepared.
    pub fn queues(&self) -> &[RxQueueId] {
        &self.queues
    }

    /// Returns the changes, in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Returns what could make device memory data arrive elsewhere, or other data in device memory.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Says what would be changed, as commands.
    pub fn commands(&self) -> Vec<String> {
        let name = self.nic.name();
        let commands = self.steps.iter().filter_map(|step| step.command(name));
        commands.collect()
    }
}

impl Step {
    /// Returns the command that a person would type; none where nothing changes.
    fn command(&self, interface: &str) -> Option<String> {
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
            Self::Steer { rules, queue } => {
                let narrowest = rules.first().map_or_else(String::new, TcpFlow::to_string);
                format!("ethtool -N {interface} {narrowest} action {queue}")
            }
        })
    }
}

/// Returns the rules that match a flow, the narrowest first: what one NIC cannot match another can.
pub(super) fn rules_for(flow: &Flow) -> Result<Vec<TcpFlow>, PlanError> {
    let bad = |why| PlanError::BadFlow { flow: *flow, why };
    let local = canonical(flow.local.ip());
    let peer = flow.peer.map(canonical);
    if flow.local.port() == 0 {
        return Err(bad("its port must be given"));
    }
    if peer.is_some_and(|peer| peer.is_ipv6() != local.is_ipv6()) {
        return Err(bad("both ends must be of the same IP version"));
    }
    let to_local = TcpFlow {
        ipv6: local.is_ipv6(),
        source: None,
        source_port: None,
        destination: Some(local).filter(|ip| !ip.is_unspecified()),
        destination_port: Some(flow.local.port()),
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
        rules.push(from_peer);
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

/// Packets to an IPv6 socket's mapped address are IPv4 packets.
fn canonical(ip: IpAddr) -> IpAddr {
    ip.to_canonical()
}
