//! The id of a socket.

use std::fmt;

/// The id of a socket of a stack. It contains a generation beside the slot: the id of a closed socket is refused (EBADF),
/// and does not name a later socket in the same slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SocketId {
    pub(super) slot: u32,
    pub(super) generation: u32,
}

impl SocketId {
    pub(crate) fn slot(self) -> u32 {
        self.slot
    }
}

impl fmt::Display for SocketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "socket {}.{}", self.slot, self.generation)
    }
}

impl fmt::Debug for SocketId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
