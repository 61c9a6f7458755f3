//! How much memory this process may still touch: the limits of its control groups, and what the machine has.
//!
//! In a control group whose limit is reached, the kernel kills a process that touches another page (cgroup-v2.rst, "memory.max"), and
//! without a group it does when the machine has none left. The process cannot say why then, so it asks before.

mod cgroup;
// Files and sums: nothing that Miri could judge.
#[cfg(all(test, not(miri)))]
mod tests;

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use cgroup::Groups;

/// Allocations that are not worth the question, which reads some ten files.
const SMALL_BYTES: usize = 1 << 20;

/// There is less memory than is to be touched.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{} of memory do not fit into the {} that are free: {holder}",
    Mebibytes(*.bytes), Mebibytes(*.free)
)]
pub struct NoRoom {
    /// Bytes to touch.
    pub bytes: u64,
    /// Bytes that can be touched.
    pub free: u64,
    /// What limits them.
    pub holder: RoomHolder,
}

/// What limits the memory of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoomHolder {
    /// A control group of the process, or one above it.
    Cgroup {
        /// The file with the limit.
        file: PathBuf,
        /// The limit in bytes.
        limit: u64,
        /// Bytes of it that are in use and cannot be reclaimed.
        used: u64,
    },
    /// The machine.
    Machine,
}

impl NoRoom {
    /// Returns what to do about it.
    pub fn remedy(&self) -> String {
        match &self.holder {
            RoomHolder::Cgroup { file, .. } => format!(
                "ask for less, or raise the limit: {}, `docker run --memory`, or the unit's MemoryMax=",
                file.display()
            ),
            RoomHolder::Machine => "ask for less, or end other programs".to_owned(),
        }
    }
}

impl fmt::Display for RoomHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cgroup { limit, used, .. } => write!(
                f,
                "the limit of the control group is {}, of which {} are in use",
                Mebibytes(*limit),
                Mebibytes(*used)
            ),
            Self::Machine => f.write_str("the machine has no more"),
        }
    }
}

/// Writes bytes in MiB.
struct Mebibytes(u64);

impl fmt::Display for Mebibytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // One digit behind the point, by integers: no value is too large.
        let tenths = self.0 / ((1 << 20) / 10);
        write!(f, "{}.{} MiB", tenths / 10, tenths % 10)
    }
}

/// Checks that this process can touch `bytes` of memory more. A limit that cannot be read is none.
///
/// # Errors
/// [`NoRoom`], with what limits it.
pub fn check_room(bytes: usize) -> Result<(), NoRoom> {
    match bytes < SMALL_BYTES || cfg!(miri) {
        true => Ok(()),
        false => check_room_below(Path::new("/"), bytes as u64),
    }
}

/// As [`check_room`], by the files below `root`.
fn check_room_below(root: &Path, bytes: u64) -> Result<(), NoRoom> {
    let meminfo = fs::read_to_string(root.join("proc/meminfo")).unwrap_or_default();
    let of_machine = |field| kibibytes(&meminfo, field);
    let swap = of_machine("SwapFree:").unwrap_or(0);
    let groups = Groups::of_this_process(root);
    let of_groups = groups.limits().into_iter().map(|limit| NoRoom {
        bytes,
        free: limit.free(swap),
        holder: RoomHolder::Cgroup {
            used: limit.used(),
            limit: limit.bytes,
            file: limit.file,
        },
    });
    let machine = of_machine("MemAvailable:").map(|available| NoRoom {
        bytes,
        free: available.saturating_add(swap),
        holder: RoomHolder::Machine,
    });
    // Of equal ones the first: a group says more than the machine.
    let tightest = of_groups.chain(machine).min_by_key(|room| room.free);
    match tightest.filter(|room| room.free < bytes) {
        Some(room) => Err(room),
        None => Ok(()),
    }
}

/// Returns a field of /proc/meminfo in bytes (proc_meminfo(5)).
fn kibibytes(meminfo: &str, field: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(field))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}
