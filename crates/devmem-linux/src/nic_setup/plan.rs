//! What would be changed, and why it cannot be.

use std::fmt;
use std::net::IpAddr;

use super::control::{KernelNic, NicControl};
use super::state::{StateError, StateFile};
use super::undo::table_words;
use super::{Flow, NicSetup, QueueChoice, SetupRequest};
use crate::drivers::known_driver;
use crate::ethtool::{
    DataSplit, EthtoolError, InstalledRule, NTUPLE, RssContext, RuleAction, TcpFlow,
};
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

/// A NIC's settings as they are; what the driver does not know is `None`.
struct Reading {
    driver: Option<String>,
    xdp: bool,
    queues: Vec<(RxQueueId, Option<QueueUser>)>,
    ntuple: Option<crate::ethtool::Feature>,
    /// A feature that this driver wants on before header split.
    split_needs: Option<crate::ethtool::Feature>,
    rings: Option<crate::ethtool::Rings>,
    rss: Option<RssContext>,
    contexts: Vec<RssContext>,
    rules: Option<Vec<InstalledRule>>,
}

/// Turns "not supported" into `None`.
fn if_supported<T>(read: Result<T, EthtoolError>) -> Result<Option<T>, EthtoolError> {
    match read {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_unsupported() => Ok(None),
        Err(error) => Err(error),
    }
}

impl Reading {
    fn of(nic: &mut dyn NicControl) -> Result<Self, EthtoolError> {
        let driver = nic.driver();
        let known = driver.as_deref().and_then(known_driver);
        let split_needs = match known.and_then(|known| known.split_needs) {
            Some(feature) => nic.feature(feature)?,
            None => None,
        };
        Ok(Self {
            driver,
            xdp: nic.has_xdp_program(),
            queues: nic.rx_queues()?,
            ntuple: nic.feature(NTUPLE)?,
            split_needs,
            rings: if_supported(nic.rings())?,
            rss: if_supported(nic.rss())?,
            // Only to warn about: a kernel that cannot list them is no obstacle.
            contexts: nic.rss_contexts().unwrap_or_default(),
            rules: if_supported(nic.rules())?,
        })
    }

    fn refuse_what_is_missing(&self, interface: &str) -> Result<(), PlanError> {
        let mut missing = Vec::new();
        if self.rings.and_then(|rings| rings.data_split).is_none() {
            missing.push("it cannot split headers from payload (tcp-data-split)".to_owned());
        }
        let ntuple = self.ntuple.as_ref();
        if !ntuple.is_some_and(|f| f.active || f.changeable) || self.rules.is_none() {
            missing.push("it has no flow rules (ntuple)".to_owned());
        }
        if self.xdp {
            missing.push(format!(
                "an XDP program is attached; `ip link set {interface} xdp off` removes it"
            ));
        }
        if self.queues.is_empty() {
            missing.push(format!(
                "it is down; `ip link set {interface} up` makes its queues"
            ));
        }
        if missing.is_empty() {
            return Ok(());
        }
        Err(PlanError::Unsupported {
            interface: interface.to_owned(),
            driver: self
                .driver
                .clone()
                .unwrap_or_else(|| "no driver".to_owned()),
            missing,
        })
    }

    fn choose_queues(
        &self,
        interface: &str,
        choice: &QueueChoice,
    ) -> Result<Vec<RxQueueId>, PlanError> {
        match choice {
            QueueChoice::Count(count) => {
                let free = self.queues.iter().rev();
                let free = free.filter(|(id, user)| id.0 != 0 && user.is_none());
                let free: Vec<_> = free.map(|(id, _)| *id).collect();
                let wanted = usize::try_from(*count).unwrap_or(usize::MAX).max(1);
                let Some(chosen) = free.get(..wanted) else {
                    let used = self.queues.iter();
                    return Err(PlanError::NotEnoughQueues {
                        interface: interface.to_owned(),
                        asked: *count,
                        free: u32::try_from(free.len()).unwrap_or(u32::MAX),
                        used: used
                            .filter_map(|(id, user)| Some((*id, (*user)?)))
                            .collect(),
                    });
                };
                let mut chosen = chosen.to_vec();
                chosen.sort_unstable();
                Ok(chosen)
            }
            QueueChoice::These(queues) => {
                let bad = |queue: RxQueueId, why: String| PlanError::BadQueue {
                    interface: interface.to_owned(),
                    queue,
                    why,
                };
                let mut chosen = queues.clone();
                chosen.sort_unstable();
                chosen.dedup();
                for queue in &chosen {
                    let user = self.queues.iter().find(|(id, _)| id == queue);
                    match user {
                        _ if queue.0 == 0 => {
                            let why = "takes what nobody steers, and is never taken";
                            return Err(bad(*queue, why.to_owned()));
                        }
                        None => {
                            let why = format!("it has only {}", self.queues.len());
                            return Err(bad(*queue, why));
                        }
                        Some((_, Some(user))) => {
                            return Err(bad(*queue, format!("is used by {user}")));
                        }
                        Some((_, None)) => {}
                    }
                }
                match &chosen[..] {
                    [] => Err(bad(RxQueueId(0), "no queue was asked for".to_owned())),
                    _ => Ok(chosen),
                }
            }
        }
    }

    fn steps(&self, queues: &[RxQueueId], flows: &[Flow]) -> Result<Vec<Step>, PlanError> {
        let mut steps = Vec::new();
        // First, and also where it needs no change: a ring change makes some drivers forget it, so that it is the
        // last to be put back.
        if let Some(rss) = self.rss.as_ref().filter(|rss| !rss.table.is_empty()) {
            steps.push(Step::RssAway {
                table: self.table_without(&rss.table, queues),
                before: rss.table.clone(),
            });
        }
        for feature in [&self.ntuple, &self.split_needs].into_iter().flatten() {
            if !feature.active {
                steps.push(Step::Feature {
                    name: feature.name.clone(),
                });
            }
        }
        // Set even where it reads "on": a driver that always splits reads so, and a binding wants it asked for.
        if let Some(rings) = self.rings
            && let Some(before) = rings.data_split
        {
            steps.push(Step::Split {
                before,
                thresh_before: rings.hds_thresh,
            });
        }
        let entries = self.rss.as_ref().map_or(0, |rss| rss.table.len());
        if queues.len() > 1 && entries > 0 && !flows.is_empty() {
            steps.push(Step::Context {
                table: queues.iter().map(|q| q.0).cycle().take(entries).collect(),
            });
        }
        for (flow, queue) in flows.iter().zip(queues.iter().cycle()) {
            steps.push(Step::Steer {
                rules: rules_for(flow)?,
                queue: *queue,
            });
        }
        Ok(steps)
    }

    /// Replaces the entries that point at `queues`, and no others, by the other queues of the table in turn.
    fn table_without(&self, table: &[u32], queues: &[RxQueueId]) -> Vec<u32> {
        let ours = |queue: &u32| queues.contains(&RxQueueId(*queue));
        let mut others = Vec::new();
        for queue in table.iter().filter(|queue| !ours(queue)) {
            if !others.contains(queue) {
                others.push(*queue);
            }
        }
        if others.is_empty() {
            let all = self.queues.iter().map(|(id, _)| id.0);
            others = all.filter(|queue| !ours(queue)).collect();
        }
        // Queue 0 is never ours, so there is at least one.
        let mut next = others.iter().copied().cycle();
        let replaced = table.iter().map(|queue| match ours(queue) {
            true => next.next().unwrap_or(0),
            false => *queue,
        });
        replaced.collect()
    }

    fn warnings(&self, interface: &str, queues: &[RxQueueId]) -> Vec<String> {
        let mut warnings = Vec::new();
        for context in &self.contexts {
            if let Some(queue) = queues.iter().find(|queue| context.uses(queue.0)) {
                warnings.push(format!(
                    "RSS context {} of {interface} sends to queue {queue} too",
                    context.context
                ));
            }
        }
        for rule in self.rules.iter().flatten() {
            if let RuleAction::Queue(queue) = rule.action
                && queues.contains(&queue)
            {
                warnings.push(format!(
                    "flow rule {} of {interface} sends to queue {queue} too",
                    rule.location
                ));
            }
        }
        let known = self.driver.as_deref().and_then(known_driver);
        if known.is_none_or(|known| !known.rx.exists()) {
            warnings.push(format!(
                "{} is not known to support device memory; the kernel will say",
                self.driver.as_deref().unwrap_or("the driver")
            ));
        }
        warnings
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
