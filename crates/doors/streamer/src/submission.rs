//! What a request asks for.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

use crate::code::Code;
use crate::ffi::Target;

/// A range of a file, and the memory for it.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) start: u64,
    pub(crate) target: Target,
}

impl Wanted {
    /// Returns the bytes of the file. The end was checked.
    pub(crate) fn range(&self) -> std::ops::Range<u64> {
        self.start..self.start.saturating_add(self.target.len() as u64)
    }
}

/// A file, and what is wanted of it.
#[derive(Debug)]
pub(crate) struct FileWanted {
    pub(crate) path: OsString,
    pub(crate) ranges: Vec<Wanted>,
}

/// Where the bytes of a path are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    File,
    /// An object of an S3-compatible store, or a file of an HTTP server.
    Object,
}

impl Place {
    /// # Errors
    /// The code for a store that is not supported.
    pub(crate) fn of(path: &[u8]) -> Result<Self, Code> {
        let has = |scheme: &str| path.starts_with(scheme.as_bytes());
        if has("gs://") {
            return Err(Code::GcsNotSupported);
        }
        if has("az://") {
            return Err(Code::AzureNotSupported);
        }
        let is_object = ["s3://", "http://", "https://"].into_iter().any(has);
        Ok(if is_object { Self::Object } else { Self::File })
    }
}

impl FileWanted {
    /// # Errors
    /// As [`Place::of`].
    pub(crate) fn place(&self) -> Result<Place, Code> {
        Place::of(self.path.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheme_says_where_the_bytes_are() {
        assert_eq!(Place::of(b"/models/a.safetensors"), Ok(Place::File));
        assert_eq!(Place::of(b"s3://bucket/key"), Ok(Place::Object));
        assert_eq!(Place::of(b"http://host/file"), Ok(Place::Object));
        assert_eq!(Place::of(b"gs://bucket/key"), Err(Code::GcsNotSupported));
        assert_eq!(
            Place::of(b"az://container/key"),
            Err(Code::AzureNotSupported)
        );
        assert_eq!(Place::of(b"s3"), Ok(Place::File));
    }
}
