//! Failures, crashes at every point, and the state file.

use super::*;

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
