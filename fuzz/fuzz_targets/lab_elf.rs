#![no_main]

#[path = "../bodies/lab_elf.rs"]
mod body;
#[allow(dead_code, reason = "the rest of the file is for the lab")]
#[path = "../../crates/gvnic/lab/src/elf.rs"]
mod elf;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
