//! Opens and reads small regular files of this program without blocking, whatever is at their path.
//!
//! If another user puts a FIFO at the path, open(2) and read(2) block until its other end is opened; a device may return
//! endless data; and a symbolic link may lead anywhere. So only regular files are opened, and they are read up to a limit.

use std::fmt;
use std::fs::{self, File, FileType, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// Why a file was not opened or read.
#[derive(Debug, thiserror::Error)]
pub enum SmallFileError {
    /// The path is not a regular file.
    #[error("it is {0}, and not a regular file")]
    Kind(FileKind),
    /// The file is longer than the limit.
    #[error("it is longer than {limit} bytes")]
    TooLong {
        /// The limit.
        limit: u64,
    },
    /// The error of the system.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl SmallFileError {
    /// Returns whether the path does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::System(error) if error.kind() == io::ErrorKind::NotFound)
    }
}

impl From<SmallFileError> for io::Error {
    fn from(error: SmallFileError) -> Self {
        match error {
            SmallFileError::System(error) => error,
            other => Self::new(io::ErrorKind::InvalidData, other),
        }
    }
}

/// Kind of a file that is not a regular file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A folder.
    Folder,
    /// A FIFO.
    Fifo,
    /// A UNIX socket.
    Socket,
    /// A block or character device.
    Device,
    /// A symbolic link to anything.
    SymbolicLink,
}

impl FileKind {
    /// Converts a file type; `None` for a regular file.
    fn of(kind: FileType) -> Option<Self> {
        let kinds = [
            (kind.is_dir(), Self::Folder),
            (kind.is_fifo(), Self::Fifo),
            (kind.is_socket(), Self::Socket),
            (
                kind.is_block_device() || kind.is_char_device(),
                Self::Device,
            ),
            (kind.is_symlink(), Self::SymbolicLink),
        ];
        let mut found = kinds.into_iter().filter(|(is, _)| *is);
        found.next().map(|(_, kind)| kind)
    }
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Folder => "a folder",
            Self::Fifo => "a FIFO",
            Self::Socket => "a socket",
            Self::Device => "a device",
            Self::SymbolicLink => "a symbolic link",
        })
    }
}

/// Purpose of opening a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenFor {
    /// Read an existing file.
    Reading,
    /// Write to a file, which is created for this user only if it does not exist. Its content is kept.
    Writing,
}

/// Opens a regular file, not through a symbolic link, without blocking.
///
/// # Errors
/// See [`SmallFileError`].
pub fn open(path: &Path, purpose: OpenFor) -> Result<File, SmallFileError> {
    // NOCTTY: a terminal at this path must not become the controlling terminal.
    let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let flags = i32::try_from(flags.bits()).unwrap_or(0);
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(flags);
    if purpose == OpenFor::Writing {
        options.write(true).create(true).truncate(false).mode(0o600);
    }
    match options.open(path) {
        Ok(file) => match FileKind::of(file.metadata()?.file_type()) {
            None => Ok(file),
            Some(kind) => Err(SmallFileError::Kind(kind)),
        },
        // The system's messages for these ("too many levels of symbolic links", "no such device") do not name the cause.
        Err(error) => match fs::symlink_metadata(path).map(|facts| FileKind::of(facts.file_type()))
        {
            Ok(Some(kind)) => Err(SmallFileError::Kind(kind)),
            Ok(None) | Err(_) => Err(SmallFileError::System(error)),
        },
    }
}

/// Reads all of an open regular file, up to `limit` bytes.
///
/// # Errors
/// [`SmallFileError::TooLong`], or the error of read(2).
pub fn read_open(file: &File, limit: u64) -> Result<Vec<u8>, SmallFileError> {
    let mut bytes = Vec::new();
    // The file may grow while it is read, so its length is not a limit.
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    match bytes.len() as u64 > limit {
        true => Err(SmallFileError::TooLong { limit }),
        false => Ok(bytes),
    }
}

/// Opens and reads a regular file of at most `limit` bytes.
///
/// # Errors
/// See [`open`] and [`read_open`].
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>, SmallFileError> {
    read_open(&open(path, OpenFor::Reading)?, limit)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn a_file_of_another_kind_is_refused_without_blocking() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        mknodat(CWD, at("fifo"), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        fs::create_dir(at("folder")).unwrap();
        fs::write(at("file"), "text").unwrap();
        symlink(at("file"), at("link")).unwrap();
        symlink(at("nowhere"), at("dangling")).unwrap();
        let kinds = [
            ("fifo", FileKind::Fifo),
            ("socket", FileKind::Socket),
            ("folder", FileKind::Folder),
            ("link", FileKind::SymbolicLink),
            ("dangling", FileKind::SymbolicLink),
        ];
        for (name, kind) in kinds {
            for purpose in [OpenFor::Reading, OpenFor::Writing] {
                let refused = open(&at(name), purpose).unwrap_err();
                assert!(
                    matches!(refused, SmallFileError::Kind(found) if found == kind),
                    "{name}: {refused}"
                );
            }
        }
        let device = open(Path::new("/dev/zero"), OpenFor::Reading).unwrap_err();
        assert_eq!(device.to_string(), "it is a device, and not a regular file");
        assert!(!at("nowhere").exists(), "no file is created through a link");
        assert!(read(&at("missing"), 10).unwrap_err().is_not_found());
        assert_eq!(read(&at("file"), 4).unwrap(), b"text");
    }

    #[test]
    fn a_file_is_read_up_to_a_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, [7; 100]).unwrap();
        assert_eq!(read(&path, 100).unwrap().len(), 100);
        let refused = read(&path, 99).unwrap_err();
        assert_eq!(refused.to_string(), "it is longer than 99 bytes");
    }
}
