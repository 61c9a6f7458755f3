//! The file of a listening socket: created, taken over if its listener is gone, removed.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, open};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};

use crate::connecting::new_socket;
use crate::socket::PeerSocket;

/// Maximum time to wait for other processes that look at the files of a folder; each of them needs some tens of microseconds.
const LOCK_LIMIT: Duration = Duration::from_secs(5);
/// Time between two attempts to lock a folder.
const LOCK_PAUSE: Duration = Duration::from_millis(1);

/// Reason why a program cannot listen at a path.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another process listens there.
    #[error("{}: another process is listening there", .path.display())]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// The path exists and is not a socket.
    #[error("{}: exists and is not a socket", .path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// A system call failed.
    #[error("{}: {error}", .path.display())]
    System {
        /// The socket.
        path: PathBuf,
        /// Its error.
        error: io::Error,
    },
}

impl From<ListenError> for io::Error {
    fn from(error: ListenError) -> Self {
        match error {
            ListenError::InUse { .. } => Errno::ADDRINUSE.into(),
            ListenError::NotASocket { .. } => {
                Self::new(io::ErrorKind::AddrInUse, "the file is not a socket")
            }
            ListenError::System { error, .. } => error,
        }
    }
}

/// How to listen.
#[derive(Clone, Copy, Debug)]
pub struct ListenOptions {
    /// Kind of the socket and of its connections.
    pub kind: SocketType,
    /// Connections that wait to be accepted.
    pub backlog: i32,
    /// Whether they take descriptors from the beginning.
    pub descriptors: Descriptors,
}

/// Whether a peer may send descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Descriptors {
    /// The kernel refuses them, if it can (Linux 6.16).
    Refused,
    /// They are received.
    Taken,
}

/// The file of a socket that this process listens on. Dropping it removes the file, unless it was replaced by another.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    file: (u64, u64),
    /// Listens until the file is removed: no other process takes the file for that of a process that has ended before.
    _listener: Arc<PeerSocket>,
}

impl SocketFile {
    /// Listens at `path`, and creates the file there. Replaces one whose listener is gone; of several processes that do so at the
    /// same time, one listens and the others get [`ListenError::InUse`].
    ///
    /// The socket is non-blocking.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn listen(
        path: &Path,
        options: ListenOptions,
    ) -> Result<(Arc<PeerSocket>, Self), ListenError> {
        let system = |error: io::Error| ListenError::System {
            path: path.to_owned(),
            error,
        };
        let address = SocketAddrUnix::new(path).map_err(|errno| system(errno.into()))?;
        let mut listener = new_socket(options.kind).map_err(|errno| system(errno.into()))?;
        if options.descriptors == Descriptors::Taken {
            listener.take_descriptors().map_err(system)?;
        }
        let lock = FolderLock::of(path);
        match bind(&listener, &address) {
            Err(Errno::ADDRINUSE) => {
                remove_stale(path, &lock)?;
                bind(&listener, &address).map_err(|errno| match errno {
                    Errno::ADDRINUSE => ListenError::InUse {
                        path: path.to_owned(),
                    },
                    errno => system(errno.into()),
                })?;
            }
            bound => bound.map_err(|errno| system(errno.into()))?,
        }
        listen(&listener, options.backlog).map_err(|errno| system(errno.into()))?;
        let made = fs::symlink_metadata(path).map_err(system)?;
        let listener = Arc::new(listener);
        let file = Self {
            path: path.to_owned(),
            file: (made.dev(), made.ino()),
            _listener: Arc::clone(&listener),
        };
        Ok((listener, file))
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let found = fs::symlink_metadata(&self.path);
        if found.is_ok_and(|found| (found.dev(), found.ino()) == self.file) {
            // If that fails, the next listener replaces the file.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes a socket without a listener.
fn remove_stale(path: &Path, lock: &Result<FolderLock, Errno>) -> Result<(), ListenError> {
    let path = path.to_owned();
    let found = match fs::symlink_metadata(&path) {
        Ok(found) => found,
        // Its listener has removed it just now.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(ListenError::System { path, error }),
    };
    if !found.file_type().is_socket() {
        return Err(ListenError::NotASocket { path });
    }
    match has_listener(&path) {
        Ok(true) => Err(ListenError::InUse { path }),
        Err(error) => Err(ListenError::System {
            path,
            error: error.into(),
        }),
        Ok(false) => {
            // Without the lock, another process could have replaced the file by its own meanwhile.
            if let Err(errno) = lock {
                let text = format!(
                    "the socket there has no listener, but its folder cannot be locked to replace it: {errno}; remove the file"
                );
                let error = io::Error::new(io::Error::from(*errno).kind(), text);
                return Err(ListenError::System { path, error });
            }
            fs::remove_file(&path).map_err(|error| ListenError::System { path, error })
        }
    }
}

/// Returns whether a socket is bound to the file. Connects a socket of another type than a listener has, so that a listener
/// does not notice: a socket of the wrong type answers `EPROTOTYPE`, whatever its queue, and where there is none the answer is
/// `ECONNREFUSED` (linux net/unix/af_unix.c `unix_find_bsd`).
fn has_listener(path: &Path) -> Result<bool, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let probe = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
    match rustix::net::connect(&probe, &SocketAddrUnix::new(path)?) {
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(false),
        Err(Errno::ACCESS | Errno::PERM) => Err(Errno::ACCESS),
        _ => Ok(true),
    }
}

/// An exclusive lock of the folder of a socket, which all listeners of this crate take before they look whether a socket is stale,
/// and keep until they listen. It leaves no file behind.
#[derive(Debug)]
struct FolderLock {
    /// Unlocked when it is closed.
    _folder: OwnedFd,
}

impl FolderLock {
    /// Waits for the lock, at most [`LOCK_LIMIT`].
    ///
    /// # Errors
    /// As open(2) and flock(2).
    fn of(path: &Path) -> Result<Self, Errno> {
        let folder = match path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let folder: OwnedFd = open(folder, flags, Mode::empty())?;
        let start = Instant::now();
        loop {
            match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { _folder: folder }),
                Err(Errno::AGAIN) if start.elapsed() < LOCK_LIMIT => std::thread::sleep(LOCK_PAUSE),
                Err(errno) => return Err(errno),
            }
        }
    }
}

#[cfg(test)]
mod tests;
