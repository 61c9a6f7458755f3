//! What a guest is made of, as the command line asks for it: QEMU's arguments and the guest's files follow from it.

use std::path::PathBuf;
use std::time::Duration;

use tool::signals::StopFlag;

use crate::accel::Accel;
use crate::disks::Disk;
use crate::kernel::ExtraDriver;
use crate::nics::NicsPlan;
use crate::shares::Shares;

/// Configuration of a guest.
#[derive(Clone, Debug)]
pub struct MachinePlan {
    /// The tool: process 1 of the guest, and a program in it.
    pub tool: PathBuf,
    /// How instructions are executed.
    pub accel: Accel,
    /// Virtual processors.
    pub cpus: u16,
    /// Memory in MiB.
    pub memory_mib: u32,
    /// Maximum length of a run.
    pub limit: Option<Duration>,
    /// Files and folders to copy into the guest: (path here, path in the guest).
    pub put: Vec<(PathBuf, String)>,
    /// Folders and files to copy into the guest without adding libraries: (path here, path in the guest).
    pub trees: Vec<(PathBuf, String)>,
    /// Files to copy from the guest: (path in the guest, path here).
    pub get: Vec<(String, PathBuf)>,
    /// File for the kernel's log.
    pub log: Option<PathBuf>,
    /// The NICs.
    pub nics: NicsPlan,
    /// Folders that the guest shares with this machine.
    pub shares: Shares,
    /// Disks, in the order of their names in the guest.
    pub disks: Vec<Disk>,
    /// Where a debugger can connect.
    pub debugger: Option<Debugger>,
    /// Parameters to append to the kernel's command line.
    pub append: String,
    /// Time without a sign of life after which a boot is started again.
    pub silence_limit: Duration,
    /// Set by a signal to end the run.
    pub stop: StopFlag,
}

impl MachinePlan {
    /// Returns the drivers that this guest needs and others do not.
    pub fn extra_drivers(&self) -> Vec<ExtraDriver> {
        let share = (!self.shares.folders.is_empty()).then_some(ExtraDriver::VirtioFs);
        let disk = (!self.disks.is_empty()).then_some(ExtraDriver::VirtioBlk);
        share.into_iter().chain(disk).collect()
    }
}

/// Access for a debugger that speaks the remote protocol of gdb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Debugger {
    /// TCP port on the loopback address.
    pub port: u16,
    /// What the guest does until a debugger connects.
    pub start: DebuggerStart,
}

/// What a guest does until a debugger connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DebuggerStart {
    /// It runs.
    Runs,
    /// Its processors are stopped.
    Waits,
}
