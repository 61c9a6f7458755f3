//! A DHCP client among hostile stations: see `fuzz.rs` of the crate `lease`.

/// Checks the input.
pub fn run(data: &[u8]) {
    lease::fuzz::dhcp(data);
}
