//! The current settings of a NIC: missing features, unused queues, and the changes to make.

pub(super) mod configured;

use super::control::NicControl;
use super::plan::{PlanError, Step, rules_for};
use super::request::{Flow, NewLease, QueueChoice};
use crate::drivers::known_driver;
use crate::ethtool::{EthtoolError, Feature, InstalledRule, NTUPLE, Rings, RssContext, RuleAction};
use crate::netdev::{KernelRxQueueId, QueueUser};

/// The current settings of a NIC; `None` for those that the driver does not support.
pub(super) struct Reading {
    driver: Option<String>,
    xdp: bool,
    queues: Vec<(KernelRxQueueId, Option<QueueUser>)>,
    ntuple: Option<Feature>,
    /// A feature that this driver requires for header split.
    split_needs: Option<Feature>,
    rings: Option<Rings>,
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
    pub(super) fn of(nic: &mut dyn NicControl) -> Result<Self, EthtoolError> {
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
            // Only needed for warnings, so that a kernel without a list of contexts is no obstacle.
            contexts: nic.rss_contexts().unwrap_or_default(),
            rules: if_supported(nic.rules())?,
        })
    }

    pub(super) fn refuse_what_is_missing(&self, interface: &str) -> Result<(), PlanError> {
        let mut missing = Vec::new();
        if self.rings.and_then(|rings| rings.data_split).is_none() {
            missing.push("it does not support header split (tcp-data-split)".to_owned());
        }
        let ntuple = self.ntuple.as_ref();
        if !ntuple.is_some_and(|f| f.active || f.changeable) || self.rules.is_none() {
            missing.push("it does not support flow rules (ntuple)".to_owned());
        }
        if self.xdp {
            missing.push(format!(
                "an XDP program is attached; `ip link set {interface} xdp off` removes it"
            ));
        }
        if self.queues.is_empty() {
            missing.push(format!(
                "it is down; `ip link set {interface} up` creates its queues"
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

    pub(super) fn choose_queues(
        &self,
        interface: &str,
        choice: &QueueChoice,
    ) -> Result<Vec<KernelRxQueueId>, PlanError> {
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
                let bad = |queue: KernelRxQueueId, why: String| PlanError::BadQueue {
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
                            let why =
                                "receives all packets that are not steered, and cannot be used";
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
                    [] => Err(bad(KernelRxQueueId(0), "no queue was requested".to_owned())),
                    _ => Ok(chosen),
                }
            }
        }
    }

    pub(super) fn steps(
        &self,
        queues: &[KernelRxQueueId],
        flows: &[Flow],
        leases: &[NewLease],
    ) -> Result<Vec<Step>, PlanError> {
        let mut steps = self.settings(queues);
        for tenant in tenants(queues, flows, leases) {
            self.add_tenant(&tenant, &mut steps)?;
        }
        Ok(steps)
    }

    /// Returns the steps for the settings of the whole NIC.
    fn settings(&self, queues: &[KernelRxQueueId]) -> Vec<Step> {
        let mut steps = Vec::new();
        // The table is recorded first, even if it needs no change, so that it is restored last: a ring change makes some
        // drivers forget it.
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
        // Set even if it reads "on": a driver that always splits reports "on", but a binding requires an explicit request.
        if let Some(rings) = self.rings
            && let Some(before) = rings.data_split
        {
            steps.push(Step::Split {
                before,
                thresh_before: rings.hds_thresh,
            });
        }
        steps
    }

    /// Adds the steps for the flows of a tenant, and for its lease.
    fn add_tenant(&self, tenant: &Tenant<'_>, steps: &mut Vec<Step>) -> Result<(), PlanError> {
        let Tenant {
            queues,
            flows,
            lease,
        } = *tenant;
        let entries = self.rss.as_ref().map_or(0, |rss| rss.table.len());
        let spread = queues.len() > 1 && entries > 0 && !flows.is_empty();
        if spread {
            steps.push(Step::Context {
                table: queues.iter().map(|q| q.0).cycle().take(entries).collect(),
            });
        }
        for (flow, queue) in flows.iter().zip(queues.iter().cycle()) {
            steps.push(Step::Steer {
                rules: rules_for(flow)?,
                spread,
                queue: *queue,
            });
        }
        steps.extend(lease.map(|NewLease { netkit, peer, .. }| Step::Lease {
            netkit: netkit.clone(),
            peer: peer.clone(),
            queues: queues.to_vec(),
        }));
        Ok(())
    }

    /// Replaces the entries for `queues` by the other queues of the table, in turn. Other entries stay.
    fn table_without(&self, table: &[u32], queues: &[KernelRxQueueId]) -> Vec<u32> {
        let ours = |queue: &u32| queues.contains(&KernelRxQueueId(*queue));
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
        // Queue 0 is never prepared, so there is at least one other queue.
        let mut next = others.iter().copied().cycle();
        let replaced = table.iter().map(|queue| match ours(queue) {
            true => next.next().unwrap_or(0),
            false => *queue,
        });
        replaced.collect()
    }

    pub(super) fn warnings(&self, interface: &str, queues: &[KernelRxQueueId]) -> Vec<String> {
        let mut warnings = Vec::new();
        for context in &self.contexts {
            if let Some(queue) = queues.iter().find(|queue| context.uses(queue.0)) {
                warnings.push(format!(
                    "RSS context {} of {interface} also steers to queue {queue}",
                    context.context
                ));
            }
        }
        for rule in self.rules.iter().flatten() {
            if let RuleAction::Queue(queue) = rule.action
                && queues.contains(&queue)
            {
                warnings.push(format!(
                    "flow rule {} of {interface} also steers to queue {queue}",
                    rule.location
                ));
            }
        }
        let known = self.driver.as_deref().and_then(known_driver);
        if known.is_none_or(|known| !known.rx.exists()) {
            warnings.push(format!(
                "{} is not known to support device memory; the kernel decides",
                self.driver.as_deref().unwrap_or("the driver")
            ));
        }
        warnings
    }
}

/// Some of the queues, and the flows to them: for this process, or leased to a pod.
#[derive(Clone, Copy)]
struct Tenant<'a> {
    queues: &'a [KernelRxQueueId],
    flows: &'a [Flow],
    lease: Option<&'a NewLease>,
}

/// Divides the queues: among the leases in their order, or all to this process.
fn tenants<'a>(
    queues: &'a [KernelRxQueueId],
    flows: &'a [Flow],
    leases: &'a [NewLease],
) -> Vec<Tenant<'a>> {
    if leases.is_empty() {
        return vec![Tenant {
            queues,
            flows,
            lease: None,
        }];
    }
    let mut rest = queues;
    let mut tenants = Vec::new();
    for lease in leases {
        let count = usize::try_from(lease.queues).unwrap_or(usize::MAX);
        let (queues, others) = rest.split_at(count.min(rest.len()));
        rest = others;
        tenants.push(Tenant {
            queues,
            flows: &lease.flows,
            lease: Some(lease),
        });
    }
    tenants
}
