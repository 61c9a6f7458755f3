#![no_main]

#[path = "../bodies/kernel_log.rs"]
mod body;
#[allow(dead_code, reason = "only the lab uses the rest of the file")]
#[path = "../../crates/gvnic/lab/src/klog.rs"]
mod klog;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
