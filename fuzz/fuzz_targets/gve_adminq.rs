#![no_main]

#[path = "../bodies/gve_adminq.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
