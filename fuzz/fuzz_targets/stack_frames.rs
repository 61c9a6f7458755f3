#![no_main]

#[path = "../bodies/stack_frames.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
