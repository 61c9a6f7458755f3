//! A UNIX socket's file: made, found left behind, removed.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Why nothing can listen at a path.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Somebody listens there.
    #[error("{}: another process is listening there", .path.display())]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// Something is there that is not a socket.
    #[error("{}: exists and is not a socket", .path.display())]
    NotASocket {
        /// What is there.
        path: PathBuf,
    },
    /// The system refused.
    #[error("{}: {source}", .path.display())]
    System {
        /// The socket.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// There is no way to raise interrupts. [`SocketFile::bind`] raises none.
    #[error("interrupts cannot be raised: io_setup: {0}")]
    Interrupts(io::Error),
}

/// The file of a socket that this process listens on; dropping it removes the file, unless another is there by now.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    file: (u64, u64),
}

impl SocketFile {
    /// Has `bind` make a socket at `path`; a file there to which nobody listens any more is removed before.
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
            // If that fails, the next one to listen finds a stale socket and replaces it.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Tells whether accept(2) on a non-blocking listener failed with `error` although somebody waits there: for want of
/// descriptors or memory. Without them the system fails before it looks whether anybody does.
pub(crate) fn is_shut_out(listener: impl AsFd, error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, Interrupted, WouldBlock};
    if matches!(error.kind(), WouldBlock | Interrupted | ConnectionAborted) {
        return false;
    }
    let mut fds = [PollFd::new(&listener, PollFlags::IN)];
    matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1..))
}

/// Removes a socket that nobody listens to.
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
    // A listener of any type answers something else than "refused": EPROTOTYPE if it is not this one
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
