#![no_main]

#[path = "../bodies/lab_elf.rs"]
mod body;
#[allow(dead_code, reason = "only the lab uses the rest of the file")]
#[path = "../../crates/gvnic/lab/src/elf.rs"]
mod elf;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
