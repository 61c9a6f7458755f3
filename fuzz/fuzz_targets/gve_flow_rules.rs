#![no_main]

#[path = "../bodies/gve_flow_rules.rs"]
mod body;
#[path = "../../crates/gvnic/gve/tests/gve/common/mod.rs"]
mod common;
#[path = "../bodies/gve_input.rs"]
mod input;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
