//! The state file: what to put back, for a process that cannot do it any more.
//!
//! Two files an interface: a lock, held as long as the process that changed it lives (the kernel lets go of it
//! when that dies, however it dies), and the record, replaced as a whole before and after each change.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use devmem_uapi::IfIndex;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::state_fault::StateFault;
use super::undo::Undo;
use crate::ethtool::EthtoolError;
use crate::small_file::{self, OpenFor, SmallFileError};

/// The format of the record. A program that knows another number leaves the file alone.
pub(super) const VERSION: u32 = 1;
/// No record is longer: a table of a few thousand entries, twice.
const RECORD_BYTES_MAX: u64 = 4 << 20;

/// Why a state file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A living process has prepared the interface.
    #[error("{interface} is being used by another process of ours{}", pid_words(.pid))]
    Busy {
        /// The interface, or the file.
        interface: String,
        /// The process, if its record says.
        pid: Option<u32>,
    },
    /// A process crashed and left the interface changed.
    #[error("{interface} is as a crashed process left it: `devmem-tcp restore` puts it back ({})", path.display())]
    Leftover {
        /// The interface.
        interface: String,
        /// Its state file.
        path: PathBuf,
    },
    /// No folder for state files.
    #[error("the folder of state files {}: {source}", path.display())]
    Folder {
        /// The one tried.
        path: PathBuf,
        /// What was said.
        source: io::Error,
    },
    /// The folder for state files is not one that this user alone can write to.
    #[error("the folder of state files {}: {fault}{}", path.display(), fault.remedy(path))]
    FolderNotOurs {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        fault: StateFault,
    },
    /// The file could not be read or written.
    #[error("state file {}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What was said.
        source: io::Error,
    },
    /// The file is not one of ours, or not for here and now.
    #[error("state file {}: {fault}{}", path.display(), fault.remedy(path))]
    NotOurs {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        fault: StateFault,
    },
    /// The interface could not be reached.
    #[error(transparent)]
    Kernel(EthtoolError),
}

impl StateError {
    /// Tells whether the file is not there.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::File { source, .. } if source.kind() == ErrorKind::NotFound)
    }

    fn of_file(path: &Path, error: SmallFileError) -> Self {
        let path = path.to_owned();
        let fault = match error {
            SmallFileError::System(source) => return Self::File { path, source },
            SmallFileError::Kind(kind) => StateFault::Kind(kind),
            SmallFileError::TooLong { limit } => StateFault::TooLong { limit },
        };
        Self::NotOurs { path, fault }
    }
}

fn pid_words(pid: &Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" (process {pid})"))
}

/// What is in the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    version: u32,
    /// A boot undoes everything: settings of a NIC do not survive it.
    boot_id: String,
    /// Names of interfaces mean something in one network namespace only.
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
    /// What is wrong with them.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, StateFault> {
        // The version first: another one may have other fields.
        let Versioned { version } = serde_json::from_slice(bytes).map_err(StateFault::Damaged)?;
        match version {
            VERSION => serde_json::from_slice(bytes).map_err(StateFault::Damaged),
            other => Err(StateFault::Version(other)),
        }
    }

    pub(super) fn index(&self) -> IfIndex {
        IfIndex(self.ifindex)
    }

    /// Tells whether nothing can be left of it.
    pub(super) fn is_void(&self) -> bool {
        self.boot_id != boot_id() || self.undo.is_empty()
    }

    /// Tells whether the interface is one of this thread's network namespace.
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

/// A locked file. The kernel unlocks it when the process dies, and all that it forked and that hold the file.
#[derive(Debug)]
struct Lock {
    file: File,
    /// The process that locked it: a child by fork(2) has a copy, and unlocking that would unlock its parent's.
    pid: u32,
}

impl Lock {
    fn is_of_this_process(&self) -> bool {
        self.pid == std::process::id()
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing would do, were it not that a child between fork and exec holds the same lock for a moment.
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
            // Of another boot, or empty: void.
            Ok(_) => remove(&path),
            Err(StateError::File { source, .. }) if source.kind() == ErrorKind::NotFound => {}
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

    /// Tells whether this process has the claim, and not the one that forked it.
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
        let failed = |source| StateError::File {
            path: self.path.clone(),
            source,
        };
        let json = serde_json::to_vec(&record).map_err(|e| failed(e.into()))?;
        let temporary = self.path.with_extension("json.new");
        let mut file = open_private(&temporary, OpenFor::Writing)?;
        file.set_len(0).map_err(failed)?;
        file.write_all(&json).map_err(failed)?;
        // A power failure undoes the NIC's settings too, so nothing needs to reach a disk.
        fs::rename(&temporary, &self.path).map_err(failed)
    }

    /// Ends the claim: removes the record, or keeps what could not be put back.
    pub(super) fn finish(&mut self, kept: &[Undo]) {
        match kept {
            [] => remove(&self.path),
            // The old record says more than what is left; either can be restored from.
            _ => drop(self.write(kept)),
        }
    }
}

/// Lists the state files of this user, those of living processes too.
///
/// # Errors
/// [`StateError::Folder`], [`StateError::FolderNotOurs`]: their folder is there and cannot be read, or others may write to it.
pub fn state_files() -> Result<Vec<PathBuf>, StateError> {
    let folder = default_folder();
    let failed = |source| StateError::Folder {
        path: folder.clone(),
        source,
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

/// Root's files are in a folder that only root can write, whatever its environment says: they tell root what to
/// do to a NIC.
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
            source: error,
        }),
        _ => folder_is_ours(folder).map(drop),
    }
}

/// Judges the folder: what lies in it is obeyed, so that nobody else may put anything there. False if there is none.
fn folder_is_ours(folder: &Path) -> Result<bool, StateError> {
    let path = || folder.to_owned();
    let facts = match fs::symlink_metadata(folder) {
        Ok(facts) => facts,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(source) => {
            return Err(StateError::Folder {
                path: path(),
                source,
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

/// Locks the interface for this process, or says who has it.
fn lock(path: &Path, interface: &str) -> Result<Lock, StateError> {
    let lock_path = path.with_extension("lock");
    let failed = |source| StateError::File {
        path: lock_path.clone(),
        source,
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

/// Tells whether the process that wrote the record lives: it holds the lock.
pub(super) fn is_owned(path: &Path) -> Result<bool, StateError> {
    match lock(path, "") {
        Ok(_unlocked_at_once) => Ok(false),
        Err(StateError::Busy { .. }) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Reads a record, if nobody else can have written it.
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

/// What records of all versions have.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

/// Opens a file that this user alone may write to; never through a symbolic link, and without waiting.
fn open_private(path: &Path, purpose: OpenFor) -> Result<File, StateError> {
    let file = small_file::open(path, purpose).map_err(|error| StateError::of_file(path, error))?;
    let facts = file.metadata().map_err(|source| StateError::File {
        path: path.to_owned(),
        source,
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
    // A record that stays is void or restores what is restored already: no harm.
    let _ = fs::remove_file(path);
}

fn boot_id() -> String {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id");
    id.map_or_else(|_| String::new(), |id| id.trim().to_owned())
}

fn netns_inode() -> Result<u64, StateError> {
    let path = Path::new("/proc/thread-self/ns/net");
    let facts = fs::metadata(path).map_err(|source| StateError::File {
        path: path.to_owned(),
        source,
    })?;
    Ok(facts.ino())
}
