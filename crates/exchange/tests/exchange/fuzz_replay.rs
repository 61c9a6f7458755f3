//! Kept inputs of the fuzz target for the control stream.

#[path = "../../../../fuzz/bodies/exchange_control.rs"]
mod exchange_control;
#[path = "../../../../fuzz/replay.rs"]
mod replay;

#[test]
fn exchange_control_inputs() {
    replay::replay("exchange_control", exchange_control::run);
}
