//! Inputs that fuzzing found, or that are worth keeping: see fuzz/README.md.

#[path = "../../../../fuzz/bodies/cmsg.rs"]
mod cmsg;
#[path = "../../../../fuzz/replay.rs"]
mod replay;

#[test]
fn kept_control_buffers_read_as_promised() {
    replay::replay("cmsg", cmsg::run);
}
