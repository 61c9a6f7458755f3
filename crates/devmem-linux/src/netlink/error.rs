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
}

impl NetlinkError {
    pub(super) fn new(what: &str, errno: Errno) -> Self {
        Self {
            what: what.to_owned(),
            errno,
            text: None,
        }
    }
}

impl fmt::Display for NetlinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, errno, text } = self;
        write!(f, "{what}: {errno}")?;
        match text {
            Some(text) => write!(f, " (kernel: {text})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for NetlinkError {}
