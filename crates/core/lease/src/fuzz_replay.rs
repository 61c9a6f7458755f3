//! Replays the kept inputs of the fuzz target `dhcp`.

#[allow(
    clippy::print_stderr,
    reason = "prints the name of the input that failed"
)]
#[path = "../../../../fuzz/replay.rs"]
mod kept;

#[test]
fn kept_inputs_of_dhcp_do_not_panic() {
    kept::replay("dhcp", crate::fuzz::dhcp);
}
