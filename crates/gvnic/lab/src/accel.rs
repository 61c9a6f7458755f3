//! Selection of KVM or software emulation.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;

use devmem_linux::small_file::{self, OpenFor};
use serde::Serialize;

use super::kit::Kit;

/// Error message of QEMU when KVM cannot execute an instruction; the guest is stopped from then on.
pub const KVM_GAVE_UP: &str = "KVM internal error";

/// A boot's name is 36 bytes and a line end.
const MARK_BYTES_MAX: u64 = 64;

/// How instructions are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Accel {
    /// KVM if it is usable, else tcg
    Auto,
    /// By the processor (hardware virtualization)
    Kvm,
    /// By software: works everywhere
    Tcg,
}

/// Returns whether this user may use KVM. It may still fail later: the KVM of some virtual machines cannot run an ordinary
/// kernel.
pub fn kvm_usable() -> bool {
    File::options()
        .read(true)
        .write(true)
        .open("/dev/kvm")
        .is_ok()
}

/// Returns whether KVM has failed since the last boot of this machine.
pub fn kvm_found_broken(kit: &Kit) -> bool {
    mark(kit).is_some_and(|(place, boot)| {
        small_file::read(&place, MARK_BYTES_MAX).is_ok_and(|found| found == boot.as_bytes())
    })
}

/// Records that KVM does not work on this machine.
pub fn remember_broken_kvm(kit: &Kit) {
    if let Some((place, boot)) = mark(kit) {
        // If that fails, the next run tries KVM again.
        let written = small_file::open(&place, OpenFor::Writing).map(|mut file| {
            let emptied = file.set_len(0);
            emptied.and_then(|()| file.write_all(boot.as_bytes()))
        });
        drop(written);
    }
}

/// Returns the path of that record, and the id of the current boot.
fn mark(kit: &Kit) -> Option<(PathBuf, String)> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some((kit.cache.join("kvm-is-broken"), boot))
}
