#![no_main]

#[path = "../bodies/gve_flow_rules.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
