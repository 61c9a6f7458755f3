//! Where an agent is reached: by TCP, or on the same machine by a UNIX socket.

use std::fmt;
use std::net::SocketAddr;

use rustix::io;
use rustix::net::SocketAddrUnix;

/// An address of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    Tcp(SocketAddr),
    /// A UNIX socket without a file, whose name has the agent's cookie.
    Unix(u64),
}

impl Address {
    /// Returns the address with another port; a UNIX socket has none.
    pub(crate) fn with_port(self, port: u16) -> Self {
        match self {
            Self::Tcp(address) => Self::Tcp(SocketAddr::new(address.ip(), port)),
            Self::Unix(_) => self,
        }
    }

    /// Returns the name of a UNIX socket in the abstract namespace (unix(7)).
    pub(crate) fn unix_name(cookie: u64) -> io::Result<SocketAddrUnix> {
        SocketAddrUnix::new_abstract_name(format!("devmem-nixl-{cookie:016x}").as_bytes())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(_) => f.write_str("its UNIX socket"),
        }
    }
}
