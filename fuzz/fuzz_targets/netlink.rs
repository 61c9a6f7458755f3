#![no_main]

#[path = "../bodies/netlink.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
