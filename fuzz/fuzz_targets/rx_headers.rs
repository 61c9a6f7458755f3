#![no_main]

#[path = "../bodies/rx_headers.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
