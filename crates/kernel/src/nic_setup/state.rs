//! The state file: the settings to restore if the process that changed them crashes.
//!
//! There are two files per interface: a lock, held by the process that changed the interface (the kernel releases it when the
//! process ends, in any way), and the record, which is replaced as a whole before and after each change.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use devmem_uapi::IfIndex;
use devmem_uapi::text::Printable;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::state_fault::StateFault;
use super::undo::Undo;
use crate::ethtool::EthtoolError;
use crate::small_file::{self, OpenFor, SmallFileError};

/// The version of the record's format. A program with another version does not use the file.
const VERSION: u32 = 1;
/// Largest record in bytes: an RSS table of a few thousand entries, twice.
const RECORD_BYTES_MAX: u64 = 4 << 20;

/// Why a state file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A running process has set the interface up.
    #[error("{interface} is in use by another devmem-tcp process{}", pid_words(.pid), interface = Printable(.interface))]
    Busy {
        /// The interface, or the file.
        interface: String,
        /// The process, if its record says.
        pid: Option<u32>,
    },
    /// A process crashed and left the interface changed.
    #[error("{interface} was left changed by a crashed process ({})", Printable(.path.display()), interface = Printable(.interface))]
    Leftover {
        /// The interface.
        interface: String,
        /// Its state file.
        path: PathBuf,
    },
    /// No folder for state files.
    #[error("the folder of state files {}: {error}", Printable(.path.display()))]
    Folder {
        /// Its path.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// Other users can write to the folder of state files.
    #[error("the folder of state files {}: {fault}", Printable(.path.display()))]
    FolderNotOurs {
        /// The folder.
        path: PathBuf,
        /// The problem.
        fault: StateFault,
    },
    /// The file could not be read or written.
    #[error("state file {}: {error}", Printable(.path.display()))]
    File {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// The file is not a valid state file, or is from another boot or network namespace.
    #[error("state file {}: {fault}", Printable(.path.display()))]
    NotOurs {
        /// The file.
        path: PathBuf,
        /// The problem.
        fault: StateFault,
    },
    /// The interface could not be read.
    #[error(transparent)]
    Kernel(EthtoolError),
}

impl StateError {
    /// Returns what to do about it.
    pub fn remedy(&self) -> Option<String> {
        match self {
            Self::NotOurs { path, fault } | Self::FolderNotOurs { path, fault } => {
                fault.remedy(path)
            }
            Self::Leftover { .. } => Some("`devmem-tcp restore` restores it".to_owned()),
            Self::Busy { .. } | Self::Folder { .. } | Self::File { .. } | Self::Kernel(_) => None,
        }
    }

    /// Returns whether the error is that the file does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::File { error, .. } if error.kind() == ErrorKind::NotFound)
    }

    fn of_file(path: &Path, error: SmallFileError) -> Self {
        let path = path.to_owned();
        let fault = match error {
            SmallFileError::System(error) => return Self::File { path, error },
            SmallFileError::Kind(kind) => StateFault::Kind(kind),
            SmallFileError::TooLong { limit } => StateFault::TooLong { limit },
        };
        Self::NotOurs { path, fault }
    }
}

fn pid_words(pid: &Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" (process {pid})"))
}

/// The content of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    version: u32,
    /// Id of the boot: settings of a NIC do not survive a reboot.
    boot_id: String,
    /// The network namespace of the interface.
    netns: u64,
    /// For people.
    pub(super) pid: u32,
    pub(super) interface: String,
    ifindex: u32,
    pub(super) undo: Vec<Undo>,
}

impl Record {
    /// Reads a record from the bytes of a file.
    ///
    /// # Errors
    ///
    /// The problem of the file.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, StateFault> {
        // The version is checked first: other versions may have other fields.
        let Versioned { version } = serde_json::from_slice(bytes).map_err(StateFault::Damaged)?;
        match version {
            VERSION => serde_json::from_slice(bytes).map_err(StateFault::Damaged),
            found => Err(StateFault::Version {
                found,
                ours: VERSION,
            }),
        }
    }

    pub(super) fn index(&self) -> IfIndex {
        IfIndex(self.ifindex)
    }

    /// Returns whether the record is void: it has no changes, or a reboot has undone them.
    pub(super) fn is_void(&self) -> bool {
        self.boot_id != boot_id() || self.undo.is_empty()
    }

    /// Returns whether the interface is in this thread's network namespace.
    pub(super) fn is_of_this_namespace(&self) -> Result<bool, StateError> {
        Ok(self.netns == netns_inode()?)
    }
}

/// The claim of this process on an interface.
#[derive(Debug)]
pub(super) struct StateFile {
    path: PathBuf,
    interface: String,
    index: IfIndex,
    lock: Lock,
}

/// A locked file. The kernel unlocks it when the process and all forked processes that hold the file have ended.
#[derive(Debug)]
struct Lock {
    file: File,
    /// The process that locked it. A child of fork(2) must not unlock its copy, because that would unlock the parent's.
    pid: u32,
}

impl Lock {
    fn is_of_this_process(&self) -> bool {
        self.pid == std::process::id()
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing is not enough: a child between fork and exec may hold the same lock for a moment.
        if self.is_of_this_process() {
            let _ = flock(&self.file, FlockOperation::Unlock);
        }
    }
}

impl StateFile {
    /// Claims an interface. Nothing is written until the first change.
    pub(super) fn claim(
        interface: &str,
        index: IfIndex,
        folder: Option<&Path>,
    ) -> Result<Self, StateError> {
        let folder = match folder {
            Some(folder) => folder.to_owned(),
            None => default_folder(),
        };
        make_folder(&folder)?;
        let path = folder.join(format!("{interface}-{}.json", netns_inode()?));
        let lock = lock(&path, interface)?;
        match read(&path) {
            Ok(record) if !record.is_void() => {
                return Err(StateError::Leftover {
                    interface: record.interface,
                    path,
                });
            }
            // A record of another boot, or an empty one, is void.
            Ok(_) => remove(&path),
            Err(StateError::File { error, .. }) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(Self {
            path,
            interface: interface.to_owned(),
            index,
            lock,
        })
    }

    /// Takes over the state file of a process that has died.
    pub(super) fn take_over(path: &Path) -> Result<(Self, Record), StateError> {
        let lock = lock(path, &path.display().to_string())?;
        let record = read(path)?;
        let not_ours = |fault| StateError::NotOurs {
            path: path.to_owned(),
            fault,
        };
        if record.boot_id != boot_id() {
            remove(path);
            return Err(not_ours(StateFault::OtherBoot));
        }
        if !record.is_of_this_namespace()? {
            return Err(not_ours(StateFault::OtherNamespace));
        }
        let state = Self {
            path: path.to_owned(),
            interface: record.interface.clone(),
            index: record.index(),
            lock,
        };
        Ok((state, record))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns whether this process holds the claim; false in a child of fork(2).
    pub(super) fn is_of_this_process(&self) -> bool {
        self.lock.is_of_this_process()
    }

    /// Replaces the record.
    pub(super) fn write(&self, undo: &[Undo]) -> Result<(), StateError> {
        let record = Record {
            version: VERSION,
            boot_id: boot_id(),
            netns: netns_inode()?,
            pid: std::process::id(),
            interface: self.interface.clone(),
            ifindex: self.index.0,
            undo: undo.to_vec(),
        };
        let failed = |error| StateError::File {
            path: self.path.clone(),
            error,
        };
        let json = serde_json::to_vec(&record).map_err(|e| failed(e.into()))?;
        let temporary = self.path.with_extension("json.new");
        let mut file = open_private(&temporary, OpenFor::Writing)?;
        file.set_len(0).map_err(failed)?;
        file.write_all(&json).map_err(failed)?;
        // A power failure undoes the NIC's settings too, so nothing needs to reach a disk.
        fs::rename(&temporary, &self.path).map_err(failed)
    }

    /// Ends the claim: removes the record, or keeps the changes that could not be undone.
    pub(super) fn finish(&mut self, kept: &[Undo]) {
        match kept {
            [] => remove(&self.path),
            // An error is ignored: the old record has more changes than are left, but can be restored from as well.
            _ => drop(self.write(kept)),
        }
    }
}

/// Lists the state files of this user, including those of running processes.
///
/// # Errors
/// [`StateError::Folder`], [`StateError::FolderNotOurs`]: their folder is there and cannot be read, or others may write to it.
pub fn state_files() -> Result<Vec<PathBuf>, StateError> {
    let folder = default_folder();
    let failed = |error| StateError::Folder {
        path: folder.clone(),
        error,
    };
    if !folder_is_ours(&folder)? {
        return Ok(Vec::new());
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(&folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|e| e == "json") {
            files.push(path);
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// For root, the folder is one that only root can write to, independent of the environment: the files make root change a NIC.
fn default_folder() -> PathBuf {
    let root = rustix::process::geteuid().is_root();
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(folder) if !root && !folder.is_empty() => PathBuf::from(folder).join("devmem-tcp"),
        _ => PathBuf::from("/run/devmem-tcp"),
    }
}

fn make_folder(folder: &Path) -> Result<(), StateError> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(StateError::Folder {
            path: folder.to_owned(),
            error,
        }),
        _ => folder_is_ours(folder).map(drop),
    }
}

/// Checks the folder: the program acts on its files, so no other user may be able to write there. Returns false if it does not
/// exist.
fn folder_is_ours(folder: &Path) -> Result<bool, StateError> {
    let path = || folder.to_owned();
    let facts = match fs::symlink_metadata(folder) {
        Ok(facts) => facts,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => {
            return Err(StateError::Folder {
                path: path(),
                error,
            });
        }
    };
    let fault = match facts.is_dir() {
        true => StateFault::of_rights(&facts),
        false => Some(StateFault::NoFolder),
    };
    match fault {
        None => Ok(true),
        Some(fault) => Err(StateError::FolderNotOurs {
            path: path(),
            fault,
        }),
    }
}

/// Locks the interface for this process; the error names the process that holds the lock.
fn lock(path: &Path, interface: &str) -> Result<Lock, StateError> {
    let lock_path = path.with_extension("lock");
    let failed = |error| StateError::File {
        path: lock_path.clone(),
        error,
    };
    let file = open_private(&lock_path, OpenFor::Writing)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Lock {
            file,
            pid: std::process::id(),
        }),
        Err(rustix::io::Errno::WOULDBLOCK) => {
            let record = read(path).ok();
            Err(StateError::Busy {
                interface: record
                    .as_ref()
                    .map_or_else(|| interface.to_owned(), |r| r.interface.clone()),
                pid: record.map(|record| record.pid),
            })
        }
        Err(errno) => Err(failed(errno.into())),
    }
}

/// Returns whether the process that wrote the record is alive, which means that it holds the lock.
pub(super) fn is_owned(path: &Path) -> Result<bool, StateError> {
    match lock(path, "") {
        Ok(_unlocked_at_once) => Ok(false),
        Err(StateError::Busy { .. }) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Reads a record, if no other user can have written it.
pub(super) fn read(path: &Path) -> Result<Record, StateError> {
    let not_ours = |fault| StateError::NotOurs {
        path: path.to_owned(),
        fault,
    };
    let file = open_private(path, OpenFor::Reading)?;
    let bytes = small_file::read_open(&file, RECORD_BYTES_MAX)
        .map_err(|error| StateError::of_file(path, error))?;
    Record::parse(&bytes).map_err(not_ours)
}

/// Fields of records of all versions.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// Opens a file that only this user may write to; never through a symbolic link, and without blocking.
fn open_private(path: &Path, purpose: OpenFor) -> Result<File, StateError> {
    let file = small_file::open(path, purpose).map_err(|error| StateError::of_file(path, error))?;
    let facts = file.metadata().map_err(|error| StateError::File {
        path: path.to_owned(),
        error,
    })?;
    match StateFault::of_rights(&facts) {
        None => Ok(file),
        Some(fault) => Err(StateError::NotOurs {
            path: path.to_owned(),
            fault,
        }),
    }
}

fn remove(path: &Path) {
    // A record that cannot be removed is void, or restores what is restored already.
    let _ = fs::remove_file(path);
}

fn boot_id() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.map_or_else(|_| String::new(), |id| id.trim().to_owned())
}

fn netns_inode() -> Result<u64, StateError> {
    let path = Path::new("/proc/thread-self/ns/net");
    let facts = fs::metadata(path).map_err(|error| StateError::File {
        path: path.to_owned(),
        error,
    })?;
    Ok(facts.ino())
}
