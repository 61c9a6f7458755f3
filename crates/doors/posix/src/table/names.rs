//! getsockname, getpeername, getsockopt, setsockopt, fcntl, ioctl.

use std::net::SocketAddr;

use devmem_uapi::{Errno, sockopt};
use stack::SocketOption;
use tcp::StateKind;

use super::{FileKind, Sock, SockState, Table};
use crate::abi::{IP_FREEBIND, IPV6_V6ONLY, SOL_TCP, fcntl, ioctl, so, sof, tcp_opt};
use crate::options::{Effect, int};
use crate::sockaddr::{Family, emit};
use crate::tcp_info;

impl Sock {
    /// Returns EINVAL for an option that cannot be set in the present state of the socket.
    fn check_state(&self, name: (i32, i32), value: &[u8]) -> Result<(), Errno> {
        let is_fine = match name {
            // Linux `do_ipv6_setsockopt`: it may not change once the socket is bound.
            (sockopt::SOL_IPV6, IPV6_V6ONLY) if self.family == Family::V6 => {
                self.bound.is_none_or(|bound| bound.port() == 0) || value.len() < size_of::<i32>()
            }
            // Linux `sock_set_timestamping`: a socket that is not connected has no byte numbers.
            (sockopt::SOL_SOCKET, so::TIMESTAMPING | so::TIMESTAMPING_NEW) => {
                let asks = int(value)?.cast_unsigned() & sof::OPT_ID != 0;
                let has_stream = !matches!(self.state, SockState::Fresh | SockState::Listening(_));
                !asks || has_stream || self.options.times.has(sof::OPT_ID)
            }
            (SOL_TCP, tcp_opt::FASTOPEN | tcp_opt::FASTOPEN_NO_COOKIE) => {
                matches!(self.state, SockState::Fresh | SockState::Listening(_))
            }
            (SOL_TCP, tcp_opt::FASTOPEN_CONNECT) => self.state == SockState::Fresh,
            _ => true,
        };
        match is_fine {
            true => Ok(()),
            false => Err(Errno::EINVAL),
        }
    }
}

impl Table {
    /// getsockname(2), as the address' bytes.
    ///
    /// # Errors
    /// EBADF, ENOTSOCK.
    pub fn getsockname(&self, fd: i32) -> Result<Vec<u8>, Errno> {
        let sock = self.sock(fd)?;
        let of_stack = sock
            .state
            .id()
            .and_then(|id| self.stack.local_addr(id).ok());
        let any = SocketAddr::new(sock.family.unspecified(), 0);
        Ok(emit(of_stack.or(sock.bound).unwrap_or(any), sock.family))
    }

    /// getpeername(2), as the address' bytes.
    ///
    /// # Errors
    /// EBADF, ENOTSOCK, ENOTCONN.
    pub fn getpeername(&self, fd: i32) -> Result<Vec<u8>, Errno> {
        let sock = self.sock(fd)?;
        let id = self.opened(sock.state).ok_or(Errno::ENOTCONN)?;
        if self.has_ended(id) {
            return Err(Errno::ENOTCONN);
        }
        let peer = self.stack.peer_addr(id).map_err(|error| error.errno())?;
        Ok(emit(peer.ok_or(Errno::ENOTCONN)?, sock.family))
    }

    /// setsockopt(2). Returns 0, but for SO_DEVMEM_DONTNEED: how many frags were freed.
    ///
    /// # Errors
    /// EBADF, ENOTSOCK, ENOPROTOOPT for options that are not implemented, EINVAL, ENOENT, EDOM.
    pub fn setsockopt(&mut self, fd: i32, name: (i32, i32), value: &[u8]) -> Result<i32, Errno> {
        if name == (sockopt::SOL_SOCKET, sockopt::SO_DEVMEM_DONTNEED) {
            return self.dontneed(fd, value);
        }
        let (has_client, any_local) = (self.has_early_client(), self.stack.has_any_local());
        let sock = self.sock_mut(fd)?;
        if name == (SOL_TCP, tcp_opt::FASTOPEN_CONNECT) && !has_client {
            return Err(Errno::EOPNOTSUPP);
        }
        if name == (sockopt::SOL_IP, IP_FREEBIND) && !any_local {
            return Err(Errno::ENOPROTOOPT);
        }
        sock.check_state(name, value)?;
        let (family, state) = (sock.family, sock.state);
        let effect = sock.options.set(family, name, value)?;
        let Some(id) = state.id() else {
            return Ok(0);
        };
        let told = match effect {
            Effect::None => Ok(()),
            Effect::FastOpen => return self.tell_fast_open(fd).map(|()| 0),
            // On a listener it would change connections that are open already.
            Effect::Apply(SocketOption::RcvBuf(_)) if matches!(state, SockState::Listening(_)) => {
                Ok(())
            }
            Effect::Apply(option) => self
                .stack
                .set_option(id, option)
                .map_err(|error| error.errno()),
            Effect::QuickAcks(on) => self
                .stack
                .set_quick_acks(id, on)
                .map_err(|error| error.errno()),
            Effect::MaxSegment(bytes) => self
                .stack
                .set_user_mss(id, bytes)
                .map_err(|error| error.errno()),
        };
        told.map(|()| 0)
    }

    fn dontneed(&mut self, fd: i32, value: &[u8]) -> Result<i32, Errno> {
        let Some(id) = self.sock(fd)?.state.id() else {
            return Ok(0);
        };
        let freed = self
            .stack
            .dontneed_bytes(id, value)
            .map_err(|error| error.errno())?;
        Ok(i32::try_from(freed).unwrap_or(i32::MAX))
    }

    /// getsockopt(2): returns the value's bytes; the caller truncates them to the length of the buffer.
    ///
    /// # Errors
    /// EBADF, ENOTSOCK, ENOPROTOOPT.
    pub fn getsockopt(&mut self, fd: i32, name: (i32, i32)) -> Result<Vec<u8>, Errno> {
        let state = self.sock(fd)?.state;
        let int = |number: i32| Ok(number.to_ne_bytes().to_vec());
        match name {
            (sockopt::SOL_SOCKET, so::ERROR) => int(self.take_error(fd)?),
            (sockopt::SOL_SOCKET, so::ACCEPTCONN) => {
                int(matches!(state, SockState::Listening(_)).into())
            }
            (sockopt::SOL_SOCKET, so::PEERNAME) => self.getpeername(fd),
            // A number that is unique in this table.
            (sockopt::SOL_SOCKET, so::COOKIE) => {
                Ok((self.file(fd)?.serial + 1).to_ne_bytes().to_vec())
            }
            (sockopt::SOL_SOCKET, so::MEMINFO) => self.memory_info(fd),
            (SOL_TCP, tcp_opt::QUICKACK) if self.has_quick_acks(state).is_some() => {
                int(self.has_quick_acks(state).unwrap_or(true).into())
            }
            (SOL_TCP, tcp_opt::INFO) => Ok(self.tcp_info(state)),
            (SOL_TCP, tcp_opt::MAXSEG) if self.snd_mss(state).is_some() => {
                int(self.snd_mss(state).unwrap_or(0).into())
            }
            // The value that was set.
            _ => {
                let sock = self.sock(fd)?;
                sock.options.get(sock.family, name, self.stack.tcp_config())
            }
        }
    }

    fn take_error(&mut self, fd: i32) -> Result<i32, Errno> {
        // Also the error of a failed connect; the next connect then fails with ECONNABORTED, as in Linux.
        let state = self.sock(fd)?.state;
        let error = state.id().and_then(|id| self.stack.take_error(id).ok());
        Ok(error
            .flatten()
            .map_or(0, |error| stack::connection_errno(error).0))
    }

    fn tcp_info(&self, state: SockState) -> Vec<u8> {
        let info = state.id().and_then(|id| self.stack.info(id).ok());
        match (state, info) {
            (SockState::Listening(_), _) => {
                let mut bytes = tcp_info::to_bytes(&tcp::Info::default(), self.clock);
                bytes[0] = tcp_info::LISTEN;
                bytes
            }
            (_, info) => tcp_info::to_bytes(&info.flatten().unwrap_or_default(), self.clock),
        }
    }

    /// SO_MEMINFO, in the order of linux include/uapi/linux/sock_diag.h `SK_MEMINFO_*`. The queues are counted by their
    /// payload. There is no memory reserved in advance, for options or in a backlog; drops are counted by the stack.
    fn memory_info(&mut self, fd: i32) -> Result<Vec<u8>, Errno> {
        let id = self.sock(fd)?.state.id();
        let info = id.and_then(|id| self.stack.info(id).ok().flatten());
        let (readable, held) = info.map_or((0, 0), |info| (info.readable, info.out_of_order));
        let unread = readable.saturating_add(held);
        let unacked = id.and_then(|id| self.stack.unacked_len(id).ok());
        let mut buffer = |name| {
            let value = self.getsockopt(fd, (sockopt::SOL_SOCKET, name))?;
            value
                .try_into()
                .map(u32::from_ne_bytes)
                .map_err(|_| Errno::EINVAL)
        };
        let (rcv_buf, snd_buf) = (buffer(so::RCVBUF)?, buffer(so::SNDBUF)?);
        let bytes = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        // It grows with payload out of order, which counts twice (linux `tcp_rcvbuf_grow`).
        let rcv_buf = rcv_buf.max(bytes(held.saturating_mul(2)));
        let queued = bytes(unacked.unwrap_or(0));
        let fields = [bytes(unread), rcv_buf, 0, snd_buf, 0, queued, 0, 0, 0];
        Ok(fields.map(u32::to_ne_bytes).concat())
    }

    fn has_quick_acks(&self, state: SockState) -> Option<bool> {
        self.stack.has_quick_acks(state.id()?).ok().flatten()
    }

    fn snd_mss(&self, state: SockState) -> Option<u16> {
        let info = self.stack.info(state.id()?).ok()??;
        Some(info.snd_mss).filter(|mss| *mss > 0)
    }

    /// fcntl(2): F_GETFL, F_SETFL (O_NONBLOCK), F_GETFD, F_SETFD.
    ///
    /// # Errors
    /// EBADF; EINVAL for other commands.
    pub fn fcntl(&mut self, fd: i32, command: i32, argument: i32) -> Result<i32, Errno> {
        let file = self.file_mut(fd)?;
        let bit = |set: bool, bit: i32| if set { bit } else { 0 };
        match command {
            fcntl::GETFL => {
                let access = match &file.kind {
                    FileKind::Pipe(end) => end.access_mode(),
                    FileKind::Socket(_) | FileKind::Epoll(_) => fcntl::O_RDWR,
                };
                Ok(access | bit(file.nonblocking, fcntl::O_NONBLOCK))
            }
            fcntl::SETFL => {
                file.nonblocking = argument & fcntl::O_NONBLOCK != 0;
                Ok(0)
            }
            fcntl::GETFD => Ok(bit(file.close_on_exec, fcntl::FD_CLOEXEC)),
            fcntl::SETFD => {
                file.close_on_exec = argument & fcntl::FD_CLOEXEC != 0;
                Ok(0)
            }
            _ => Err(Errno::EINVAL),
        }
    }

    /// Returns how many received bytes lie before the byte that the peer called urgent, if that was received and not read.
    pub(crate) fn until_urgent(&self, fd: i32) -> Option<usize> {
        let id = self.sock(fd).ok()?.state.id()?;
        let before = usize::try_from(self.stack.until_urgent(id).ok()??).ok()?;
        let readable = self.stack.info(id).ok()??.readable;
        (before < readable).then_some(before)
    }

    /// ioctl(2) with a request that returns a number: SIOCINQ, SIOCOUTQ, SIOCOUTQNSD, SIOCATMARK; of other
    /// files, FIONREAD.
    ///
    /// # Errors
    /// EBADF; EINVAL of a listener; ENOTTY for other requests.
    pub fn ioctl(&self, fd: i32, request: u64) -> Result<i32, Errno> {
        let file = self.file(fd)?;
        let sock = match &file.kind {
            FileKind::Socket(sock) => sock,
            // FIONREAD and SIOCINQ have the same value.
            FileKind::Pipe(end) if request == ioctl::SIOCINQ => {
                return Ok(i32::try_from(end.readable()).unwrap_or(i32::MAX));
            }
            FileKind::Pipe(_) | FileKind::Epoll(_) => return Err(Errno::ENOTTY),
        };
        match request {
            ioctl::SIOCINQ | ioctl::SIOCOUTQ | ioctl::SIOCOUTQNSD => {}
            ioctl::SIOCATMARK => return Ok((self.until_urgent(fd) == Some(0)).into()),
            _ => return Err(Errno::ENOTTY),
        }
        if matches!(sock.state, SockState::Listening(_)) {
            return Err(Errno::EINVAL);
        }
        let Some(info) = sock
            .state
            .id()
            .and_then(|id| self.stack.info(id).ok().flatten())
        else {
            return Ok(0);
        };
        let unacked = sock
            .state
            .id()
            .and_then(|id| self.stack.unacked_len(id).ok());
        // A FIN occupies a sequence number, and Linux counts sequence numbers.
        let has_fin = matches!(
            info.state,
            StateKind::FinWait1 | StateKind::Closing | StateKind::LastAck
        );
        let number = match request {
            ioctl::SIOCINQ => info.readable,
            ioctl::SIOCOUTQ => unacked.unwrap_or(0) + usize::from(has_fin),
            // The FIN is sent with the last byte.
            _ => {
                let unsent = usize::try_from(info.notsent_bytes).unwrap_or(usize::MAX);
                unsent.saturating_add(usize::from(has_fin && unsent > 0))
            }
        };
        Ok(i32::try_from(number).unwrap_or(i32::MAX))
    }

    /// ioctl(FIONBIO).
    ///
    /// # Errors
    /// EBADF.
    pub fn set_nonblocking(&mut self, fd: i32, nonblocking: bool) -> Result<(), Errno> {
        self.file_mut(fd)?.nonblocking = nonblocking;
        Ok(())
    }
}
