//! Files of this program's own that must be regular files: opened and read without waiting, whatever lies in their place.
//!
//! A FIFO in the place of a file makes open(2) and read(2) wait for its other end, a device may give bytes without end,
//! and a symbolic link leads elsewhere. What is opened here is a regular file, and is read up to a limit.

use std::fmt;
use std::fs::{self, File, FileType, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// Why a file was not opened or read.
#[derive(Debug, thiserror::Error)]
pub enum SmallFileError {
    /// Something else lies there.
    #[error("it is {0}, and not a regular file")]
    Kind(FileKind),
    /// It has more bytes than any such file.
    #[error("it is longer than {limit} bytes")]
    TooLong {
        /// The limit.
        limit: u64,
    },
    /// What the system said.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl SmallFileError {
    /// Tells whether there is nothing at the path.
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

/// What lies in the place of a regular file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A folder.
    Folder,
    /// A FIFO.
    Fifo,
    /// A UNIX socket.
    Socket,
    /// A device of either kind.
    Device,
    /// A symbolic link, whatever it leads to.
    SymbolicLink,
}

impl FileKind {
    /// `None` for a regular file.
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

/// What a file is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenFor {
    /// To read one that exists.
    Reading,
    /// To write to one that exists, or is made for this user alone. What is in it stays.
    Writing,
}

/// Opens a regular file, not through a symbolic link, without waiting for anything.
///
/// # Errors
/// See [`SmallFileError`].
pub fn open(path: &Path, purpose: OpenFor) -> Result<File, SmallFileError> {
    // Without a controlling terminal that a device in the file's place would become, either.
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
        // The system's own words for these ("too many levels of symbolic links", "no such device") help nobody.
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
/// [`SmallFileError::TooLong`]; what read(2) said.
pub fn read_open(file: &File, limit: u64) -> Result<Vec<u8>, SmallFileError> {
    let mut bytes = Vec::new();
    // The file may grow while it is read, so its length is no bound.
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
    fn what_is_no_regular_file_is_refused_without_waiting_for_it() {
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
        assert!(!at("nowhere").exists(), "nothing is made behind a link");
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
