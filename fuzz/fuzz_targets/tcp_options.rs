#![no_main]

#[path = "../bodies/tcp_options.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
