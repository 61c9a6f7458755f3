//! Flows, their rules and contexts.

use super::*;

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
