//! Inputs that fuzzing found, or that are worth keeping: see fuzz/README.md.

#[path = "../../../../../fuzz/replay.rs"]
mod replay;
#[path = "../../../../../fuzz/bodies/stack_frames.rs"]
mod stack_frames;

#[test]
fn kept_frames_leave_no_socket_and_no_net_iov_behind() {
    replay::replay("stack_frames", stack_frames::run);
}
