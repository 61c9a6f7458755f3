//! Inputs that fuzzing found, or that are worth keeping: see fuzz/README.md.

#[path = "../../../../fuzz/bodies/reassembly.rs"]
mod reassembly;
#[path = "../../../../fuzz/replay.rs"]
mod replay;

#[test]
fn kept_sessions_deliver_the_stream_in_order() {
    replay::replay("reassembly", reassembly::run);
}
