//! Replays the kept inputs of the fuzz targets: see fuzz/README.md.

#[path = "../../../../../fuzz/bodies/ipv4_checksum.rs"]
mod ipv4_checksum;
#[path = "../../../../../fuzz/replay.rs"]
mod replay;
#[path = "../../../../../fuzz/bodies/rx_headers.rs"]
mod rx_headers;
#[path = "../../../../../fuzz/bodies/tcp_options.rs"]
mod tcp_options;

#[test]
fn kept_frames_parse_as_promised() {
    replay::replay("rx_headers", rx_headers::run);
}

#[test]
fn kept_tcp_options_parse_as_promised() {
    replay::replay("tcp_options", tcp_options::run);
}
