//! Set-up and restore of a model NIC: every quirk of a driver, every failure, a crash at every point.

mod lease;

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

#[test]
fn a_plan_lists_its_commands_and_changes_nothing() {
    let (model, folder) = (Model::new(), Folder::new());
    let before = model.settings();
    let plan = plan(&model, &folder, 1).unwrap();
    assert_eq!(plan.queues(), [KernelRxQueueId(15)]);
    let expected = [
        "ethtool -X model0 weight 9 8 8 8 8 8 8 9 9 9 9 9 9 8 8",
        "ethtool -K model0 rx-ntuple-filter on",
        "ethtool -G model0 tcp-data-split on hds-thresh 0",
        "ethtool -N model0 flow-type tcp4 src-ip 10.0.0.1 dst-ip 10.0.0.2 dst-port 5201 action 15",
    ];
    let commands = plan.commands();
    assert_eq!(commands.len(), 4);
    for (i, (command, expected)) in commands.iter().zip(expected).enumerate() {
        // Which queues get the entries of queue 15 does not matter here.
        let command = if i == 0 { &command[..23] } else { command };
        assert_eq!(command, &expected[..command.len()]);
    }
    assert!(plan.warnings().is_empty(), "{plan:?}");
    drop(plan);
    assert_eq!(model.settings(), before);
    assert!(folder.records().is_empty());
}

#[test]
fn set_up_makes_the_settings_that_a_binding_needs() {
    let (model, folder) = (Model::new(), Folder::new());
    let mut setup = apply(&model, &folder, 1);
    let settings = model.settings();
    assert_eq!(settings.split, Some(DataSplit::Enabled));
    assert_eq!(settings.thresh, Some(0));
    assert!(!settings.table.contains(&15));
    assert!(settings.features[0].active);
    let rule = settings.rules[0];
    assert_eq!(rule.action, RuleAction::Queue(KernelRxQueueId(15)));
    assert_eq!(setup.verify().unwrap(), []);
    assert_eq!(folder.records().len(), 1);
}

#[test]
fn only_the_entries_of_the_devmem_queues_move() {
    let (model, folder) = (Model::new(), Folder::new());
    let before = model.settings().table;
    let _setup = apply(&model, &folder, 2);
    for (was, is) in before.iter().zip(model.settings().table) {
        match was {
            14 | 15 => assert!(is < 14),
            was => assert_eq!(*was, is),
        }
    }
}

#[test]
fn every_kind_of_nic_is_restored_exactly() {
    // Every seventh: 7 is coprime to the number of values of each setting, so that no value is left out.
    for (kind, model) in all_kinds().into_iter().enumerate().step_by(7) {
        for queues in [1, 2] {
            let folder = Folder::new();
            let before = visible(&model);
            let mut setup = apply(&model, &folder, queues);
            assert_eq!(setup.verify().unwrap(), [], "kind {kind}");
            let report = setup.restore();
            assert!(report.is_exact(), "kind {kind}: {report}");
            assert_eq!(visible(&model), before, "kind {kind}: {report}");
            assert!(folder.records().is_empty(), "kind {kind}");
        }
    }
}

#[test]
fn dropping_restores_too() {
    let (model, folder) = (Model::new(), Folder::new());
    let before = visible(&model);
    drop(apply(&model, &folder, 2));
    assert_eq!(visible(&model), before);
}

#[test]
fn a_failure_at_any_change_undoes_all_changes_before_it() {
    let kinds = all_kinds();
    for (kind, model) in kinds.into_iter().enumerate().step_by(23) {
        for fails_at in 1.. {
            let folder = Folder::new();
            let before = visible(&model);
            let mut failing = model.other_process();
            failing.fails_at = Some(fails_at);
            match plan(&failing, &folder, 2).unwrap().apply() {
                Ok(setup) => {
                    // All changes were made; there were at least three.
                    assert!(fails_at > 3, "kind {kind}");
                    drop(setup);
                    break;
                }
                Err(error) => {
                    assert!(
                        error.restored.is_exact(),
                        "kind {kind}: {error} {}",
                        error.restored
                    );
                    assert_eq!(visible(&model), before, "kind {kind} change {fails_at}");
                    assert!(folder.records().is_empty());
                }
            }
        }
    }
}

#[test]
fn a_crash_at_any_change_is_restored_from_the_state_file() {
    let kinds = all_kinds();
    for (kind, model) in kinds.into_iter().enumerate().step_by(41) {
        let mut deaths = 0;
        for n in 1..20 {
            for crash in [Crash::Before(n), Crash::After(n)] {
                let folder = Folder::new();
                let before = visible(&model);
                let mut doomed = model.other_process();
                doomed.crash = crash;
                // The handle refuses all calls after the crash, so that dropping the set-up restores nothing.
                if let Ok(setup) = plan(&doomed, &folder, 2).unwrap().apply() {
                    drop(setup);
                }
                for record in folder.records() {
                    deaths += 1;
                    let (state, record) = state::StateFile::take_over(&record).unwrap();
                    let alive = Box::new(model.other_process());
                    let report = put_back_recorded(alive, state, record.undo);
                    assert!(report.is_exact(), "kind {kind} {crash:?}: {report}");
                }
                assert_eq!(visible(&model), before, "kind {kind} {crash:?}");
                assert!(folder.records().is_empty());
            }
        }
        assert!(deaths > 6, "kind {kind}: {deaths}");
    }
}

#[test]
fn after_a_crash_the_interface_is_refused_until_it_is_restored() {
    let (model, folder) = (Model::new(), Folder::new());
    let mut doomed = model.other_process();
    doomed.crash = Crash::After(4);
    let error = plan(&doomed, &folder, 1).unwrap().apply().unwrap_err();
    assert!(!error.restored.failed.is_empty());
    let refused = plan(&model, &folder, 1).unwrap_err();
    let PlanError::State(StateError::Leftover { path, .. }) = refused else {
        panic!("{refused}");
    };
    let (state, record) = state::StateFile::take_over(&path).unwrap();
    assert!(put_back_recorded(Box::new(model.clone()), state, record.undo).is_exact());
    drop(plan(&model, &folder, 1).unwrap());
}

#[test]
fn an_interface_that_a_living_process_has_prepared_is_refused() {
    let (model, folder) = (Model::new(), Folder::new());
    let setup = apply(&model, &folder, 1);
    let refused = plan(&model, &folder, 1).unwrap_err();
    let PlanError::State(StateError::Busy { pid, .. }) = refused else {
        panic!("{refused}");
    };
    assert_eq!(pid, Some(std::process::id()));
    let refused = state::StateFile::take_over(setup.state_file()).unwrap_err();
    assert!(matches!(refused, StateError::Busy { .. }), "{refused}");
    drop(setup);
    drop(plan(&model, &folder, 1).unwrap());
}

#[test]
fn settings_that_another_program_changed_meanwhile_are_left_alone() {
    let (model, folder) = (Model::new(), Folder::new());
    let setup = apply(&model, &folder, 1);
    {
        let mut nic = model.nic();
        nic.settings.table = vec![1; 128];
        nic.settings.thresh = Some(64);
        nic.settings.rules[0].action = RuleAction::Queue(KernelRxQueueId(3));
    }
    let changed = model.settings();
    let report = setup.restore();
    // The feature too: switching it off would remove the rule of the other program.
    assert_eq!(report.left.len(), 4, "{report}");
    assert!(report.failed.is_empty() && !report.is_exact());
    assert_eq!(model.settings(), changed);
    assert!(folder.records().is_empty());
}

#[test]
fn an_interface_that_was_removed_needs_no_restoring() {
    let (model, folder) = (Model::new(), Folder::new());
    let setup = apply(&model, &folder, 1);
    model.nic().gone = true;
    let report = setup.restore();
    assert!(report.failed.is_empty(), "{report}");
    assert!(folder.records().is_empty());
}

#[test]
fn a_restore_that_fails_keeps_its_record_for_another_try() {
    let (model, folder) = (Model::new(), Folder::new());
    let before = visible(&model);
    let mut flaky = model.other_process();
    // Four changes set it up; the fifth removes the rule.
    flaky.fails_at = Some(5);
    let report = plan(&flaky, &folder, 1).unwrap().apply().unwrap().restore();
    assert_eq!(report.failed.len(), 1, "{report}");
    let record = folder.records().remove(0);
    let (state, record) = state::StateFile::take_over(&record).unwrap();
    assert_eq!(record.undo.len(), 1);
    assert!(put_back_recorded(Box::new(model.clone()), state, record.undo).is_exact());
    let mut after = visible(&model);
    // ntuple was left on: the rule that could not be removed was still there.
    after.features[0] = before.features[0].clone();
    assert_eq!(after, before);
}

#[test]
fn a_setting_that_is_lost_by_restoring_another_is_put_back_again() {
    let (model, folder) = (Model::new(), Folder::new());
    model.nic().ways.feature_resets_thresh = Some(512);
    let before = visible(&model);
    let report = apply(&model, &folder, 1).restore();
    assert!(report.is_exact(), "{report}");
    assert_eq!(visible(&model), before, "{report}");
}

#[test]
fn a_nic_that_cannot_match_narrow_rules_gets_a_wider_one() {
    let (model, folder) = (Model::new(), Folder::new());
    model.nic().ways.can_match = |flow| flow.source.is_none();
    let _setup = apply(&model, &folder, 1);
    let installed = model.settings().rules[0].flow.unwrap();
    assert_eq!(
        installed.to_string(),
        "flow-type tcp4 dst-ip 10.0.0.2 dst-port 5201"
    );
}

#[test]
fn a_nic_that_accepts_no_rule_is_left_unchanged() {
    let (model, folder) = (Model::new(), Folder::new());
    model.nic().ways.can_match = |_| false;
    let before = visible(&model);
    let error = plan(&model, &folder, 1).unwrap().apply().unwrap_err();
    assert!(
        matches!(*error.why, apply::StepError::NoRule { tried: 3, .. }),
        "{error}"
    );
    assert_eq!(visible(&model), before);
}

#[test]
fn several_queues_share_a_flow_through_a_context() {
    let (model, folder) = (Model::new(), Folder::new());
    let _setup = apply(&model, &folder, 2);
    let settings = model.settings();
    assert_eq!(settings.contexts[0].table[..4], [14, 15, 14, 15]);
    let expected = RuleAction::Context {
        context: 1,
        base: 0,
    };
    assert_eq!(settings.rules[0].action, expected);
}

#[test]
fn without_contexts_flows_take_turns_on_the_queues() {
    let (model, folder) = (Model::new(), Folder::new());
    model.nic().ways.has_contexts = false;
    let mut request = request(&folder, 2);
    request
        .flows
        .push(Flow::to("[fd77::2]:5202".parse().unwrap()));
    let plan = plan_for(Box::new(model.clone()), &request).unwrap();
    let mut setup = plan.apply().unwrap();
    setup
        .steer(&Flow::to("10.0.0.2:5203".parse().unwrap()))
        .unwrap();
    let rules = model.settings().rules;
    let actions: Vec<_> = rules.iter().map(|r| r.action).collect();
    let queue = |q| RuleAction::Queue(KernelRxQueueId(q));
    assert_eq!(actions, [queue(14), queue(15), queue(14)]);
    let locations = setup.rule_locations();
    assert_eq!(locations.len(), 3);
    assert!(rules.iter().all(|r| locations.contains(&r.location)));
}

#[test]
fn a_flow_is_steered_for_a_while() {
    let (model, folder) = (Model::new(), Folder::new());
    let plan = plan_for(Box::new(model.clone()), &request(&folder, 1)).unwrap();
    let mut setup = plan.apply().unwrap();
    let before = model.settings();
    let flow = Flow {
        peer: Some("10.0.0.9".parse().unwrap()),
        peer_port: Some(7000),
        ..Flow::to("0.0.0.0:0".parse().unwrap())
    };
    setup.steer(&flow).unwrap();
    assert_eq!(model.settings().rules.len(), before.rules.len() + 1);
    setup.unsteer(&flow).unwrap();
    assert_eq!(model.settings(), before);
    // There is nothing left to end.
    setup.unsteer(&flow).unwrap();
    assert!(setup.restore().is_exact());
}

#[test]
fn a_nic_whose_rules_cannot_name_a_context_steers_to_one_queue() {
    let (model, folder) = (Model::new(), Folder::new());
    model.nic().ways.rules_take_contexts = false;
    let before = visible(&model);
    let setup = apply(&model, &folder, 2);
    let rule = model.settings().rules[0];
    assert_eq!(rule.action, RuleAction::Queue(KernelRxQueueId(14)));
    assert_eq!(
        rule.flow.unwrap().source,
        flow().peer,
        "the rule is still the narrowest"
    );
    assert!(setup.restore().is_exact());
    assert_eq!(visible(&model), before);
}

#[test]
fn a_rule_that_existed_before_is_not_removed() {
    let (model, folder) = (Model::new(), Folder::new());
    {
        let mut nic = model.nic();
        nic.settings.features[0] = feature(NTUPLE, true);
        let flow = plan::rules_for(&flow()).unwrap()[0];
        nic.settings.rules.push(InstalledRule {
            location: 5,
            flow: Some(flow),
            action: RuleAction::Queue(KernelRxQueueId(15)),
        });
    }
    let before = visible(&model);
    let plan = plan(&model, &folder, 1).unwrap();
    assert_eq!(
        plan.warnings(),
        ["flow rule 5 of model0 also steers to queue 15"]
    );
    let setup = plan.apply().unwrap();
    assert_eq!(model.settings().rules.len(), 1);
    drop(setup);
    assert_eq!(visible(&model), before);
}

#[test]
fn a_child_by_fork_restores_nothing_and_leaves_the_state_file_and_its_lock() {
    let (model, folder) = (Model::new(), Folder::new());
    let before = model.nic().settings.clone();
    let mut setup = Some(apply(&model, &folder, 1));
    let made = model.nic().settings.clone();
    let left = crate::sys::child::test_in_child(|| {
        // The model is a copy, too, which shows what the drop does.
        drop(setup.take());
        match model.nic().settings == made {
            true => Ok(()),
            false => Err(rustix::io::Errno::BUSY),
        }
    });
    assert_eq!(left, Ok(()));
    assert_eq!(folder.records().len(), 1);
    // The interface is still claimed.
    assert!(super::state::is_owned(&folder.records()[0]).unwrap());
    drop(setup.take());
    assert_eq!(model.nic().settings, before);
    assert!(folder.records().is_empty());
}

#[test]
fn verify_names_the_settings_that_a_device_reset_removed() {
    let (model, folder) = (Model::new(), Folder::new());
    let mut setup = apply(&model, &folder, 1);
    {
        let mut nic = model.nic();
        nic.settings.rules.clear();
        nic.settings.table[0] = 15;
        nic.settings.split = None;
    }
    let drifts: Vec<_> = setup
        .verify()
        .unwrap()
        .iter()
        .map(Drift::to_string)
        .collect();
    let expected = [
        "the RSS table of model0 sends to queue 15",
        "tcp-data-split is off on model0",
        "flow rule 63 of model0 is missing, as after a device reset",
    ];
    assert_eq!(drifts, expected);
}

#[test]
fn a_feature_that_stays_off_is_noticed_and_undone() {
    let (model, folder) = (Model::new(), Folder::new());
    {
        let mut nic = model.nic();
        nic.ways.driver = "mlx5_core";
        nic.ways.features_stuck = true;
        nic.settings.features[0] = feature(NTUPLE, true);
    }
    let before = visible(&model);
    let error = plan(&model, &folder, 1).unwrap().apply().unwrap_err();
    assert!(
        error.to_string().contains("rx-gro-hw of model0 is off"),
        "{error}"
    );
    assert_eq!(visible(&model), before);
}

#[test]
fn a_nic_without_the_features_is_refused_and_all_missing_features_are_named() {
    let (model, folder) = (Model::new(), Folder::new());
    {
        let mut nic = model.nic();
        nic.ways.driver = "veth";
        nic.settings.features.clear();
        nic.xdp = true;
        nic.queues.clear();
    }
    let refused = plan(&model, &folder, 1).unwrap_err();
    let PlanError::Unsupported { missing, .. } = &refused else {
        panic!("{refused}");
    };
    assert_eq!(missing.len(), 4, "{missing:?}");
    assert!(
        refused
            .to_string()
            .starts_with("model0 (veth) cannot be prepared: ")
    );
}

#[test]
fn queue_0_and_queues_in_use_are_never_taken() {
    let (model, folder) = (Model::new(), Folder::new());
    model.nic().queues[15].1 = Some(QueueUser::Dmabuf(DmabufId(3)));
    assert_eq!(
        plan(&model, &folder, 1).unwrap().queues(),
        [KernelRxQueueId(14)]
    );
    let refused = plan(&model, &folder, 15).unwrap_err().to_string();
    assert!(
        refused.contains("14 unused RX queues, 15 are needed"),
        "{refused}"
    );
    assert!(
        refused.contains("queue 15 is used by dma-buf 3"),
        "{refused}"
    );
    for queue in [0, 15, 16] {
        let mut request = request(&folder, 1);
        request.queues = QueueChoice::These(vec![KernelRxQueueId(queue)]);
        let refused = plan_for(Box::new(model.clone()), &request).unwrap_err();
        assert!(matches!(refused, PlanError::BadQueue { .. }), "{refused}");
    }
    model.nic().queues.truncate(1);
    let refused = plan(&model, &folder, 1).unwrap_err();
    assert!(matches!(
        refused,
        PlanError::NotEnoughQueues { free: 0, .. }
    ));
}

#[test]
fn the_rules_of_a_flow_are_sorted_from_narrow_to_wide() {
    let rules = |flow: &Flow| {
        let rules = plan::rules_for(flow).unwrap();
        rules.iter().map(TcpFlow::to_string).collect::<Vec<_>>()
    };
    let full = Flow {
        peer_port: Some(40000),
        ..flow()
    };
    let expected = [
        "flow-type tcp4 src-ip 10.0.0.1 dst-ip 10.0.0.2 src-port 40000 dst-port 5201",
        "flow-type tcp4 src-ip 10.0.0.1 dst-ip 10.0.0.2 dst-port 5201",
        "flow-type tcp4 dst-ip 10.0.0.2 dst-port 5201",
        "flow-type tcp4 dst-port 5201",
    ];
    assert_eq!(rules(&full), expected);
    assert_eq!(
        rules(&Flow::to("[::]:5201".parse().unwrap())),
        ["flow-type tcp6 dst-port 5201"]
    );
    let mapped = Flow::to("[::ffff:10.0.0.2]:5201".parse().unwrap());
    assert_eq!(rules(&mapped), expected[2..]);
    let no_port = Flow::to("10.0.0.2:0".parse().unwrap());
    let to_a_server = Flow {
        peer: Some("10.0.0.1".parse().unwrap()),
        peer_port: Some(80),
        ..no_port
    };
    assert_eq!(
        rules(&to_a_server),
        ["flow-type tcp4 src-ip 10.0.0.1 dst-ip 10.0.0.2 src-port 80"]
    );
    assert!(matches!(
        plan::rules_for(&no_port),
        Err(PlanError::BadFlow { .. })
    ));
    let mixed = Flow {
        peer: Some("fd77::1".parse().unwrap()),
        ..flow()
    };
    assert!(matches!(
        plan::rules_for(&mixed),
        Err(PlanError::BadFlow { .. })
    ));
}

#[test]
fn a_state_file_that_other_users_may_have_written_is_refused() {
    let (model, folder) = (Model::new(), Folder::new());
    let mut doomed = model.other_process();
    doomed.crash = Crash::After(4);
    drop(plan(&doomed, &folder, 1).unwrap().apply());
    let path = folder.records().remove(0);
    let refused = |why: &str| {
        let error = state::StateFile::take_over(&path).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    };
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    refused("other users may have written it");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    let record = fs::read_to_string(&path).unwrap();
    fs::write(&path, record.replace("\"version\":1", "\"version\":9")).unwrap();
    refused("it has version 9");
    fs::write(&path, &record[..record.len() / 2]).unwrap();
    refused("EOF");
    let aside = folder.0.join("aside");
    fs::write(&aside, &record).unwrap();
    fs::remove_file(&path).unwrap();
    symlink(&aside, &path).unwrap();
    refused("state file");
    // A record from another boot is void and is removed.
    fs::remove_file(&path).unwrap();
    let id = record.split("\"boot_id\":\"").nth(1).unwrap();
    let id = id.split('"').next().unwrap();
    fs::write(&path, record.replace(id, "another")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    drop(plan(&model, &folder, 1).expect("a void record is no obstacle"));
}

/// A feature that is off by default on every interface.
const GRO_LIST: &str = "rx-gro-list";

/// A plan to switch a feature of the real interface dm0.
fn plan_for_real(folder: &Folder) -> SetupPlan {
    let nic = KernelNic::by_name("dm0").unwrap();
    let state = state::StateFile::claim("dm0", nic.index(), Some(&folder.0)).unwrap();
    let step = Step::Feature {
        name: GRO_LIST.to_owned(),
    };
    SetupPlan::of_steps(Box::new(nic), state, vec![step])
}

fn real_feature() -> crate::ethtool::Feature {
    let mut nic = KernelNic::by_name("dm0").unwrap();
    nic.feature(GRO_LIST).unwrap().unwrap()
}

#[test]
fn a_feature_of_the_real_kernel_is_switched_and_restored() {
    const TEST: &str = "nic_setup::tests::a_feature_of_the_real_kernel_is_switched_and_restored";
    crate::test_util::in_netns(TEST, || {
        let folder = Folder::new();
        let _tap = crate::tap::TapOptions::new("dm0").open().unwrap();
        let before = real_feature();
        assert!(before.changeable && !before.active, "{before:?}");
        let mut setup = plan_for_real(&folder).apply().unwrap();
        assert!(real_feature().active);
        assert_eq!(setup.verify().unwrap(), []);
        // The file of a living process is not restored from.
        let busy = restore_from_state_file(setup.state_file()).unwrap_err();
        assert!(matches!(busy, StateError::Busy { .. }), "{busy}");
        let report = setup.restore();
        assert!(report.is_exact(), "{report}");
        assert_eq!(real_feature(), before);
    });
}

/// Environment variable with the folder of the state files of the process that the next test kills.
const DOOMED_FOLDER: &str = "DEVMEM_TEST_DOOMED";

/// Sets the NIC up and waits to be killed.
fn be_the_doomed_process(folder: std::path::PathBuf) {
    let folder = Folder(folder, None);
    let _setup = plan_for_real(&folder).apply().unwrap();
    println!("applied");
    // Blocks until it is killed, because nothing is written to its standard input.
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn settings_survive_kill_9_and_are_restored_from_the_state_file() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    const TEST: &str =
        "nic_setup::tests::settings_survive_kill_9_and_are_restored_from_the_state_file";
    if let Some(folder) = std::env::var_os(DOOMED_FOLDER) {
        return be_the_doomed_process(folder.into());
    }
    crate::test_util::in_netns(TEST, || {
        let folder = Folder::new();
        let _tap = crate::tap::TapOptions::new("dm0").open().unwrap();
        let before = real_feature();
        let mut doomed = Command::new(std::env::current_exe().unwrap())
            .args([TEST, "--exact", "--nocapture"])
            .env(DOOMED_FOLDER, &folder.0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(doomed.stdout.take().unwrap()).lines();
        assert!(
            lines
                .map_while(Result::ok)
                .any(|line| line.contains("applied"))
        );
        doomed.kill().unwrap();
        doomed.wait().unwrap();
        assert!(real_feature().active, "the settings outlive the process");
        let record = folder.records().remove(0);
        let report = restore_from_state_file(&record).unwrap();
        assert!(report.is_exact(), "{report}");
        assert_eq!(real_feature(), before);
        assert!(folder.records().is_empty());
    });
}

/// On the real kernel: all features that a TAP lacks are named, and no setting changes.
#[test]
fn a_tap_is_refused_and_its_missing_features_are_named() {
    const TEST: &str = "nic_setup::tests::a_tap_is_refused_and_its_missing_features_are_named";
    crate::test_util::in_netns(TEST, || {
        let folder = Folder::new();
        let tap = crate::tap::TapOptions::new("dm0").open().unwrap();
        tap.interface().unwrap().set_up().unwrap();
        let request = SetupRequest {
            interface: "dm0".to_owned(),
            ..request(&folder, 1)
        };
        let refused = NicSetup::plan(&request).unwrap_err();
        let PlanError::Unsupported {
            missing, driver, ..
        } = &refused
        else {
            panic!("{refused}");
        };
        assert_eq!(driver, "tun");
        assert_eq!(missing.len(), 2, "{missing:?}");
        assert!(folder.records().is_empty());
    });
}

#[test]
fn header_split_is_off_during_a_trial_only() {
    let (model, folder) = (Model::new(), Folder::new());
    let before = visible(&model);
    let mut setup = apply(&model, &folder, 1);
    let during = setup.without_split(|| model.settings().split).unwrap();
    assert_eq!(during, None);
    assert_eq!(setup.verify().unwrap(), []);
    assert!(setup.restore().is_exact());
    assert_eq!(visible(&model), before);
}

#[test]
fn a_crash_during_a_trial_is_restored() {
    for kind in all_kinds().into_iter().step_by(41) {
        let before = visible(&kind);
        let mut deaths = 0;
        for n in 1..20 {
            for crash in [Crash::Before(n), Crash::After(n)] {
                let folder = Folder::new();
                let mut doomed = kind.other_process();
                doomed.crash = crash;
                if let Ok(mut setup) = plan(&doomed, &folder, 2).unwrap().apply() {
                    deaths += u32::from(setup.without_split(|| ()).is_err());
                }
                for record in folder.records() {
                    let (state, record) = state::StateFile::take_over(&record).unwrap();
                    let alive = Box::new(kind.other_process());
                    let report = put_back_recorded(alive, state, record.undo);
                    assert!(report.is_exact(), "{crash:?}: {report}");
                }
                assert_eq!(visible(&kind), before, "{crash:?}");
            }
        }
        assert!(deaths > 1, "{deaths}");
    }
}

#[test]
fn the_status_of_a_state_file_is_read_without_changing_it() {
    let (model, folder) = (Model::new(), Folder::new());
    let setup = apply(&model, &folder, 1);
    let path = folder.records().pop().unwrap();
    let in_use = Leftover::read(&path).unwrap();
    assert_eq!(in_use.standing, LeftoverStatus::InUse);
    assert_eq!(
        (in_use.interface.as_str(), in_use.pid),
        ("model0", std::process::id())
    );
    assert_eq!(in_use.changes, setup.changes());
    drop(setup);
    assert!(Leftover::read(&path).is_err(), "the set-up has removed it");

    let mut doomed = model.other_process();
    doomed.crash = Crash::After(2);
    plan(&doomed, &folder, 1).unwrap().apply().unwrap_err();
    let left = Leftover::read(&path).unwrap();
    assert_eq!(left.standing, LeftoverStatus::Left);
    let text = fs::read_to_string(&path).unwrap();
    let other_namespace = text.replacen("\"netns\":", "\"netns\":1", 1);
    fs::write(&path, other_namespace).unwrap();
    assert_eq!(
        Leftover::read(&path).unwrap().standing,
        LeftoverStatus::OtherNamespace
    );
    let other_boot = text.replacen("\"boot_id\":\"", "\"boot_id\":\"not-", 1);
    fs::write(&path, other_boot).unwrap();
    assert_eq!(
        Leftover::read(&path).unwrap().standing,
        LeftoverStatus::Void
    );
}
