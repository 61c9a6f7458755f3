//! The file of the socket on which one end of a UNIX wire listens.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use super::UnixPort;

/// The file of a socket. Dropping it removes the file, unless it was replaced by another.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    file: (u64, u64),
}

impl SocketFile {
    /// Returns a socket that listens at `path`, and its file; replaces a socket file there that nothing listens on.
    ///
    /// # Errors
    /// As [`UnixPort::bind`].
    pub(super) fn bind(path: &Path) -> io::Result<(OwnedFd, Self)> {
        let bound = match UnixPort::bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_stale(path) => {
                fs::remove_file(path)?;
                UnixPort::bind(path)
            }
            bound => bound,
        };
        let (socket, made) = (bound?, fs::symlink_metadata(path)?);
        let file = Self {
            path: path.to_owned(),
            file: (made.dev(), made.ino()),
        };
        Ok((socket, file))
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

/// Returns whether `path` is the socket of a process that has ended: connections to it are refused. A socket of the wrong type,
/// which is how a listener of a wire looks to this connect(2), is not refused.
fn is_stale(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    let refused = || {
        let connected = UnixStream::connect(path);
        connected.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
    };
    is_socket && refused()
}
