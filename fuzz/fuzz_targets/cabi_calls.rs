#![no_main]

#[path = "../bodies/cabi_calls.rs"]
mod body;
#[path = "../bodies/cabi_input.rs"]
mod input;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
