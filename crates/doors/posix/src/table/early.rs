//! Connections that begin with payload in their SYN (TCP Fast Open, RFC 7413), and listeners that accept them.

use std::net::SocketAddr;

use devmem_uapi::Errno;
use tcp::FastOpenModes;
use wire::Instant;

use super::send::{SendArgs, UnderWay};
use super::{SockState, Table};
use crate::abi::MSG_FASTOPEN;
use crate::sockaddr::{ParsedAddress, parse};

/// Whether a send has begun a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begun {
    /// No: it is an ordinary send.
    Nothing,
    /// Yes; the connection accepts more payload once it is open.
    Connecting,
}

impl Table {
    /// Returns whether connections may have payload in their SYN.
    pub(super) fn has_early_client(&self) -> bool {
        let modes = self.stack.tcp_config().fast_open.modes;
        modes.contains(FastOpenModes::CLIENT)
    }

    /// Applies the Fast Open options of a listener's file to the listener.
    pub(super) fn tell_fast_open(&mut self, fd: i32) -> Result<(), Errno> {
        let sock = self.sock(fd)?;
        let SockState::Listening(id) = sock.state else {
            return Ok(());
        };
        let fast_open = sock.options.fast_open;
        let told = self
            .stack
            .change_fast_open(id, |listener| fast_open.tell(listener));
        told.map_err(|error| error.errno())
    }

    /// Defers a connection until the first send if its SYN can then carry payload (TCP_FASTOPEN_CONNECT); returns whether
    /// it did.
    pub(super) fn defer(
        &mut self,
        fd: i32,
        remote: SocketAddr,
        now: Instant,
    ) -> Result<bool, Errno> {
        let fast_open = self.sock(fd)?.options.fast_open;
        let cookie = fast_open.cookie();
        let defers = fast_open.connect && self.stack.has_early_cookie(remote.ip(), cookie, now);
        if defers {
            self.sock_mut(fd)?.deferred = Some(remote);
        }
        Ok(defers)
    }

    /// Begins the connection of a send with MSG_FASTOPEN, or of the first send after a deferred connect, and puts payload
    /// into its SYN. Does nothing for any other send.
    ///
    /// # Errors
    /// EOPNOTSUPP (Fast Open is off, or the address is AF_UNSPEC), EISCONN, EALREADY, and as connect(2).
    pub(crate) fn send_early(
        &mut self,
        fd: i32,
        args: SendArgs<'_>,
        flags: u32,
        under_way: &mut UnderWay,
        now: Instant,
    ) -> Result<Begun, Errno> {
        let Ok(sock) = self.sock(fd) else {
            return Ok(Begun::Nothing);
        };
        let remote = match sock.deferred {
            Some(remote) if sock.state == SockState::Fresh => remote,
            _ if flags & MSG_FASTOPEN == 0 => return Ok(Begun::Nothing),
            _ => match self.early_peer(fd, args.address)? {
                Some(remote) => remote,
                None => return Ok(Begun::Nothing),
            },
        };
        let sock = self.sock_mut(fd)?;
        sock.deferred = None;
        sock.options.fast_open.by_send = true;
        let begun = self.connect_to(fd, remote, now);
        self.sock_mut(fd)?.options.fast_open.by_send = false;
        if begun != Err(Errno::EINPROGRESS) {
            return begun.map(|()| Begun::Nothing);
        }
        match self.send_on(fd, args, flags & !MSG_FASTOPEN, under_way) {
            Ok(_) | Err(Errno::EAGAIN) => Ok(Begun::Connecting),
            Err(errno) => Err(errno),
        }
    }

    /// Notes that a send waits until its connection is open.
    pub(crate) fn announce_write(&mut self, fd: i32) {
        if let Ok(Some(id)) = self.sock(fd).map(|sock| sock.state.id()) {
            // A connection that is gone needs no note.
            let _ = self.stack.await_open(id);
        }
    }

    /// Returns the peer of a send with MSG_FASTOPEN; `None` if an earlier attempt of the same call has connected already.
    fn early_peer(&mut self, fd: i32, address: &[u8]) -> Result<Option<SocketAddr>, Errno> {
        if !self.has_early_client() {
            return Err(Errno::EOPNOTSUPP);
        }
        let sock = self.sock(fd)?;
        match (sock.state, parse(address, sock.family)) {
            (_, Ok(ParsedAddress::Unspec)) => Err(Errno::EOPNOTSUPP),
            (SockState::Connecting(id), _) => self.connect_outcome(fd, id).map(|()| None),
            (SockState::Connected(_) | SockState::Listening(_), _) => Err(Errno::EISCONN),
            (SockState::Fresh, Ok(ParsedAddress::Address(remote))) => Ok(Some(remote)),
            (SockState::Fresh, Err(errno)) => Err(errno),
        }
    }
}
