//! Replays the kept inputs of the fuzz targets: see fuzz/README.md.

#[path = "../../../../fuzz/bodies/impair_text.rs"]
mod impair_text;
#[path = "../../../../fuzz/bodies/ipv4_checksum.rs"]
mod ipv4_checksum;
#[path = "../../../../fuzz/bodies/nic_frame.rs"]
mod nic_frame;
#[path = "../../../../fuzz/replay.rs"]
mod replay;
#[path = "../../../../fuzz/bodies/shared_wire.rs"]
mod shared_wire;
#[path = "../../../../fuzz/bodies/unix_wire.rs"]
mod unix_wire;

#[test]
fn kept_frames_are_received_or_counted_as_dropped() {
    replay::replay("nic_frame", nic_frame::run);
}

#[test]
fn kept_impairments_are_written_as_they_are_parsed() {
    replay::replay("impair_text", impair_text::run);
}

#[test]
fn kept_packets_of_a_unix_wire_are_received_or_counted_as_dropped() {
    replay::replay("unix_wire", unix_wire::run);
}

#[test]
fn kept_packets_of_a_wire_that_shares_memory_do_no_harm() {
    replay::replay("shared_wire", shared_wire::run);
}
