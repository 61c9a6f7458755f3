#![no_main]

#[path = "../bodies/load_nvme.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
