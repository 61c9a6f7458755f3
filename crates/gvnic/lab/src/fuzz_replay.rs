//! Replays the kept inputs of the fuzz targets: see fuzz/README.md.

use super::{conversation, elf, frame, klog};

#[path = "../../../../fuzz/bodies/kernel_log.rs"]
mod kernel_log;
#[path = "../../../../fuzz/bodies/lab_elf.rs"]
mod lab_elf;
#[path = "../../../../fuzz/bodies/lab_frames.rs"]
mod lab_frames;
#[allow(
    clippy::print_stderr,
    reason = "prints the name of the input that failed"
)]
#[path = "../../../../fuzz/replay.rs"]
mod replay;

#[test]
fn kept_frames_of_a_guest_are_accepted_or_refused() {
    replay::replay("lab_frames", lab_frames::run);
}

#[test]
fn kept_programs_are_parsed() {
    replay::replay("lab_elf", lab_elf::run);
}

#[test]
fn kept_kernel_logs_are_checked() {
    replay::replay("kernel_log", kernel_log::run);
}
