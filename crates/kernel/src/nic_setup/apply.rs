//! Applying the changes one by one, each written to the state file first.

use std::mem;

use devmem_uapi::Errno;
use devmem_uapi::text::Printable;

use super::plan::{PlanError, SetupPlan, Step, rules_for};
use super::request::{Flow, LeasedQueue};
use super::restore::{RestoreReport, take_back};
use super::setup::{Drift, NicSetup};
use super::state::StateError;
use super::undo::Undo;
use crate::ethtool::{DataSplit, EthtoolError, Rings, RingsChange, RuleAction, TcpFlow};
use crate::netdev::{KernelRxQueueId, LeaseError};
use crate::netif::NewNetkit;

/// Why a NIC could not be set up. The changes made before the error were undone; see `restored`.
#[derive(Debug, thiserror::Error)]
#[error("prepare {interface}: {why}", interface = Printable(.interface))]
pub struct ApplyError {
    /// The interface.
    pub interface: String,
    /// The error.
    pub why: Box<StepError>,
    /// The report of undoing the earlier changes.
    pub restored: RestoreReport,
}

/// Why one change could not be made.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// The kernel refused it.
    #[error(transparent)]
    Refused(#[from] EthtoolError),
    /// The kernel accepted it, but it had no effect.
    #[error("it was accepted without effect: {0}")]
    NoEffect(Drift),
    /// It could not be written to the state file, so it was not made.
    #[error(transparent)]
    State(#[from] StateError),
    /// The flow cannot be steered.
    #[error(transparent)]
    Flow(#[from] PlanError),
    /// There is a netkit of this name already.
    #[error("there is a netkit {name} already")]
    NetkitExists {
        /// Its name.
        name: String,
    },
    /// The kernel did not lease a queue.
    #[error(transparent)]
    Lease(#[from] LeaseError),
    /// None of the flow rules was accepted.
    #[error("none of {tried} flow rules was accepted{}", last_words(.last))]
    NoRule {
        /// Number of rules tried.
        tried: usize,
        /// The kernel's error for the last, the widest rule.
        last: Option<EthtoolError>,
    },
}

fn last_words(last: &Option<EthtoolError>) -> String {
    last.as_ref()
        .map_or_else(String::new, |error| format!(", the last: {error}"))
}

impl SetupPlan {
    /// Makes the changes and reads them back.
    ///
    /// # Errors
    ///
    /// The change that failed; the changes before it were undone.
    pub fn apply(self) -> Result<NicSetup, ApplyError> {
        let Self {
            nic,
            state,
            queues,
            steps,
            ..
        } = self;
        let state = match state {
            Ok(state) => state,
            Err(why) => {
                return Err(ApplyError {
                    interface: nic.name().to_owned(),
                    why: Box::new(why.into()),
                    restored: RestoreReport::default(),
                });
            }
        };
        let mut setup = NicSetup {
            nic,
            state,
            queues,
            context: None,
            leases: Vec::new(),
            undo: Vec::new(),
        };
        match setup.take(steps) {
            Ok(()) => Ok(setup),
            Err(why) => Err(ApplyError {
                interface: setup.interface().to_owned(),
                why: Box::new(why),
                restored: setup.restore(),
            }),
        }
    }
}

impl NicSetup {
    fn take(&mut self, steps: Vec<Step>) -> Result<(), StepError> {
        for step in steps {
            self.step(step)?;
        }
        match self.verify()?.into_iter().next() {
            Some(drift) => Err(StepError::NoEffect(drift)),
            None => Ok(()),
        }
    }

    fn step(&mut self, step: Step) -> Result<(), StepError> {
        match step {
            Step::Feature { name } => self.switch_on(name),
            Step::Split {
                before,
                thresh_before,
            } => self.split(before, thresh_before),
            Step::RssAway { before, table } => self.rss_away(before, table),
            Step::Context { table } => self.make_context(table),
            Step::Steer {
                rules,
                spread,
                queue,
            } => self.add_rule(&rules, self.context.filter(|_| spread), queue),
            Step::Lease {
                netkit,
                peer,
                queues,
            } => self.lease(netkit, peer, queues),
        }
    }

    /// Steers one more flow to the prepared queues.
    ///
    /// # Errors
    ///
    /// If no rule for it is accepted. The set-up does not change.
    pub fn steer(&mut self, flow: &Flow) -> Result<(), StepError> {
        let rules = rules_for(flow)?;
        let steered = self.undo.iter().filter(|u| matches!(u, Undo::Rule { .. }));
        let turn = steered.count() % self.queues.len().max(1);
        let queue = self.queues.get(turn).copied();
        self.add_rule(&rules, self.context, queue.unwrap_or(KernelRxQueueId(0)))
    }

    /// Ends what [`steer`](Self::steer) has begun, by removing its rule. One that is not of this set-up stays.
    ///
    /// # Errors
    ///
    /// The kernel refuses; then restoring the settings removes the rule.
    pub fn unsteer(&mut self, flow: &Flow) -> Result<(), StepError> {
        let rules = rules_for(flow)?;
        let is_its_rule =
            |change: &Undo| matches!(change, Undo::Rule { flow, .. } if rules.contains(flow));
        let Some(at) = self.undo.iter().rposition(is_its_rule) else {
            return Ok(());
        };
        take_back(self.nic.as_mut(), &self.undo[at])?;
        self.undo.remove(at);
        Ok(self.state.write(&self.undo)?)
    }

    fn switch_on(&mut self, name: String) -> Result<(), StepError> {
        let before = self.nic.feature(&name)?.is_some_and(|f| f.wanted);
        let change = Undo::Feature {
            name: name.clone(),
            before,
        };
        self.write_down(change)?;
        Ok(self.nic.set_feature(&name, true)?)
    }

    fn split(&mut self, before: DataSplit, thresh_before: Option<u32>) -> Result<(), StepError> {
        self.write_down(Undo::Rings {
            split_before: before,
            thresh_before,
            given_back: false,
        })?;
        let change = RingsChange {
            data_split: Some(DataSplit::Enabled),
            hds_thresh: thresh_before.map(|_| 0),
            ..RingsChange::default()
        };
        self.nic.set_rings(change)?;
        self.keep_table()
    }

    /// Sets the RSS table again if the driver has forgotten it.
    pub(super) fn keep_table(&mut self) -> Result<(), StepError> {
        let tables = self.undo.iter().filter_map(|change| match change {
            Undo::RssTable { set, .. } => Some(set.clone()),
            _ => None,
        });
        for table in tables.collect::<Vec<_>>() {
            if self.nic.rss()?.table != table {
                self.nic.set_rss_table(&table)?;
            }
        }
        Ok(())
    }

    fn rss_away(&mut self, before: Vec<u32>, table: Vec<u32>) -> Result<(), StepError> {
        self.write_down(Undo::RssTable {
            before,
            set: table.clone(),
        })?;
        if self.nic.rss()?.table == table {
            return Ok(());
        }
        Ok(self.nic.set_rss_table(&table)?)
    }

    /// Creates an RSS context. Without contexts each flow is steered to one queue, which also works.
    fn make_context(&mut self, table: Vec<u32>) -> Result<(), StepError> {
        // That of an earlier tenant.
        self.context = None;
        let others = self.nic.rss_contexts().unwrap_or_default();
        let change = |context| Undo::Context {
            context,
            table: table.clone(),
            others: others.iter().map(|c| c.context).collect(),
        };
        self.write_down(change(None))?;
        match self.nic.create_rss_context(&table) {
            Ok(context) => {
                self.context = Some(context);
                self.complete(change(Some(context)))
            }
            Err(error) if cannot_match(&error) => self.strike_out(),
            Err(error) => Err(error.into()),
        }
    }

    /// Adds the narrowest rule that the NIC can match, to the RSS context if there is one and the NIC supports that.
    fn add_rule(
        &mut self,
        rules: &[TcpFlow],
        context: Option<u32>,
        queue: KernelRxQueueId,
    ) -> Result<(), StepError> {
        let spread = context.map(|context| RuleAction::Context { context, base: 0 });
        let actions = spread.into_iter().chain([RuleAction::Queue(queue)]);
        let mut last = None;
        let mut tried = 0;
        for (action, flow) in actions.flat_map(|action| rules.iter().map(move |f| (action, f))) {
            tried += 1;
            let same = |rule: &crate::ethtool::InstalledRule| {
                rule.flow == Some(*flow) && rule.action == action
            };
            if self.nic.rules()?.iter().any(same) {
                // The same rule exists already. It is not ours, so it is not removed later.
                return Ok(());
            }
            let change = |location| Undo::Rule {
                location,
                flow: *flow,
                action,
            };
            self.write_down(change(None))?;
            match self.nic.insert_rule(flow, action) {
                Ok(location) => return self.complete(change(Some(location))),
                Err(error) if cannot_match(&error) => {
                    self.strike_out()?;
                    last = Some(error);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Err(StepError::NoRule { tried, last })
    }

    /// Makes a netkit pair and leases the queues to its peer.
    fn lease(
        &mut self,
        name: String,
        peer: String,
        queues: Vec<KernelRxQueueId>,
    ) -> Result<(), StepError> {
        // One that is not ours would be removed at the end.
        if self.nic.netkits()?.iter().any(|(_, found)| *found == name) {
            return Err(StepError::NetkitExists { name });
        }
        // Its own queue, and the leased ones.
        let rx_queues = u32::try_from(queues.len())
            .unwrap_or(u32::MAX)
            .saturating_add(1);
        let change = |index| Undo::Netkit {
            name: name.clone(),
            peer: peer.clone(),
            index,
            queues: queues.clone(),
        };
        self.write_down(change(None))?;
        let new = NewNetkit {
            name: &name,
            peer: &peer,
            rx_queues,
        };
        let index = match self.nic.make_netkit(&new) {
            Ok(index) => index,
            // Another interface has the name.
            Err(refused) if refused.errno() == Some(Errno::EEXIST) => {
                self.strike_out()?;
                return Err(refused.into());
            }
            Err(refused) => return Err(refused.into()),
        };
        self.complete(change(Some(index)))?;
        for queue in &queues {
            let leased = self.nic.lease(*queue, &peer)?;
            self.leases.push(LeasedQueue {
                netkit: name.clone(),
                queue: *queue,
                leased,
            });
        }
        Ok(())
    }

    /// Writes a change to the state file, before it is made.
    fn write_down(&mut self, change: Undo) -> Result<(), StepError> {
        self.undo.push(change);
        Ok(self.state.write(&self.undo)?)
    }

    /// Adds to the last change the number that the kernel chose.
    fn complete(&mut self, change: Undo) -> Result<(), StepError> {
        if let Some(last) = self.undo.last_mut() {
            *last = change;
        }
        Ok(self.state.write(&self.undo)?)
    }

    /// Removes the last change from the state file, because it was refused.
    fn strike_out(&mut self) -> Result<(), StepError> {
        self.undo.pop();
        Ok(self.state.write(&self.undo)?)
    }

    /// Compares the NIC with its set-up. With a changed setting, data may not land in device memory. A device reset, for
    /// example, may remove flow rules.
    ///
    /// # Errors
    ///
    /// If a setting cannot be read.
    pub fn verify(&mut self) -> Result<Vec<Drift>, EthtoolError> {
        let mut drifts = Vec::new();
        let undo = mem::take(&mut self.undo);
        let checked = undo.iter().try_for_each(|change| {
            drifts.extend(self.drift_of(change)?);
            Ok(())
        });
        self.undo = undo;
        checked.map(|()| drifts)
    }

    fn drift_of(&mut self, change: &Undo) -> Result<Option<Drift>, EthtoolError> {
        let name = self.nic.name().to_owned();
        let drift = |what: String| Drift {
            what,
            command: Some(change.command(&name)),
        };
        Ok(match change {
            Undo::Feature { name: feature, .. } => {
                let on = self.nic.feature(feature)?.is_some_and(|f| f.active);
                (!on).then(|| drift(format!("feature {feature} of {name} is off")))
            }
            Undo::Rings { .. } => {
                let rings = self.nic.rings()?;
                rings_words(&rings).map(|is| drift(format!("{is} on {name}")))
            }
            Undo::RssTable { .. } => {
                let table = self.nic.rss()?;
                let ours = self.queues.iter().find(|queue| table.uses(queue.0));
                ours.map(|queue| drift(format!("the RSS table of {name} sends to queue {queue}")))
            }
            Undo::Context { context, .. } => {
                let there = match self.nic.rss_contexts() {
                    Ok(contexts) => contexts.iter().any(|c| Some(c.context) == *context),
                    // A kernel that cannot list them.
                    Err(error) if error.is_unsupported() => true,
                    Err(error) => return Err(error),
                };
                let number = context.unwrap_or_default();
                (!there).then(|| drift(format!("RSS context {number} of {name} is gone")))
            }
            Undo::Rule {
                location,
                flow,
                action,
            } => {
                let rules = self.nic.rules()?;
                let there = rules.iter().any(|rule| {
                    Some(rule.location) == *location
                        && rule.flow == Some(*flow)
                        && rule.action == *action
                });
                let number = location.unwrap_or_default();
                (!there).then(|| {
                    drift(format!(
                        "flow rule {number} of {name} is missing, as after a device reset"
                    ))
                })
            }
            Undo::Netkit {
                name: netkit,
                index,
                ..
            } => {
                let netkits = self.nic.netkits()?;
                let there = netkits.iter().any(|(found, _)| Some(*found) == *index);
                (!there).then(|| {
                    drift(format!(
                        "netkit {netkit}, which had queues of {name}, is gone, as with its pod"
                    ))
                })
            }
        })
    }
}

/// Returns what a binding needs and header split does not have, as text.
fn rings_words(rings: &Rings) -> Option<String> {
    match (rings.data_split, rings.hds_thresh) {
        (Some(DataSplit::Enabled), None | Some(0)) => None,
        (Some(DataSplit::Enabled), Some(thresh)) => Some(format!("hds-thresh is {thresh}")),
        (Some(other), _) => Some(format!("tcp-data-split is {other}")),
        (None, _) => Some("tcp-data-split is unknown".to_owned()),
    }
}

/// Returns whether a NIC refused a request as unsupported, so that a simpler one may succeed.
fn cannot_match(error: &EthtoolError) -> bool {
    let not_able = matches!(
        error.errno(),
        Some(Errno::EINVAL | Errno::EOPNOTSUPP | Errno::EPROTONOSUPPORT | Errno::ERANGE)
    );
    not_able || error.errno() == Some(Errno::ENOTTY)
}
