//! What a netlink request can fail with.

use std::fmt;

use rustix::io::Errno;

/// A refused or failed netlink request: what was asked, the kernel's errno, and its words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetlinkError {
    /// What was being done, for people: `"set address of dm0"`.
    pub what: String,
    /// The errno that came back.
    pub errno: Errno,
    /// The kernel's extended-acknowledgement text, if it gave one.
    pub text: Option<String>,
    /// The attribute of the request that the kernel pointed at, if it did.
    pub attribute: Option<BadAttribute>,
}

/// Which part of a request the kernel did not like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadAttribute {
    /// Names from the outermost nest inward, with dots: `"queues.id"`. An attribute without a name
    /// here appears as its number.
    pub path: String,
    /// The attribute is not there and should be; else it is there and wrong.
    pub missing: bool,
}

impl fmt::Display for BadAttribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, missing } = self;
        match missing {
            true => write!(f, "attribute {path} is missing"),
            false => write!(f, "attribute {path} is not accepted"),
        }
    }
}

impl NetlinkError {
    pub(crate) fn new(what: &str, errno: Errno) -> Self {
        Self {
            what: what.to_owned(),
            errno,
            text: None,
            attribute: None,
        }
    }

    /// Returns what the kernel said beyond the errno: its text, and the attribute it pointed at.
    pub fn kernel_words(&self) -> Option<String> {
        match (&self.text, &self.attribute) {
            (Some(text), Some(attribute)) => Some(format!("{text} ({})", attribute.path)),
            (Some(text), None) => Some(text.clone()),
            (None, Some(attribute)) => Some(attribute.to_string()),
            (None, None) => None,
        }
    }
}

impl fmt::Display for NetlinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let errno = devmem_uapi::Errno(self.errno.raw_os_error());
        write!(f, "{}: {errno} ({})", self.what, errno.describe())?;
        match self.kernel_words() {
            Some(words) => write!(f, " (kernel: {words})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for NetlinkError {}
