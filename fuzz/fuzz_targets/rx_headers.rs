#![no_main]

#[path = "../bodies/rx_headers.rs"]
mod body;
#[path = "../bodies/ipv4_checksum.rs"]
mod ipv4_checksum;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
