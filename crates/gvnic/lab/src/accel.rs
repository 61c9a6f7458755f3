//! Selection of KVM or software emulation.

use std::fmt;
use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;

use devmem_linux::small_file::{self, OpenFor};
use serde::Serialize;
use tool::output::Failure;

use super::kit::Kit;

/// Error messages of QEMU when KVM cannot execute an instruction, and the guest is stopped from then on; and when KVM cannot
/// be used at all, and QEMU ends.
pub const KVM_FAILED: [&str; 4] = [
    "KVM internal error",
    "KVM: entry failed",
    "failed to initialize kvm",
    "Could not access KVM kernel module",
];

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

/// How guests are run on this machine, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunsBy {
    /// By KVM.
    Kvm,
    /// By emulation, which was asked for.
    EmulationAsAsked,
    /// By emulation: this user may not use KVM, or there is none.
    EmulationWithoutAccess,
    /// By emulation: KVM failed to run a guest since this machine was started.
    EmulationWithoutKvm,
}

impl RunsBy {
    /// Returns the accelerator of QEMU.
    pub fn accel(self) -> Accel {
        match self {
            Self::Kvm => Accel::Kvm,
            Self::EmulationAsAsked | Self::EmulationWithoutAccess | Self::EmulationWithoutKvm => {
                Accel::Tcg
            }
        }
    }
}

impl fmt::Display for RunsBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kvm => "KVM",
            Self::EmulationAsAsked => "software emulation (--accel tcg)",
            Self::EmulationWithoutAccess => "software emulation (no /dev/kvm for this user)",
            Self::EmulationWithoutKvm => "software emulation (KVM could not run a guest here)",
        })
    }
}

/// Decides how guests are run.
///
/// # Errors
///
/// KVM is asked for, and this user may not use it.
pub fn decide(wanted: Accel, kit: &Kit) -> Result<RunsBy, Failure> {
    match wanted {
        Accel::Tcg => Ok(RunsBy::EmulationAsAsked),
        Accel::Kvm if !kvm_usable() => Err(Failure::unsupported("/dev/kvm cannot be opened")
            .with_remedy("use --accel tcg, which works everywhere")),
        Accel::Kvm => Ok(RunsBy::Kvm),
        Accel::Auto if !kvm_usable() => Ok(RunsBy::EmulationWithoutAccess),
        Accel::Auto if found(KvmRecord::IsBroken, kit) => Ok(RunsBy::EmulationWithoutKvm),
        Accel::Auto => Ok(RunsBy::Kvm),
    }
}

/// Returns whether only a guest can show that KVM works: this user may use it, and has run none since this machine was
/// started. The KVM of some virtual machines cannot run an ordinary kernel.
pub fn is_to_be_tried(kit: &Kit) -> bool {
    kvm_usable()
        && [KvmRecord::IsBroken, KvmRecord::Works]
            .iter()
            .all(|record| !found(*record, kit))
}

/// Returns whether this user may use KVM.
fn kvm_usable() -> bool {
    let kvm = File::options().read(true).write(true).open("/dev/kvm");
    kvm.is_ok()
}

/// What a guest has shown about KVM, since the last boot of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvmRecord {
    /// KVM has run a guest.
    Works,
    /// KVM has failed to.
    IsBroken,
}

fn found(record: KvmRecord, kit: &Kit) -> bool {
    mark(record, kit).is_some_and(|(place, boot)| {
        small_file::read(&place, MARK_BYTES_MAX).is_ok_and(|found| found == boot.as_bytes())
    })
}

/// Records what a guest has shown.
pub fn remember(record: KvmRecord, kit: &Kit) {
    if let Some((place, boot)) = mark(record, kit) {
        // If that fails, the next run tries KVM again.
        let written = small_file::open(&place, OpenFor::Writing).map(|mut file| {
            let emptied = file.set_len(0);
            emptied.and_then(|()| file.write_all(boot.as_bytes()))
        });
        drop(written);
    }
}

/// Returns the path of that record, and the id of the current boot.
fn mark(record: KvmRecord, kit: &Kit) -> Option<(PathBuf, String)> {
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let name = match record {
        KvmRecord::Works => "kvm-works",
        KvmRecord::IsBroken => "kvm-is-broken",
    };
    Some((kit.cache.join(name), boot))
}
