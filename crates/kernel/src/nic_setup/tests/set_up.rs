//! What a plan lists, and what a set-up makes and restores.

use super::*;

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
