//! What to do about an error of an endpoint.

use std::fmt;

/// What to change or do next. Each interface has its own words for the named remedies: `Display` prints those of programs in Rust.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remedy {
    /// Words that mean the same in each interface.
    Text(&'static str),
    /// Both sides must expect the same length for a message.
    SameLength,
    /// The other process must pass the bytes of its ticket as they are.
    WholeTicket,
    /// Memory to publish must permit puts or gets.
    PermitAccess,
    /// The remedy of an error of the NIC or the memory.
    Library(devmem_tcp::Remedy),
}

impl From<&'static str> for Remedy {
    fn from(text: &'static str) -> Self {
        Self::Text(text)
    }
}

impl From<devmem_tcp::Remedy> for Remedy {
    fn from(remedy: devmem_tcp::Remedy) -> Self {
        Self::Library(remedy)
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::SameLength => {
                f.write_str("post a receive that is at least as long as the message")
            }
            Self::WholeTicket => f.write_str("pass the bytes that `Ticket::to_bytes` returned"),
            Self::PermitAccess => {
                f.write_str("register the memory with `Access::PUBLIC`, or with puts or gets alone")
            }
            Self::Library(remedy) => remedy.fmt(f),
        }
    }
}
