#![no_main]

#[path = "../bodies/lab_frames.rs"]
mod body;
#[allow(dead_code, reason = "only the lab uses the rest of the file")]
#[path = "../../crates/gvnic/lab/src/conversation.rs"]
mod conversation;
#[allow(dead_code, reason = "only the lab uses the rest of the file")]
#[path = "../../crates/gvnic/lab/src/frame.rs"]
mod frame;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
