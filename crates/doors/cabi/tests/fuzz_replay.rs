//! Inputs that fuzzing found, or that are worth keeping: see fuzz/README.md.

#[path = "../../../../fuzz/bodies/cabi_calls.rs"]
mod cabi_calls;
#[path = "../../../../fuzz/bodies/cabi_input.rs"]
mod input;
#[path = "../../../../fuzz/replay.rs"]
mod replay;

#[test]
fn kept_calls_of_c_programs_stay_inside_of_their_memory() {
    replay::replay("cabi_calls", cabi_calls::run);
}
