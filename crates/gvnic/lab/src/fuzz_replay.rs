//! Inputs that fuzzing found, or that are worth keeping: see fuzz/README.md.

use super::{conversation, elf, frame, klog};

#[path = "../../../../fuzz/bodies/kernel_log.rs"]
mod kernel_log;
#[path = "../../../../fuzz/bodies/lab_elf.rs"]
mod lab_elf;
#[path = "../../../../fuzz/bodies/lab_frames.rs"]
mod lab_frames;
#[allow(clippy::print_stderr, reason = "it names the input that failed")]
#[path = "../../../../fuzz/replay.rs"]
mod replay;

#[test]
fn kept_words_of_a_guest_are_understood_or_refused() {
    replay::replay("lab_frames", lab_frames::run);
}

#[test]
fn kept_programs_name_their_loader_or_none() {
    replay::replay("lab_elf", lab_elf::run);
}

#[test]
fn kept_kernel_logs_are_judged() {
    replay::replay("kernel_log", kernel_log::run);
}
