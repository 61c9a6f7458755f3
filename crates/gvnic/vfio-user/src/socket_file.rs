//! The file of a UNIX socket: created, replaced if stale, removed.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Reason why a server cannot listen at a path.
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
    #[error("{}: {source}", .path.display())]
    System {
        /// The socket.
        path: PathBuf,
        /// Its error.
        source: io::Error,
    },
    /// Interrupts cannot be raised. [`SocketFile::bind`] does not return this error.
    #[error("interrupts cannot be raised: io_setup: {0}")]
    Interrupts(io::Error),
}

/// The file of a socket that this process listens on. Dropping it removes the file, unless it was replaced by another.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    file: (u64, u64),
}

impl SocketFile {
    /// Creates a socket at `path` with `bind`; removes a stale socket file there before.
    ///
    /// # Errors
    /// See [`ListenError`].
    pub fn bind<T>(
        path: &Path,
        bind: impl Fn(&Path) -> io::Result<T>,
    ) -> Result<(T, Self), ListenError> {
        let system = |source| ListenError::System {
            path: path.to_owned(),
            source,
        };
        let bound = match bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                remove_stale(path)?;
                bind(path)
            }
            bound => bound,
        };
        let bound = bound.map_err(system)?;
        let made = fs::symlink_metadata(path).map_err(system)?;
        let file = Self {
            path: path.to_owned(),
            file: (made.dev(), made.ino()),
        };
        Ok((bound, file))
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|found| (found.dev(), found.ino()) == self.file);
        if ours {
            // If that fails, the next server replaces the stale socket.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Returns whether accept(2) on a non-blocking listener failed with `error`, for lack of descriptors or memory, while a
/// connection waits. Without these resources the system call fails before it checks for a connection.
pub(crate) fn lacks_resources(listener: impl AsFd, error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
    if matches!(error.kind(), WouldBlock | Interrupted | ConnectionAborted) {
        return false;
    }
    let mut fds = [PollFd::new(&listener, PollFlags::IN)];
    matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1..))
}

/// Removes a socket without a listener.
fn remove_stale(path: &Path) -> Result<(), ListenError> {
    let path = path.to_owned();
    let system = |source| ListenError::System {
        path: path.clone(),
        source,
    };
    let found = fs::symlink_metadata(&path).map_err(system)?;
    if !found.file_type().is_socket() {
        return Err(ListenError::NotASocket { path });
    }
    // Only a socket without a listener answers ECONNREFUSED; one of another type answers EPROTOTYPE
    // (linux net/unix/af_unix.c unix_find_bsd).
    match UnixStream::connect(&path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(&path).map_err(system)
        }
        Err(source) if source.kind() == io::ErrorKind::PermissionDenied => {
            Err(ListenError::System { path, source })
        }
        _ => Err(ListenError::InUse { path }),
    }
}
