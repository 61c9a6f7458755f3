//! Leases of a model NIC: made, undone, restored after a crash at every point; and what a pod finds that an agent has set up.

use super::*;
use crate::nic_setup::reading::configured::find_for;

fn lease_request(folder: &Folder, queues: u32) -> SetupRequest {
    SetupRequest {
        flows: Vec::new(),
        leases: vec![NewLease {
            netkit: "pod0".to_owned(),
            peer: "pod0p".to_owned(),
            queues,
            flows: vec![flow()],
        }],
        ..request(folder, queues)
    }
}

fn plan_lease(model: &Model, folder: &Folder, queues: u32) -> Result<SetupPlan, PlanError> {
    plan_for(Box::new(model.clone()), &lease_request(folder, queues))
}

fn leased(model: &Model) -> usize {
    let nic = model.nic();
    let users = nic.queues.iter().filter_map(|(_, user)| *user);
    users
        .filter(|user| matches!(user, QueueUser::Lease(_)))
        .count()
}

#[test]
fn a_lease_is_the_last_change_and_ends_with_the_set_up() {
    let (model, folder) = (Model::new(), Folder::new());
    let before = visible(&model);
    let plan = plan_lease(&model, &folder, 2).unwrap();
    let commands = plan.commands();
    let last = commands.last().unwrap();
    assert!(
        last.starts_with("ip link add pod0 numrxqueues 3 type netkit mode l3 peer name pod0p"),
        "{last}"
    );
    assert!(last.ends_with("leases of queue 14, 15 of model0"), "{last}");
    let mut setup = plan.apply().unwrap();
    let numbers: Vec<_> = setup
        .leases()
        .iter()
        .map(|lease| (lease.queue.0, lease.leased.0))
        .collect();
    assert_eq!(numbers, [(14, 1), (15, 2)]);
    assert_eq!(model.settings().netkits.len(), 1);
    assert_eq!(setup.verify().unwrap(), []);
    // As when the pod's network namespace ends.
    model.nic().settings.netkits.clear();
    let drift = setup.verify().unwrap().remove(0);
    assert!(drift.what.contains("netkit pod0"), "{drift}");
    let report = setup.restore();
    assert!(report.is_exact(), "{report}");
    assert_eq!(visible(&model), before, "{report}");
}

#[test]
fn each_pod_gets_queues_and_flows_of_its_own() {
    let (model, folder) = (Model::new(), Folder::new());
    let before = visible(&model);
    let pod = |number: u32, queues, address: &str| NewLease {
        netkit: format!("pod{number}"),
        peer: format!("pod{number}p"),
        queues,
        flows: vec![Flow::to(address.parse().unwrap())],
    };
    let asked = SetupRequest {
        leases: vec![
            pod(0, 2, "10.0.0.8:5201"),
            pod(1, 1, "10.0.0.9:5201"),
            pod(2, 2, "10.0.0.10:5201"),
        ],
        ..lease_request(&folder, 5)
    };
    let setup = plan_for(Box::new(model.clone()), &asked).unwrap();
    let setup = setup.apply().unwrap();
    let of = |number: u32| -> Vec<u32> {
        let netkit = format!("pod{number}");
        let leases = setup.leases().iter();
        let leases = leases.filter(|lease| lease.netkit == netkit);
        leases.map(|lease| lease.queue.0).collect()
    };
    assert_eq!(
        [of(0), of(1), of(2)],
        [vec![11, 12], vec![13], vec![14, 15]]
    );
    let settings = model.settings();
    let tables: Vec<_> = settings.contexts.iter().map(|c| c.table[0]).collect();
    assert_eq!(tables, [11, 14]);
    let actions: Vec<_> = settings.rules.iter().map(|rule| rule.action).collect();
    let context = |context| RuleAction::Context { context, base: 0 };
    let alone = RuleAction::Queue(KernelRxQueueId(13));
    assert_eq!(actions, [context(1), alone, context(2)]);
    let report = setup.restore();
    assert!(report.is_exact(), "{report}");
    assert_eq!(visible(&model), before);
}

#[test]
fn a_failure_at_any_change_of_a_lease_undoes_all_changes_before_it() {
    for fails_at in 1.. {
        let (model, folder) = (Model::new(), Folder::new());
        let before = visible(&model);
        let mut failing = model.other_process();
        failing.fails_at = Some(fails_at);
        match plan_lease(&failing, &folder, 2).unwrap().apply() {
            Ok(setup) => {
                // Table, feature, split, context, rule, netkit, two leases.
                assert!(fails_at > 8, "{fails_at}");
                assert_eq!(leased(&model), 2);
                drop(setup);
                break;
            }
            Err(error) => assert!(error.restored.is_exact(), "{error} {}", error.restored),
        }
        assert_eq!(visible(&model), before, "change {fails_at}");
        assert_eq!(leased(&model), 0, "change {fails_at}");
        assert!(folder.records().is_empty());
    }
}

#[test]
fn a_crash_at_any_change_of_a_lease_is_restored_from_the_state_file() {
    let mut deaths = 0;
    for n in 1..20 {
        for crash in [Crash::Before(n), Crash::After(n)] {
            let (model, folder) = (Model::new(), Folder::new());
            let before = visible(&model);
            let mut doomed = model.other_process();
            doomed.crash = crash;
            if let Ok(setup) = plan_lease(&doomed, &folder, 2).unwrap().apply() {
                drop(setup);
            }
            for record in folder.records() {
                deaths += 1;
                let (state, record) = state::StateFile::take_over(&record).unwrap();
                let alive = Box::new(model.other_process());
                let report = put_back_recorded(alive, state, record.undo);
                assert!(report.is_exact(), "{crash:?}: {report}");
            }
            assert_eq!(visible(&model), before, "{crash:?}");
            assert_eq!(leased(&model), 0, "{crash:?}");
            assert!(folder.records().is_empty());
        }
    }
    assert!(deaths > 12, "{deaths}");
}

#[test]
fn a_netkit_of_somebody_else_is_neither_taken_nor_removed() {
    let (model, folder) = (Model::new(), Folder::new());
    model.nic().settings.netkits.push((7, "pod0".to_owned()));
    let before = visible(&model);
    let error = plan_lease(&model, &folder, 1).unwrap().apply().unwrap_err();
    assert!(
        matches!(&*error.why, StepError::NetkitExists { name } if name == "pod0"),
        "{error}"
    );
    assert_eq!(visible(&model), before);
    assert!(folder.records().is_empty());
}

#[test]
fn a_kernel_without_leases_is_refused_before_anything_changes() {
    let (model, folder) = (Model::new(), Folder::new());
    model.nic().ways.can_lease = false;
    let before = visible(&model);
    let refused = plan_lease(&model, &folder, 1).unwrap_err();
    assert!(refused.to_string().contains("Linux 7.1"), "{refused}");
    assert!(matches!(refused, PlanError::Unsupported { .. }));
    assert_eq!(visible(&model), before);
    assert!(folder.records().is_empty());
}

/// A request of a program that writes nothing.
fn found(model: &Model, queues: QueueChoice) -> Result<Configured, PlanError> {
    let folder = Folder::new();
    let asked = SetupRequest {
        queues,
        ..request(&folder, 1)
    };
    let before = model.settings();
    let found = find_for(&mut model.other_process(), &asked);
    assert_eq!(model.settings(), before, "something was written");
    assert!(!folder.0.exists(), "a state file was made");
    found
}

#[test]
fn what_an_agent_has_set_up_on_a_nic_is_found_and_checked() {
    let (model, folder) = (Model::new(), Folder::new());
    let refused = found(&model, QueueChoice::Count(2)).unwrap_err();
    let PlanError::NotConfigured {
        missing, commands, ..
    } = &refused
    else {
        panic!("{refused}");
    };
    let text = missing.join("\n");
    for part in [
        "tcp-data-split is off",
        "hds-thresh is 256",
        "no flow rule steers TCP from 10.0.0.1 to 10.0.0.2:5201",
    ] {
        assert!(text.contains(part), "{text}");
    }
    assert!(
        commands.contains(&"ethtool -G model0 tcp-data-split on hds-thresh 0".to_owned()),
        "{commands:?}"
    );
    // The agent sets it up, with a context for two queues.
    let agents = apply(&model, &folder, 2);
    let pods = found(&model, QueueChoice::Count(2)).unwrap();
    assert_eq!(pods.queues(), agents.queues());
    assert!(pods.unseen().is_empty());
    let refused = found(&model, QueueChoice::Count(3)).unwrap_err();
    let text = refused.to_string();
    assert!(text.contains("lead to 2 queues, 3 are needed"), "{text}");
    let PlanError::NotConfigured { commands, .. } = &refused else {
        panic!("{refused}");
    };
    // What is set already is not asked for.
    assert!(
        commands.iter().all(|it| !it.contains("tcp-data-split")),
        "{commands:?}"
    );
    // Another program puts one of the queues into the RSS table again, and one is bound.
    model.nic().settings.table[0] = 15;
    model.nic().queues[14].1 = Some(QueueUser::Dmabuf(DmabufId(3)));
    let refused = found(&model, QueueChoice::Count(2))
        .unwrap_err()
        .to_string();
    for part in [
        "queue 14 is used by dma-buf 3",
        "the RSS table sends other packets to queue 15, too",
    ] {
        assert!(refused.contains(part), "{refused}");
    }
}

#[test]
fn a_pod_gets_the_queues_that_are_leased_to_its_netkit_and_no_others() {
    let model = Model::new();
    {
        // What can be seen of a netkit with two leased queues.
        let mut nic = model.nic();
        nic.ways.driver = "netkit";
        nic.queues.truncate(3);
    }
    let pods = found(&model, QueueChoice::Count(2)).unwrap();
    assert_eq!(pods.queues(), [1, 2].map(KernelRxQueueId));
    let unseen = pods.unseen().join("; ");
    for part in ["header split", "RSS", "10.0.0.2:5201"] {
        assert!(unseen.contains(part), "{unseen}");
    }
    let refused = found(&model, QueueChoice::Count(3)).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains("2 unused queues are leased to it, 3 are needed"),
        "{refused}"
    );
    for other in [0, 5] {
        let queues = QueueChoice::These(vec![KernelRxQueueId(other)]);
        let refused = found(&model, queues).unwrap_err();
        assert!(matches!(refused, PlanError::BadQueue { .. }), "{refused}");
    }
    // One is in use by another program of the pod.
    model.nic().queues[1].1 = Some(QueueUser::Dmabuf(DmabufId(3)));
    let pods = found(&model, QueueChoice::Count(1)).unwrap();
    assert_eq!(pods.queues(), [KernelRxQueueId(2)]);
}
