//! A NIC in memory that imitates the behaviour of real drivers.

use std::sync::{Arc, Mutex, MutexGuard};

use devmem_uapi::{Errno, IfIndex};

use super::control::NicControl;
use crate::errors::{Facts, Operation, cause};
use crate::ethtool::{
    DataSplit, EthtoolError, Feature, InstalledRule, NTUPLE, Rings, RingsChange, RssContext,
    RuleAction, TcpFlow,
};
use crate::netdev::{KernelRxQueueId, LeaseError, QueueUser};
use crate::netif::NewNetkit;

/// The settings, which restoring must bring back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) features: Vec<Feature>,
    pub(super) split: Option<DataSplit>,
    pub(super) thresh: Option<u32>,
    pub(super) table: Vec<u32>,
    /// The table is the driver's default and follows the number of queues.
    pub(super) table_is_drivers: bool,
    pub(super) contexts: Vec<RssContext>,
    pub(super) rules: Vec<InstalledRule>,
    /// By index and name.
    pub(super) netkits: Vec<(u32, String)>,
}

/// Behaviour of a driver.
#[derive(Clone, Debug)]
pub(super) struct Ways {
    pub(super) driver: &'static str,
    /// The state that "auto" selects.
    pub(super) split_by_default: DataSplit,
    /// bnxt: an explicit "off" is refused.
    pub(super) refuses_split_off: bool,
    /// A ring change re-opens the NIC, which resets a table that was set explicitly.
    pub(super) reopening_forgets_table: bool,
    pub(super) has_contexts: bool,
    /// Rules can steer to a context.
    pub(super) rules_take_contexts: bool,
    /// Switching a feature resets header split and its threshold.
    pub(super) feature_resets_thresh: Option<u32>,
    /// Whether the NIC can match a rule.
    pub(super) can_match: fn(&TcpFlow) -> bool,
    /// The kernel accepts requests to switch a feature, without effect.
    pub(super) features_stuck: bool,
    /// The kernel can lease queues.
    pub(super) can_lease: bool,
}

/// When this handle stops working, as after a crash of its process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Crash {
    Never,
    /// Just before the n-th change.
    Before(usize),
    /// Just after it, before its result is returned.
    After(usize),
}

#[derive(Debug)]
pub(super) struct ModelNic {
    pub(super) settings: Settings,
    pub(super) ways: Ways,
    pub(super) queues: Vec<(KernelRxQueueId, Option<QueueUser>)>,
    pub(super) xdp: bool,
    pub(super) gone: bool,
}

/// A handle of the NIC. All handles refer to the same NIC, as those of several processes do.
#[derive(Clone, Debug)]
pub(super) struct Model {
    pub(super) nic: Arc<Mutex<ModelNic>>,
    pub(super) crash: Crash,
    pub(super) fails_at: Option<usize>,
    changes: usize,
    dead: bool,
}

pub(super) fn feature(name: &str, active: bool) -> Feature {
    Feature {
        name: name.to_owned(),
        changeable: true,
        wanted: active,
        active,
        fixed: false,
    }
}

impl Model {
    /// A NIC with 16 queues and default settings: header split by the driver's choice, rules off, RSS over all queues.
    pub(super) fn new() -> Self {
        let queues = 16;
        let nic = ModelNic {
            settings: Settings {
                features: vec![feature(NTUPLE, false), feature("rx-gro-hw", false)],
                split: None,
                thresh: Some(256),
                table: (0..128).map(|i| i % queues).collect(),
                table_is_drivers: true,
                contexts: Vec::new(),
                rules: Vec::new(),
                netkits: Vec::new(),
            },
            ways: Ways {
                driver: "bnxt_en",
                split_by_default: DataSplit::Disabled,
                refuses_split_off: false,
                reopening_forgets_table: false,
                has_contexts: true,
                rules_take_contexts: true,
                feature_resets_thresh: None,
                can_match: |_| true,
                features_stuck: false,
                can_lease: true,
            },
            queues: (0..queues).map(|id| (KernelRxQueueId(id), None)).collect(),
            xdp: false,
            gone: false,
        };
        Self {
            nic: Arc::new(Mutex::new(nic)),
            crash: Crash::Never,
            fails_at: None,
            changes: 0,
            dead: false,
        }
    }

    /// A handle of another process.
    pub(super) fn other_process(&self) -> Self {
        Self {
            nic: Arc::clone(&self.nic),
            crash: Crash::Never,
            fails_at: None,
            changes: 0,
            dead: false,
        }
    }

    pub(super) fn nic(&self) -> MutexGuard<'_, ModelNic> {
        self.nic.lock().unwrap()
    }

    pub(super) fn settings(&self) -> Settings {
        self.nic().settings.clone()
    }

    fn read<T>(&self, read: impl FnOnce(&ModelNic) -> Result<T, Errno>) -> Result<T, EthtoolError> {
        if self.dead {
            return Err(error(Errno::EIO));
        }
        let nic = self.nic();
        if nic.gone {
            return Err(error(Errno::ENODEV));
        }
        read(&nic).map_err(error)
    }

    fn change<T>(
        &mut self,
        change: impl FnOnce(&mut ModelNic) -> Result<T, Errno>,
    ) -> Result<T, EthtoolError> {
        self.changes += 1;
        self.dead |= self.crash == Crash::Before(self.changes);
        if self.dead {
            return Err(error(Errno::EIO));
        }
        if self.fails_at == Some(self.changes) {
            return Err(error(Errno::EIO));
        }
        let mut nic = self.nic();
        if nic.gone {
            return Err(error(Errno::ENODEV));
        }
        let changed = change(&mut nic);
        drop(nic);
        self.dead |= self.crash == Crash::After(self.changes);
        if self.dead {
            return Err(error(Errno::EIO));
        }
        changed.map_err(error)
    }
}

fn error(errno: Errno) -> EthtoolError {
    EthtoolError::Ioctl {
        what: "change the model".to_owned(),
        errno,
    }
}

impl NicControl for Model {
    fn name(&self) -> &str {
        "model0"
    }

    fn index(&self) -> IfIndex {
        IfIndex(7)
    }

    fn driver(&mut self) -> Option<String> {
        Some(self.nic().ways.driver.to_owned())
    }

    fn has_xdp_program(&mut self) -> bool {
        self.nic().xdp
    }

    fn rx_queues(&mut self) -> Result<Vec<(KernelRxQueueId, Option<QueueUser>)>, EthtoolError> {
        self.read(|nic| Ok(nic.queues.clone()))
    }

    fn feature(&mut self, name: &str) -> Result<Option<Feature>, EthtoolError> {
        self.read(|nic| {
            Ok(nic
                .settings
                .features
                .iter()
                .find(|f| f.name == name)
                .cloned())
        })
    }

    fn set_feature(&mut self, name: &str, on: bool) -> Result<(), EthtoolError> {
        self.change(|nic| {
            let stuck = nic.ways.features_stuck;
            let feature = nic.settings.features.iter_mut().find(|f| f.name == name);
            let feature = feature.ok_or(Errno::EOPNOTSUPP)?;
            feature.wanted = on;
            feature.active = on && !stuck;
            if let Some(thresh) = nic.ways.feature_resets_thresh {
                nic.settings.thresh = Some(thresh);
            }
            if name == NTUPLE && !on {
                nic.settings.rules.clear();
            }
            Ok(())
        })
    }

    fn rings(&mut self) -> Result<Rings, EthtoolError> {
        self.read(|nic| {
            let split = nic.settings.split.unwrap_or(nic.ways.split_by_default);
            Ok(Rings {
                data_split: Some(split).filter(|_| nic.ways.driver != "veth"),
                hds_thresh: nic.settings.thresh,
                ..Rings::default()
            })
        })
    }

    fn set_rings(&mut self, change: RingsChange) -> Result<(), EthtoolError> {
        self.change(|nic| {
            match change.data_split {
                Some(DataSplit::Disabled) if nic.ways.refuses_split_off => {
                    return Err(Errno::EOPNOTSUPP);
                }
                Some(DataSplit::Unknown) => nic.settings.split = None,
                Some(split) => nic.settings.split = Some(split),
                None => {}
            }
            if change.hds_thresh.is_some() && nic.settings.thresh.is_none() {
                return Err(Errno::EINVAL);
            }
            nic.settings.thresh = change.hds_thresh.or(nic.settings.thresh);
            if nic.ways.reopening_forgets_table {
                let queues = u32::try_from(nic.queues.len()).unwrap();
                nic.settings.table = (0..128).map(|i| i % queues).collect();
                nic.settings.table_is_drivers = true;
            }
            Ok(())
        })
    }

    fn rss(&mut self) -> Result<RssContext, EthtoolError> {
        self.read(|nic| {
            Ok(RssContext {
                context: 0,
                table: nic.settings.table.clone(),
                key: Vec::new(),
            })
        })
    }

    fn set_rss_table(&mut self, table: &[u32]) -> Result<(), EthtoolError> {
        self.change(|nic| {
            let known = |queue: &u32| (*queue as usize) < nic.queues.len();
            if table.len() != nic.settings.table.len() || !table.iter().all(known) {
                return Err(Errno::EINVAL);
            }
            nic.settings.table = table.to_vec();
            nic.settings.table_is_drivers = false;
            Ok(())
        })
    }

    fn reset_rss_table(&mut self) -> Result<(), EthtoolError> {
        self.change(|nic| {
            let queues = u32::try_from(nic.queues.len()).unwrap();
            nic.settings.table = (0..128).map(|i| i % queues).collect();
            nic.settings.table_is_drivers = true;
            Ok(())
        })
    }

    fn rss_contexts(&mut self) -> Result<Vec<RssContext>, EthtoolError> {
        self.read(|nic| Ok(nic.settings.contexts.clone()))
    }

    fn create_rss_context(&mut self, table: &[u32]) -> Result<u32, EthtoolError> {
        self.change(|nic| {
            if !nic.ways.has_contexts {
                return Err(Errno::EOPNOTSUPP);
            }
            let used = |id: &u32| nic.settings.contexts.iter().any(|c| c.context == *id);
            let context = (1..).find(|id| !used(id)).unwrap();
            nic.settings.contexts.push(RssContext {
                context,
                table: table.to_vec(),
                key: Vec::new(),
            });
            Ok(context)
        })
    }

    fn delete_rss_context(&mut self, context: u32) -> Result<(), EthtoolError> {
        self.change(|nic| {
            let uses = |rule: &InstalledRule| {
                matches!(rule.action, RuleAction::Context { context: c, .. } if c == context)
            };
            if nic.settings.rules.iter().any(uses) {
                return Err(Errno::EBUSY);
            }
            let before = nic.settings.contexts.len();
            nic.settings.contexts.retain(|c| c.context != context);
            match nic.settings.contexts.len() < before {
                true => Ok(()),
                false => Err(Errno::ENOENT),
            }
        })
    }

    fn rules(&mut self) -> Result<Vec<InstalledRule>, EthtoolError> {
        self.read(|nic| Ok(nic.settings.rules.clone()))
    }

    fn insert_rule(&mut self, flow: &TcpFlow, action: RuleAction) -> Result<u32, EthtoolError> {
        self.change(|nic| {
            let on = |f: &Feature| f.name == NTUPLE && f.active;
            if !nic.settings.features.iter().any(on) || !(nic.ways.can_match)(flow) {
                return Err(Errno::EOPNOTSUPP);
            }
            let spreads = matches!(action, RuleAction::Context { .. });
            if spreads && !nic.ways.rules_take_contexts {
                return Err(Errno::EINVAL);
            }
            let used = |at: &u32| nic.settings.rules.iter().any(|rule| rule.location == *at);
            let location = (0..64).rev().find(|at| !used(at)).ok_or(Errno::ENOSPC)?;
            nic.settings.rules.push(InstalledRule {
                location,
                flow: Some(*flow),
                action,
            });
            Ok(location)
        })
    }

    fn delete_rule(&mut self, location: u32) -> Result<(), EthtoolError> {
        self.change(|nic| {
            let before = nic.settings.rules.len();
            nic.settings.rules.retain(|rule| rule.location != location);
            match nic.settings.rules.len() < before {
                true => Ok(()),
                false => Err(Errno::ENOENT),
            }
        })
    }

    fn can_lease(&mut self) -> bool {
        self.nic().ways.can_lease
    }

    fn netkits(&mut self) -> Result<Vec<(u32, String)>, EthtoolError> {
        self.read(|nic| Ok(nic.settings.netkits.clone()))
    }

    fn make_netkit(&mut self, new: &NewNetkit<'_>) -> Result<u32, EthtoolError> {
        self.change(|nic| {
            let netkits = &mut nic.settings.netkits;
            if netkits.iter().any(|(_, name)| name == new.name) {
                return Err(Errno::EEXIST);
            }
            let index = 100 + u32::try_from(netkits.len()).unwrap();
            netkits.push((index, new.name.to_owned()));
            Ok(index)
        })
    }

    fn remove_netkit(&mut self, index: u32) -> Result<(), EthtoolError> {
        self.change(|nic| {
            nic.settings.netkits.retain(|(found, _)| *found != index);
            for (_, user) in &mut nic.queues {
                user.take_if(|user| matches!(user, QueueUser::Lease(_)));
            }
            Ok(())
        })
    }

    fn lease(&mut self, queue: KernelRxQueueId, peer: &str) -> Result<KernelRxQueueId, LeaseError> {
        let leased = self.change(|nic| {
            let are_leased = |user: &Option<QueueUser>| matches!(user, Some(QueueUser::Lease(_)));
            let before = nic.queues.iter().filter(|(_, user)| are_leased(user));
            let number = 1 + u32::try_from(before.count()).unwrap();
            let found = nic.queues.iter_mut().find(|(id, _)| *id == queue);
            match found {
                Some((_, user @ None)) => *user = Some(QueueUser::Lease(None)),
                Some((_, Some(_))) => return Err(Errno::EBUSY),
                None => return Err(Errno::ERANGE),
            }
            Ok(KernelRxQueueId(number))
        });
        leased.map_err(|refused| {
            let errno = refused.errno().unwrap_or(Errno::EIO);
            LeaseError {
                interface: "model0".to_owned(),
                queue,
                to: peer.to_owned(),
                errno,
                kernel: None,
                cause: Box::new(cause(Operation::Lease, errno, &Facts::default())),
            }
        })
    }
}
