#![no_main]

#[path = "../bodies/nic_state.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
