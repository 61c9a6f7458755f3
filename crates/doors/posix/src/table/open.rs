//! socket, bind, listen, accept, connect.

use std::net::{IpAddr, SocketAddr};

use devmem_uapi::Errno;
use stack::{AcceptError, Readiness, SocketId};
use tcp::StateKind;
use wire::Instant;

use super::{FileKind, Sock, SockState, Table};
use crate::abi::{
    IPPROTO_MPTCP, IPPROTO_TCP, SOCK_CLOEXEC, SOCK_NONBLOCK, SOCK_STREAM, SOCK_TYPE_MASK, SOMAXCONN,
};
use crate::options::Options;
use crate::sockaddr::{FAMILY_LEN, Family, ParsedAddress, emit, parse};

impl Table {
    /// socket(2).
    ///
    /// # Errors
    /// EAFNOSUPPORT, EINVAL (flags), EPROTONOSUPPORT; EOPNOTSUPP for socket types other than SOCK_STREAM;
    /// EMFILE.
    pub fn socket(&mut self, domain: i32, kind: i32, protocol: i32) -> Result<i32, Errno> {
        let family = Family::from_domain(domain).ok_or(Errno::EAFNOSUPPORT)?;
        let flags = kind & !SOCK_TYPE_MASK;
        if flags & !(SOCK_NONBLOCK | SOCK_CLOEXEC) != 0 {
            return Err(Errno::EINVAL);
        }
        match (kind & SOCK_TYPE_MASK, protocol) {
            (SOCK_STREAM, 0 | IPPROTO_TCP) => {}
            (SOCK_STREAM, 0..=IPPROTO_MPTCP) => return Err(Errno::EPROTONOSUPPORT),
            // There are no such protocols (linux `inet_create`).
            (SOCK_STREAM, _) => return Err(Errno::EINVAL),
            _ => return Err(Errno::EOPNOTSUPP),
        }
        let sock = Sock {
            family,
            state: SockState::Fresh,
            options: Options::new(self.stack.tcp_config(), self.settings.buffer_max),
            bound: None,
            kept: None,
            deferred: None,
        };
        self.add_file(FileKind::Socket(Box::new(sock)), flags)
    }

    /// listen(2).
    ///
    /// # Errors
    /// EBADF, ENOTSOCK, EINVAL (connected), EADDRINUSE, ENFILE.
    pub fn listen(&mut self, fd: i32, backlog: i32) -> Result<(), Errno> {
        // The queue holds one connection more than asked for (linux `sk_acceptq_is_full`); a negative number means SOMAXCONN.
        let backlog = usize::try_from(backlog).unwrap_or(SOMAXCONN).min(SOMAXCONN);
        let backlog = backlog.saturating_add(1);
        let sock = self.sock(fd)?;
        match sock.state {
            SockState::Fresh => {}
            SockState::Listening(id) => {
                let set = self.stack.set_backlog(id, backlog);
                return set.map_err(|error| error.errno());
            }
            _ => return Err(Errno::EINVAL),
        }
        let any = SocketAddr::new(sock.family.unspecified(), 0);
        let local = match sock.bound.unwrap_or(any) {
            local if local.port() != 0 => local,
            local => self.free_port(fd, local)?,
        };
        let sock = self.sock(fd)?;
        let (local, config) = (
            sock.bind_addr(local),
            sock.options.config(self.stack.tcp_config()),
        );
        let id = self
            .stack
            .listen_with(local, backlog, &config)
            .map_err(|error| error.errno())?;
        self.apply_options(fd, id)?;
        self.set_bound(fd, Some(local.address))?;
        self.attach(fd, SockState::Listening(id))?;
        self.tell_fast_open(fd)
    }

    /// Applies the options that were set on the file before the stack had a socket for it.
    fn apply_options(&mut self, fd: i32, id: SocketId) -> Result<(), Errno> {
        for option in self.sock(fd)?.options.after_opening() {
            self.stack
                .set_option(id, option)
                .map_err(|error| error.errno())?;
        }
        Ok(())
    }

    /// accept4(2): returns the new file and the peer's address as its bytes.
    ///
    /// # Errors
    /// EBADF, ENOTSOCK, EINVAL (not listening, unknown flags), EAGAIN, EMFILE.
    pub fn accept(&mut self, fd: i32, flags: i32) -> Result<(i32, Vec<u8>), Errno> {
        if flags & !(SOCK_NONBLOCK | SOCK_CLOEXEC) != 0 {
            return Err(Errno::EINVAL);
        }
        let sock = self.sock(fd)?;
        let SockState::Listening(listener) = sock.state else {
            return Err(Errno::EINVAL);
        };
        if self.files.len() >= super::MAX_FILES {
            return Err(Errno::EMFILE);
        }
        let (family, options) = (sock.family, sock.options.clone());
        let (id, peer) = self
            .stack
            .accept(listener)
            .map_err(|error: AcceptError| error.errno())?;
        let bound = self.stack.local_addr(id).ok();
        let sock = Sock {
            family,
            state: SockState::Connected(id),
            options,
            bound: None,
            kept: bound.map(|bound| SocketAddr::new(bound.ip(), 0)),
            deferred: None,
        };
        let new = self.add_file(FileKind::Socket(Box::new(sock)), flags)?;
        let index = self.index_of(new)?;
        self.by_socket.insert(id, index);
        self.set_bound(new, bound)?;
        Ok((new, emit(peer, family)))
    }

    /// connect(2). While the connection opens, the first call fails with EINPROGRESS and later ones with EALREADY.
    ///
    /// # Errors
    /// As connect(2).
    pub fn connect(&mut self, fd: i32, address: &[u8], now: Instant) -> Result<(), Errno> {
        let sock = self.sock(fd)?;
        let given = parse(address, sock.family);
        // Linux `__inet_stream_connect`: an address is looked at when there is no connection.
        match (sock.state, given) {
            (_, Err(errno)) if address.len() < FAMILY_LEN => Err(errno),
            (state, Ok(ParsedAddress::Unspec)) => self.disconnect(fd, state),
            (SockState::Listening(_) | SockState::Connected(_), _) => Err(Errno::EISCONN),
            (SockState::Connecting(id), _) => self.connect_outcome(fd, id),
            (SockState::Fresh, _) if sock.deferred.is_some() => Err(Errno::EISCONN),
            (SockState::Fresh, Err(errno)) => Err(errno),
            (SockState::Fresh, Ok(ParsedAddress::Address(remote))) => {
                match self.defer(fd, remote, now)? {
                    true => Ok(()),
                    false => self.connect_to(fd, remote, now),
                }
            }
        }
    }

    pub(super) fn connect_to(
        &mut self,
        fd: i32,
        remote: SocketAddr,
        now: Instant,
    ) -> Result<(), Errno> {
        let sock = self.sock(fd)?;
        if sock.options.v6_only && remote.is_ipv4() {
            return Err(Errno::ENETUNREACH);
        }
        let remote = self.own_if_unspecified(sock.bound, remote);
        let config = sock.options.config(self.stack.tcp_config());
        let early = sock.options.fast_open.wanted();
        let id = self
            .stack
            .connect_from(sock.bound, remote, &config, early, now);
        let id = id.map_err(|error| error.errno())?;
        self.apply_options(fd, id)?;
        let local = self.stack.local_addr(id).ok();
        self.set_bound(fd, local)?;
        // The end of the handshake wakes watchers for EPOLLOUT.
        self.note_full(self.index_of(fd)?);
        self.attach(fd, SockState::Connecting(id))?;
        Err(Errno::EINPROGRESS)
    }

    /// Returns the address of this host in place of the unspecified one (linux `ip_route_output_key`): that which the socket is bound to, or the
    /// first one.
    fn own_if_unspecified(&self, bound: Option<SocketAddr>, remote: SocketAddr) -> SocketAddr {
        let is_ours = |ip: &IpAddr| ip.is_ipv4() == remote.is_ipv4() && !ip.is_unspecified();
        let mut ours = bound.map(|bound| bound.ip()).into_iter();
        let own = ours
            .find(is_ours)
            .or_else(|| self.stack.addresses().find(is_ours));
        match own {
            Some(own) if remote.ip().is_unspecified() => SocketAddr::new(own, remote.port()),
            _ => remote,
        }
    }

    /// Returns the state of an attempt to connect; its outcome is reported once.
    pub(crate) fn connect_outcome(&mut self, fd: i32, id: SocketId) -> Result<(), Errno> {
        let ready = self.stack.readiness(id).map_err(|error| error.errno())?;
        let state = self.stack.info(id).ok().flatten().map(|info| info.state);
        if matches!(state, Some(StateKind::SynSent | StateKind::SynReceived)) {
            return Err(Errno::EALREADY);
        }
        let died = matches!(state, Some(StateKind::Closed) | None);
        if !died && !ready.contains(Readiness::ERROR) {
            self.sock_mut(fd)?.state = SockState::Connected(id);
            return Ok(());
        }
        let error = self.stack.take_error(id).ok().flatten();
        // Linux returns ECONNABORTED if the reason was reported before.
        let errno = error.map_or(Errno::ECONNABORTED, stack::connection_errno);
        let _ = self.stack.close(id);
        self.attach(fd, SockState::Fresh)?;
        Err(errno)
    }

    /// Returns the outcome of a connect call that waited.
    ///
    /// # Errors
    /// EALREADY: the connection is still being opened; otherwise why it failed.
    pub(crate) fn connect_continue(&mut self, fd: i32) -> Result<(), Errno> {
        match self.sock(fd)?.state {
            SockState::Connecting(id) => self.connect_outcome(fd, id),
            SockState::Connected(_) => Ok(()),
            _ => Err(Errno::ECONNABORTED),
        }
    }

    /// Returns the connection of a socket once it is open, whether or not connect reported it: a program that polls need
    /// not call connect again.
    pub(super) fn opened(&self, state: SockState) -> Option<SocketId> {
        let SockState::Connecting(id) = state else {
            return match state {
                SockState::Connected(id) => Some(id),
                _ => None,
            };
        };
        let state = self.stack.info(id).ok().flatten().map(|info| info.state);
        let is_opening = matches!(
            state,
            None | Some(StateKind::SynSent | StateKind::SynReceived | StateKind::Closed)
        );
        (!is_opening).then_some(id)
    }

    fn disconnect(&mut self, fd: i32, state: SockState) -> Result<(), Errno> {
        if let Some(id) = state.id() {
            let _ = self.stack.abort(id);
        }
        self.set_bound(fd, self.sock(fd)?.kept)?;
        self.attach(fd, SockState::Fresh)
    }
}
