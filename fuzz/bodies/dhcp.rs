//! A DHCP client among hostile stations: see `lease/fuzz.rs` of the crate.

/// Checks the input.
pub fn run(data: &[u8]) {
    devmem_tcp::internals::fuzz_dhcp(data);
}
