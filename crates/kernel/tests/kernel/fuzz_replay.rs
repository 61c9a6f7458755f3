//! Replays the kept inputs of the fuzz targets: see fuzz/README.md.

#[path = "../../../../fuzz/bodies/broker.rs"]
mod broker;
#[path = "../../../../fuzz/bodies/kernel_recvmsg.rs"]
mod kernel_recvmsg;
#[path = "../../../../fuzz/bodies/netlink.rs"]
mod netlink;
#[path = "../../../../fuzz/bodies/nic_state.rs"]
mod nic_state;
#[path = "../../../../fuzz/replay.rs"]
mod replay;

#[test]
fn kept_netlink_replies_are_parsed_or_refused() {
    replay::replay("netlink", netlink::run);
}

#[test]
fn kept_receives_account_for_every_byte() {
    replay::replay("kernel_recvmsg", kernel_recvmsg::run);
}

#[test]
fn kept_state_files_are_restored_from_or_refused() {
    replay::replay("nic_state", nic_state::run);
}

#[test]
fn kept_messages_of_brokers_are_read_or_refused() {
    replay::replay("broker", broker::run);
}
