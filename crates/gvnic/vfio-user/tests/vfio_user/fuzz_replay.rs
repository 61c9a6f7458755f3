//! Replays the kept inputs of the fuzz target: see fuzz/README.md.

#[path = "../../../../../fuzz/replay.rs"]
mod replay;
#[path = "../../../../../fuzz/bodies/vfio_user.rs"]
mod vfio_user_body;

#[test]
fn kept_conversations_are_answered_message_by_message() {
    replay::replay("vfio_user", vfio_user_body::run);
}
