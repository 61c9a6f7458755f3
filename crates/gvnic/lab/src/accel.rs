//! Who executes the guest's instructions.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;

use devmem_linux::small_file::{self, OpenFor};
use serde::Serialize;

use super::kit::Kit;

/// What QEMU says when KVM cannot execute an instruction; the guest stands still from then on.
pub const KVM_GAVE_UP: &str = "KVM internal error";

/// A boot's name is 36 bytes and a line end.
const MARK_BYTES_MAX: u64 = 64;

/// How instructions are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Accel {
    /// KVM if it is usable, else tcg
    Auto,
    /// By the processor
    Kvm,
    /// By software: works everywhere
    Tcg,
}

/// Tells whether this user may use KVM. Whether it is any good shows when a guest runs: some virtual machines offer a KVM
/// that cannot run an ordinary kernel.
pub fn kvm_usable() -> bool {
    File::options()
        .read(true)
        .write(true)
        .open("/dev/kvm")
        .is_ok()
}

/// Tells whether KVM failed before, since this machine was started.
pub fn kvm_found_broken(kit: &Kit) -> bool {
    mark(kit).is_some_and(|(place, boot)| {
        small_file::read(&place, MARK_BYTES_MAX).is_ok_and(|found| found == boot.as_bytes())
    })
}

/// Keeps in mind that KVM is of no use here.
pub fn remember_broken_kvm(kit: &Kit) {
    if let Some((place, boot)) = mark(kit) {
        // Without it the next run finds out again.
        let written = small_file::open(&place, OpenFor::Writing).map(|mut file| {
            let emptied = file.set_len(0);
            emptied.and_then(|()| file.write_all(boot.as_bytes()))
        });
        drop(written);
    }
}

/// Where that is kept, and the name of this start of the machine.
fn mark(kit: &Kit) -> Option<(PathBuf, String)> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    // Beside the folder of the packages: in the cache.
    let cache = kit.tools.as_ref()?.parent()?.parent()?;
    Some((cache.join("kvm-is-broken"), boot))
}
