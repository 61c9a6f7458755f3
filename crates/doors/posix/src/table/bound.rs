//! bind(2), and the files bound to each port.

use std::net::SocketAddr;

use devmem_uapi::Errno;
use stack::BindAddr;

use super::{FileKind, Sock, SockState, Table};
use crate::sockaddr::{ParsedAddress, parse};

/// How a port was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    /// By the program: a conflict is allowed if both sockets permit it.
    ParsedAddress,
    /// By the table: it must be unused.
    Ours,
}

impl Sock {
    /// Returns what `address` means to this socket.
    pub(super) fn bind_addr(&self, address: SocketAddr) -> BindAddr {
        BindAddr {
            address,
            v6_only: self.options.v6_only,
            reuse_port: self.options.reuse_port,
        }
    }
}

impl Table {
    /// bind(2).
    ///
    /// # Errors
    /// EBADF, ENOTSOCK, EINVAL (bound already, address too short), EAFNOSUPPORT, EADDRNOTAVAIL, EADDRINUSE.
    pub fn bind(&mut self, fd: i32, address: &[u8]) -> Result<(), Errno> {
        let sock = self.sock(fd)?;
        let address = match parse(address, sock.family)? {
            ParsedAddress::Address(address) => address,
            ParsedAddress::Unspec => return Err(Errno::EAFNOSUPPORT),
        };
        let has_port = sock.bound.is_some_and(|bound| bound.port() != 0);
        if has_port || sock.state != SockState::Fresh {
            return Err(Errno::EINVAL);
        }
        if sock.options.v6_only && address.is_ipv4() {
            return Err(Errno::EINVAL);
        }
        if !address.ip().is_unspecified() && !self.stack.may_bind(address.ip()) {
            return Err(Errno::EADDRNOTAVAIL);
        }
        let (given, without_port) = (address, sock.options.bind_without_port);
        let address = match address.port() {
            0 if without_port => address,
            0 => self.free_port(fd, address)?,
            _ if self.is_taken(fd, address, Choice::ParsedAddress) => {
                return Err(Errno::EADDRINUSE);
            }
            _ => address,
        };
        self.sock_mut(fd)?.kept = Some(given);
        self.set_bound(fd, Some(address))
    }

    /// Returns `address` with an unused port.
    ///
    /// # Errors
    /// EADDRINUSE.
    pub(super) fn free_port(&mut self, fd: i32, address: SocketAddr) -> Result<SocketAddr, Errno> {
        let begin = self.stack.first_port(address.ip());
        let ports = self.stack.ports_to_choose();
        let ports = (begin..=*ports.end()).chain(*ports.start()..begin);
        let mut candidates = ports.map(|port| SocketAddr::new(address.ip(), port));
        let free = candidates.find(|candidate| !self.is_taken(fd, *candidate, Choice::Ours));
        free.ok_or(Errno::EADDRINUSE)
    }

    /// Returns whether another socket's address conflicts (linux net/ipv4/inet_connection_sock.c
    /// `inet_csk_bind_conflict`): the same port at overlapping addresses, unless both sockets allow it. SO_REUSEADDR allows
    /// it with sockets that do not listen, SO_REUSEPORT with all.
    fn is_taken(&self, fd: i32, address: SocketAddr, choice: Choice) -> bool {
        let Ok(ours) = self.sock(fd) else {
            return true;
        };
        let (own, local) = (self.index_of(fd).ok(), ours.bind_addr(address));
        let (reuse, reuse_port) = (ours.options.reuse_addr, ours.options.reuse_port);
        let conflicts = |index: &usize| {
            let Some(FileKind::Socket(other)) = self.files.get(*index).map(|file| &file.kind)
            else {
                return false;
            };
            let theirs = other.bound.map(|bound| other.bind_addr(bound));
            let listens = matches!(other.state, SockState::Listening(_));
            let shared = reuse && other.options.reuse_addr && !listens
                || reuse_port && other.options.reuse_port;
            theirs.is_some_and(|theirs| theirs.overlaps(&local))
                && !(shared && choice == Choice::ParsedAddress)
        };
        let owners = self.by_port.get(&address.port());
        let mut others = owners
            .into_iter()
            .flatten()
            .filter(|index| Some(**index) != own);
        // Connections without a file, TIME-WAIT among them, count as opened with SO_REUSEADDR: nothing else is known.
        let shares = (reuse || reuse_port) && choice == Choice::ParsedAddress;
        others.any(conflicts) || !shares && self.stack.is_port_in_use(local)
    }

    /// Sets or removes the address of a socket.
    pub(super) fn set_bound(&mut self, fd: i32, bound: Option<SocketAddr>) -> Result<(), Errno> {
        let index = self.index_of(fd)?;
        let was = std::mem::replace(&mut self.sock_mut(fd)?.bound, bound);
        self.forget_port(index, was);
        if let Some(port) = bound.map(|bound| bound.port()).filter(|port| *port != 0) {
            self.by_port.entry(port).or_default().insert(index);
        }
        Ok(())
    }

    /// Releases the port of the file at `index`.
    pub(super) fn forget_port(&mut self, index: usize, was: Option<SocketAddr>) {
        let Some(port) = was.map(|was| was.port()) else {
            return;
        };
        if let Some(owners) = self.by_port.get_mut(&port) {
            owners.remove(&index);
            if owners.is_empty() {
                self.by_port.remove(&port);
            }
        }
    }
}
