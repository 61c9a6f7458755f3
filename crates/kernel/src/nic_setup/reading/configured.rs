//! What an agent has set up, found and checked as far as it can be seen, without writing anything to the NIC.

use super::Reading;
use crate::ethtool::{DataSplit, RuleAction, TcpFlow};
use crate::netdev::KernelRxQueueId;
use crate::nic_setup::control::{KernelNic, NicControl};
use crate::nic_setup::plan::{PlanError, Step, rules_for};
use crate::nic_setup::request::{Flow, QueueChoice, SetupRequest};

/// Driver of the interfaces that have queues leased from a NIC.
const NETKIT: &str = "netkit";

/// The queues that an agent has prepared, and what it must have set where this process cannot see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configured {
    queues: Vec<KernelRxQueueId>,
    unseen: Vec<String>,
}

impl Configured {
    /// Finds the queues of the interface that an agent has prepared for the flows. Only reads, needs no privilege, and uses no state
    /// file.
    ///
    /// On a NIC these are the queues that flow rules steer the flows to; on a netkit they are those leased to it that are unused.
    ///
    /// # Errors
    ///
    /// [`PlanError::NotConfigured`] with what is missing, and the commands for it.
    pub fn find(request: &SetupRequest) -> Result<Self, PlanError> {
        find_for(&mut KernelNic::by_name(&request.interface)?, request)
    }

    /// Returns the queues to bind.
    pub fn queues(&self) -> &[KernelRxQueueId] {
        &self.queues
    }

    /// Returns what the agent must have set where it cannot be seen from here: on the NIC that a netkit's queues are leased from.
    pub fn unseen(&self) -> &[String] {
        &self.unseen
    }
}

/// Finds as [`Configured::find`] does, for any [`NicControl`].
pub(in crate::nic_setup) fn find_for(
    nic: &mut dyn NicControl,
    request: &SetupRequest,
) -> Result<Configured, PlanError> {
    let reading = Reading::of(nic)?;
    match reading.driver.as_deref() {
        Some(NETKIT) => reading.leased(request),
        _ => reading.prepared(request),
    }
}

impl Reading {
    /// Chooses queues of a netkit. Its queue 0 is its own; all others are leased to it.
    fn leased(&self, request: &SetupRequest) -> Result<Configured, PlanError> {
        let SetupRequest {
            interface, queues, ..
        } = request;
        let chosen = self.choose_queues(interface, queues);
        let queues = chosen.map_err(|error| match error {
            PlanError::NotEnoughQueues { asked, free, .. } => PlanError::NotConfigured {
                interface: interface.clone(),
                missing: vec![format!(
                    "{free} unused queues are leased to it, {asked} are needed"
                )],
                commands: vec![format!(
                    "devmem-tcp lease NIC --pod queues={asked},...   on the host, as its root"
                )],
            },
            other => other,
        })?;
        let mut unseen = vec![
            "header split on, with hds-thresh 0".to_owned(),
            "an RSS table without the leased queues".to_owned(),
        ];
        let flows = request.flows.iter();
        unseen.extend(flows.map(|flow| format!("a flow rule to them for {}", describe(flow))));
        Ok(Configured { queues, unseen })
    }

    /// Finds and checks the queues of a NIC.
    fn prepared(&self, request: &SetupRequest) -> Result<Configured, PlanError> {
        let interface = &request.interface;
        let mut missing = self.wrong_settings();
        let queues = match &request.queues {
            QueueChoice::These(_) => self.choose_queues(interface, &request.queues)?,
            QueueChoice::Count(count) => {
                let found = self.steered_to(&request.flows, &mut missing)?;
                let enough = usize::try_from(*count).is_ok_and(|count| found.len() >= count);
                if !found.is_empty() && !enough {
                    let number = found.len();
                    missing.push(format!(
                        "the flow rules lead to {number} queues, {count} are needed"
                    ));
                }
                found
            }
        };
        missing.extend(self.unfit(&queues));
        if missing.is_empty() {
            return Ok(Configured {
                queues,
                unseen: Vec::new(),
            });
        }
        Err(PlanError::NotConfigured {
            interface: interface.clone(),
            missing,
            commands: self.commands(request),
        })
    }

    /// Returns what is wrong with the settings of the whole NIC.
    fn wrong_settings(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let rings = self.rings.unwrap_or_default();
        match rings.data_split {
            Some(DataSplit::Enabled) => {}
            Some(other) => wrong.push(format!("tcp-data-split is {other}")),
            None => wrong.push("it does not support header split (tcp-data-split)".to_owned()),
        }
        if let Some(thresh) = rings.hds_thresh.filter(|thresh| *thresh != 0) {
            wrong.push(format!("hds-thresh is {thresh}"));
        }
        if self.xdp {
            wrong.push("an XDP program is attached".to_owned());
        }
        wrong
    }

    /// Returns the queues that flow rules steer the flows to, and adds the flows that none steers to `missing`.
    fn steered_to(
        &self,
        flows: &[Flow],
        missing: &mut Vec<String>,
    ) -> Result<Vec<KernelRxQueueId>, PlanError> {
        let mut queues = Vec::new();
        for flow in flows {
            let wanted = rules_for(flow)?;
            let Some(narrowest) = wanted.first() else {
                continue;
            };
            let rules = self.rules.iter().flatten();
            let rule = rules
                .filter(|rule| rule.flow.is_some_and(|flow| can_match(&flow, narrowest)))
                .min_by_key(|rule| rule.location);
            match rule.map(|rule| rule.action) {
                Some(RuleAction::Queue(queue)) => queues.push(queue),
                Some(RuleAction::Context { context, base }) => {
                    let contexts = self.contexts.iter();
                    let found = contexts.filter(|found| found.context == context);
                    let entries = found.flat_map(|found| &found.table);
                    queues
                        .extend(entries.map(|entry| KernelRxQueueId(base.saturating_add(*entry))));
                }
                Some(_) | None => {
                    missing.push(format!("no flow rule steers {} to a queue", describe(flow)))
                }
            }
        }
        queues.sort_unstable();
        queues.dedup();
        Ok(queues)
    }

    /// Returns why some of the queues cannot be bound, or get other packets, too.
    fn unfit(&self, queues: &[KernelRxQueueId]) -> Vec<String> {
        let mut wrong = Vec::new();
        for queue in queues {
            let found = self.queues.iter().find(|(id, _)| id == queue);
            match found.map(|(_, user)| user) {
                None => wrong.push(format!("it has no queue {queue}")),
                Some(Some(user)) => wrong.push(format!("queue {queue} is used by {user}")),
                Some(None) => {}
            }
            if self.rss.as_ref().is_some_and(|rss| rss.uses(queue.0)) {
                wrong.push(format!(
                    "the RSS table sends other packets to queue {queue}, too"
                ));
            }
        }
        wrong
    }

    /// Returns the commands of a set-up that are missing, for the agent; none if the NIC cannot be set up.
    fn commands(&self, request: &SetupRequest) -> Vec<String> {
        let SetupRequest {
            interface,
            queues,
            flows,
            ..
        } = request;
        let steps = self
            .choose_queues(interface, queues)
            .and_then(|queues| self.steps(&queues, flows, &[]));
        let steps = steps.unwrap_or_default();
        let missing = steps.iter().filter(|step| !is_split_on(step));
        missing.filter_map(|step| step.command(interface)).collect()
    }
}

/// Returns whether a step switches on what reads as on: a set-up of ours asks for it nevertheless, so that the request is explicit.
fn is_split_on(step: &Step) -> bool {
    matches!(
        step,
        Step::Split {
            before: DataSplit::Enabled,
            thresh_before: None | Some(0),
        }
    )
}

/// Returns whether a rule can match packets of a flow: they differ in no field that both name.
fn can_match(rule: &TcpFlow, wanted: &TcpFlow) -> bool {
    fn agree<T: PartialEq>(one: Option<T>, other: Option<T>) -> bool {
        one.is_none() || other.is_none() || one == other
    }
    rule.ipv6 == wanted.ipv6
        && agree(rule.source, wanted.source)
        && agree(rule.source_port, wanted.source_port)
        && agree(rule.destination, wanted.destination)
        && agree(rule.destination_port, wanted.destination_port)
}

fn describe(flow: &Flow) -> String {
    let Flow {
        local,
        peer,
        peer_port,
    } = flow;
    match (peer, peer_port) {
        (Some(peer), Some(port)) => {
            let from = std::net::SocketAddr::new(*peer, *port);
            format!("TCP from {from} to {}", local.ip())
        }
        (Some(peer), None) => format!("TCP from {peer} to {local}"),
        (None, _) => format!("TCP to {local}"),
    }
}
