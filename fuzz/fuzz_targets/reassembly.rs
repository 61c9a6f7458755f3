#![no_main]

#[path = "../bodies/reassembly.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
