#![no_main]

#[path = "../bodies/impair_text.rs"]
mod body;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
