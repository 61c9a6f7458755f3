//! Replays the kept inputs of the fuzz targets: see fuzz/README.md.

#[path = "../../../../../fuzz/bodies/gve_adminq.rs"]
mod gve_adminq;
#[path = "../../../../../fuzz/bodies/gve_flow_rules.rs"]
mod gve_flow_rules;
#[path = "../../../../../fuzz/bodies/gve_rx.rs"]
mod gve_rx;
#[path = "../../../../../fuzz/bodies/gve_tx.rs"]
mod gve_tx;
#[path = "../../../../../fuzz/replay.rs"]
mod replay;

#[test]
fn kept_admin_commands_are_answered() {
    replay::replay("gve_adminq", gve_adminq::run);
}

#[test]
fn kept_tx_descriptors_send_no_invalid_frame() {
    replay::replay("gve_tx", gve_tx::run);
}

#[test]
fn kept_rx_buffers_do_not_affect_another_queue() {
    replay::replay("gve_rx", gve_rx::run);
}

#[test]
fn kept_flow_rules_steer_to_their_queues() {
    replay::replay("gve_flow_rules", gve_flow_rules::run);
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig {
        failure_persistence: None,
        ..proptest::prelude::ProptestConfig::default()
    })]

    /// Every byte is a step, so that random bytes cover much without a fuzzer.
    #[test]
    fn random_steps_break_no_rule(input in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..1500)) {
        gve_adminq::run(&input);
        gve_tx::run(&input);
        gve_rx::run(&input);
        gve_flow_rules::run(&input);
    }
}
