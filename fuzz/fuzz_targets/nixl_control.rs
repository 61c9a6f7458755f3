#![no_main]

#[path = "../bodies/nixl_control.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
