//! Kept inputs of the fuzz target for the control connection.

#[path = "../../../../fuzz/bodies/nixl_control.rs"]
mod nixl_control;
#[path = "../../../../fuzz/replay.rs"]
mod replay;

#[test]
fn nixl_control_inputs() {
    replay::replay("nixl_control", nixl_control::run);
}
