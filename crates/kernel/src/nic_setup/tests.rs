//! Set-up and restore of a model NIC: every quirk of a driver, every failure, a crash at every point.

mod crash;
mod flows;
mod lease;
mod real_kernel;
mod set_up;

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

use devmem_uapi::DmabufId;

use super::control::{KernelNic, NicControl};
use super::model::{Crash, Model, Settings, feature};
use super::plan::plan_for;
use super::restore::put_back_recorded;
use super::*;
use crate::ethtool::{DataSplit, InstalledRule, NTUPLE, RssContext, RuleAction, TcpFlow};
use crate::netdev::{KernelRxQueueId, QueueUser};

/// A folder for state files, removed at the end of the test.
struct Folder(
    PathBuf,
    #[expect(dead_code, reason = "removes it")] Option<tempfile::TempDir>,
);

impl Folder {
    /// A folder that does not exist yet.
    fn new() -> Self {
        let above = tempfile::tempdir().unwrap();
        Self(above.path().join("state"), Some(above))
    }

    /// The records in it, without the locks.
    fn records(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.0).unwrap().map(|e| e.unwrap().path());
        let records = entries.filter(|path| path.extension().is_some_and(|e| e == "json"));
        records.collect()
    }
}

fn flow() -> Flow {
    Flow {
        local: "10.0.0.2:5201".parse().unwrap(),
        peer: Some("10.0.0.1".parse().unwrap()),
        peer_port: None,
    }
}

fn request(folder: &Folder, queues: u32) -> SetupRequest {
    SetupRequest {
        interface: "model0".to_owned(),
        queues: QueueChoice::Count(queues),
        flows: vec![flow()],
        leases: Vec::new(),
        state_folder: Some(folder.0.clone()),
    }
}

fn plan(model: &Model, folder: &Folder, queues: u32) -> Result<SetupPlan, PlanError> {
    plan_for(Box::new(model.clone()), &request(folder, queues))
}

fn apply(model: &Model, folder: &Folder, queues: u32) -> NicSetup {
    plan(model, folder, queues).unwrap().apply().unwrap()
}

/// NICs in all states that matter: every quirk with every earlier setting that it could spoil.
fn all_kinds() -> Vec<Model> {
    let mut models = Vec::new();
    for split_by_default in [DataSplit::Disabled, DataSplit::Enabled, DataSplit::Unknown] {
        for (split, refuses_split_off) in [
            (None, true),
            (None, false),
            (Some(DataSplit::Disabled), false),
            (Some(DataSplit::Enabled), true),
        ] {
            for (own_table, forgets) in [(false, false), (false, true), (true, false), (true, true)]
            {
                for bits in 0..16u32 {
                    let model = Model::new();
                    let mut nic = model.nic();
                    nic.ways.split_by_default = split_by_default;
                    nic.ways.refuses_split_off = refuses_split_off;
                    nic.settings.split = split;
                    nic.settings.thresh = (bits & 1 != 0).then_some(256);
                    nic.ways.has_contexts = bits & 2 != 0;
                    if bits & 4 != 0 {
                        nic.ways.driver = "mlx5_core";
                    }
                    if bits & 8 != 0 {
                        nic.settings.features[0] = feature(NTUPLE, true);
                        nic.settings.rules.push(foreign_rule());
                        nic.settings.contexts.push(foreign_context());
                    }
                    if own_table {
                        nic.settings.table = (0..128).map(|i| [0, 3, 3, 15][i % 4]).collect();
                        nic.settings.table_is_drivers = false;
                    }
                    nic.ways.reopening_forgets_table = forgets;
                    drop(nic);
                    models.push(model);
                }
            }
        }
    }
    models
}

fn foreign_rule() -> InstalledRule {
    InstalledRule {
        location: 63,
        flow: Some(TcpFlow {
            ipv6: false,
            source: None,
            source_port: None,
            destination: None,
            destination_port: Some(22),
        }),
        action: RuleAction::Queue(KernelRxQueueId(2)),
    }
}

fn foreign_context() -> RssContext {
    RssContext {
        context: 1,
        table: vec![4; 128],
        key: Vec::new(),
    }
}

/// The settings that can be read and so compared: an explicit "on" reads like the driver's choice.
fn visible(model: &Model) -> Settings {
    let mut settings = model.settings();
    let by_default = model.nic().ways.split_by_default;
    settings.split = Some(settings.split.unwrap_or(by_default));
    settings
}
