//! Errors of netlink requests.

use std::fmt;

use devmem_uapi::text::Printable;
use rustix::io::Errno;

/// Why a netlink request failed: the operation, the errno, and the kernel's message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetlinkError {
    /// The operation, for people: `"set address of dm0"`.
    pub what: String,
    /// The errno.
    pub errno: Errno,
    /// The kernel's extended-ack message, if there was one.
    pub text: Option<String>,
    /// The attribute of the request that the extended ack names, if any.
    pub attribute: Option<BadAttribute>,
}

/// An attribute that the kernel refused or missed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadAttribute {
    /// Its name, after those of the nests around it, separated by dots: `"queues.id"`. An attribute without a known name
    /// appears as its number.
    pub path: String,
    /// Whether the attribute is missing; otherwise it is wrong.
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

    /// Returns the kernel's message and the attribute that it names, as text.
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
        write!(
            f,
            "{}: {errno} ({})",
            Printable(&self.what),
            errno.describe()
        )?;
        match self.kernel_words() {
            Some(words) => write!(f, " (kernel: {})", Printable(words)),
            None => Ok(()),
        }
    }
}

impl std::error::Error for NetlinkError {}
