//! The socket calls: what a program asks of a stack. None waits and none sends; the next poll does.

use std::net::{IpAddr, Shutdown, SocketAddr};
use std::sync::Arc;

use devmem_uapi::{
    CmsgSink, DmabufToken, MsgFlags, OffenderFamily, SCM_TIMESTAMPING_LEN, SockExtendedErr,
    ZerocopyRange, cmsg_space,
};
use steer::RxQueueId;
use tcp::{Connection, StateKind, SynBacklog, TcpError};
use wire::{FourTuple, Instant};
use zerocopy::FromBytes;

use super::error::{
    AcceptError, BadSocket, ConnectError, DontneedError, ListenError, OptionError, RecvError,
    ShutdownError,
};
use super::listener::Listener;
use super::readiness::Readiness;
use super::recvmsg::{Receive, RecvMsg, RecvOutcome, Stopped, recvmsg};
use super::sockopt::{OptionName, SocketOption};
use super::timestamps::{ArrivalTimes, Timestamping};
use super::{ConnectionSocket, Holder, SocketId, SocketKind};
use crate::Stack;
use crate::bind_addr::BindAddr;
use crate::config::MAX_BACKLOG;
use crate::ports::EPHEMERAL_FIRST;
use crate::stack::four_tuple;

impl Stack {
    /// Listens on `local`: one of our addresses, or the unspecified one for all of its family, IPv6's for both; port
    /// 0 takes a free one. At most `backlog` connections wait to be accepted, and as many are half-open;
    /// beyond that SYN cookies answer.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn listen(&mut self, local: SocketAddr, backlog: usize) -> Result<SocketId, ListenError> {
        let options = self.tcp.options;
        self.listen_with(local, backlog, &options)
    }

    /// As [`Stack::listen`], with options of TCP for this listener's connections, and what else bind(2) may say of
    /// an address.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn listen_with(
        &mut self,
        local: impl Into<BindAddr>,
        backlog: usize,
        options: &tcp::ConnectionOptions,
    ) -> Result<SocketId, ListenError> {
        let mut local: BindAddr = local.into();
        let (ip, limit) = (local.address.ip(), self.sockets.limit());
        if !ip.is_unspecified() && !self.network.routes().may_bind(ip) {
            return Err(ListenError::AddrNotAvailable(ip));
        }
        if self.sockets.is_full() {
            return Err(ListenError::TooManySockets { limit });
        }
        if local.address.port() == 0 {
            let is_free = |stack: &Self, address| stack.is_free_to_listen(address, &local);
            let port = self.free_port(ip, is_free);
            local.address.set_port(port.ok_or(ListenError::NoFreePort)?);
        }
        let backlog = backlog.clamp(1, MAX_BACKLOG);
        // A listener for both families repeats SYN-ACKs in one size: the smaller one, IPv6's, fits both.
        let link = self.network.link_limits(ip);
        let half_open = SynBacklog::new(
            Arc::clone(&self.tcp),
            *options,
            backlog,
            self.isns.clone(),
            self.secret.key("syn cookies"),
        );
        let listener = Listener::new(local.address, half_open, backlog, link, options);
        self.sockets
            .insert_listener(local, listener)
            .map_err(|_| ListenError::AddrInUse(local.address))
    }

    /// Changes how many connections may wait at a listener, as [`Stack::listen`] sets it.
    ///
    /// # Errors
    /// [`BadSocket`], also of a connection.
    pub fn set_backlog(&mut self, id: SocketId, backlog: usize) -> Result<(), BadSocket> {
        match &mut *self.sockets.get_mut(id)? {
            SocketKind::Listener(listener) => listener.set_backlog(backlog.clamp(1, MAX_BACKLOG)),
            SocketKind::Connection(_) | SocketKind::TimeWait(_) => return Err(BadSocket(id)),
        }
        Ok(())
    }

    /// Returns where in the dynamic range to begin a search for a port at `ip`: somewhere else each time.
    pub fn first_port(&mut self, ip: IpAddr) -> u16 {
        self.sockets.first_port(ip)
    }

    /// Returns a port at `ip` that `is_free` agrees to.
    fn free_port(
        &mut self,
        ip: IpAddr,
        is_free: impl Fn(&Self, SocketAddr) -> bool,
    ) -> Option<u16> {
        let begin = self.first_port(ip);
        (begin..=u16::MAX)
            .chain(EPHEMERAL_FIRST..begin)
            .find(|port| is_free(self, SocketAddr::new(ip, *port)))
    }

    /// Returns whether nobody listens on an address that overlaps, and no connection has it.
    fn is_free_to_listen(&self, address: SocketAddr, like: &BindAddr) -> bool {
        let local = BindAddr { address, ..*like };
        let names = self.sockets.names();
        !names.is_listened_on(&local) && !names.is_port_in_use(&local)
    }

    /// Opens a connection to `remote`. It is open when the socket is writable; reading and writing
    /// wait until then.
    ///
    /// # Errors
    /// [`ConnectError`]; that the peer refuses or does not answer is told by the socket later.
    pub fn connect(&mut self, remote: SocketAddr, now: Instant) -> Result<SocketId, ConnectError> {
        let options = self.tcp.options;
        self.connect_from(None, remote, &options, now)
    }

    /// As [`Stack::connect`], from an address of ours (the unspecified one and port 0 leave the choice open), with
    /// options of TCP for this connection.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn connect_from(
        &mut self,
        local: Option<SocketAddr>,
        remote: SocketAddr,
        options: &tcp::ConnectionOptions,
        now: Instant,
    ) -> Result<SocketId, ConnectError> {
        if remote.port() == 0 {
            return Err(ConnectError::PortZero(remote));
        }
        let route = self.network.routes().route(remote.ip())?;
        if self.sockets.is_full() {
            return Err(ConnectError::TooManySockets {
                limit: self.sockets.limit(),
            });
        }
        let tuple = self.name_connection(local, route.source, remote)?;
        let endpoints = crate::rx::endpoints(&tuple);
        let config = tcp::ConnectionConfig {
            shared: Arc::clone(&self.tcp),
            options: *options,
            link: self.network.link_limits(remote.ip()),
            path_mss: self.network.path_mss(remote.ip(), now),
            timestamp_offset: self.isns.timestamp_offset(&endpoints),
        };
        let conn = Connection::connect(&config, self.isns.isn(&endpoints, now), now);
        let mut connection = self.connection_socket(conn, tuple, route.next_hop, Holder::Program);
        connection.options = super::sockopt::Options::new(options);
        connection.write_low = connection.options.write_low();
        let id = self.sockets.insert_connection(connection);
        self.stats.connects += 1;
        if let Ok(mut socket) = self.sockets.get_mut(id) {
            socket.touch();
        }
        Ok(id)
    }

    /// Gives a connection to `remote` a name that no other has.
    fn name_connection(
        &mut self,
        local: Option<SocketAddr>,
        source: IpAddr,
        remote: SocketAddr,
    ) -> Result<FourTuple, ConnectError> {
        let chosen = local.map(|local| local.ip());
        let source = match chosen.filter(|ip| !ip.is_unspecified()) {
            Some(ip) if ip.is_ipv4() != remote.is_ipv4() || !self.network.routes().may_bind(ip) => {
                return Err(ConnectError::AddrNotAvailable(ip));
            }
            Some(ip) => ip,
            None => source,
        };
        let tuple_for = |port| four_tuple(SocketAddr::new(source, port), remote);
        if let Some(port) = local.map(|local| local.port()).filter(|port| *port != 0) {
            let tuple = tuple_for(port);
            return match self.sockets.names().is_free(&tuple) {
                true => Ok(tuple),
                false => Err(ConnectError::PortsExhausted(remote)),
            };
        }
        self.sockets
            .choose_port(source, remote)
            .map(tuple_for)
            .ok_or(ConnectError::PortsExhausted(remote))
    }

    /// Returns the settings of TCP that connections begin with.
    pub fn tcp_config(&self) -> &tcp::Config {
        &self.tcp
    }

    /// Changes the settings of TCP that connections and listeners begin with from now on.
    pub fn set_tcp_config(&mut self, config: tcp::Config) {
        self.tcp = Arc::new(config);
    }

    /// Returns whether a program may use `ip` as its own address.
    pub fn may_bind(&self, ip: IpAddr) -> bool {
        self.network.routes().may_bind(ip)
    }

    /// Returns the connection that waits longest at a listener, and its peer.
    ///
    /// # Errors
    /// [`AcceptError`].
    pub fn accept(&mut self, listener: SocketId) -> Result<(SocketId, SocketAddr), AcceptError> {
        while let Some(id) = self.pop_accepted(listener)? {
            let Ok(Some(mut connection)) = self.sockets.connection_mut(id) else {
                continue;
            };
            connection.holder = Holder::Program;
            let (_, remote) = connection.addresses();
            return Ok((id, remote));
        }
        Err(AcceptError::WouldBlock)
    }

    fn pop_accepted(&mut self, listener: SocketId) -> Result<Option<SocketId>, AcceptError> {
        match &mut *self.sockets.get_mut(listener)? {
            SocketKind::Listener(queue) => Ok(queue.pop()),
            SocketKind::Connection(_) | SocketKind::TimeWait(_) => {
                Err(AcceptError::NotListening { id: listener })
            }
        }
    }

    /// Receives payload in order: see the crate's [`RecvMsg`], and ABI.md 3 for what `flags` do.
    /// MSG_WAITALL and MSG_DONTWAIT change nothing here, where nothing ever waits:
    /// [`RecvOutcome::stopped`] tells a caller who does whether waiting will help.
    ///
    /// # Errors
    /// [`RecvError`] if nothing was delivered; what was delivered is never taken back for a later
    /// error.
    pub fn recvmsg(
        &mut self,
        id: SocketId,
        msg: &mut RecvMsg<'_>,
        sink: &mut dyn CmsgSink,
        flags: MsgFlags,
    ) -> Result<RecvOutcome, RecvError> {
        let Self {
            network, sockets, ..
        } = self;
        let mut connection = sockets
            .connection_mut(id)?
            .ok_or(RecvError::NotConnected { id })?;
        if flags.contains(MsgFlags::ERRQUEUE) {
            return connection.recv_error(sink);
        }
        let ConnectionSocket {
            conn,
            tokens,
            options,
            ..
        } = &mut *connection;
        let mut home = |payload| network.nic_mut().recycle(payload);
        let receive = Receive {
            msg,
            sink,
            tokens,
            flags,
            merge: options.merge_frags,
            home: &mut home,
        };
        let mut outcome = match recvmsg(conn.recv_queue(), receive) {
            Err(RecvError::WouldBlock) => connection.end_of_queue(),
            other => other,
        };
        if let Ok(outcome) = &mut outcome {
            let read = connection.read..connection.read + outcome.bytes as u64;
            outcome.arrived = connection.arrival_times.of(read);
        }
        if let Ok(outcome) = &outcome
            && !flags.contains(MsgFlags::PEEK)
        {
            connection.read += outcome.bytes as u64;
            let read = connection.read;
            connection.arrival_times.forget(read);
            if connection.conn.readable_len() == 0 {
                connection.conn.on_read();
            }
            // The window may open, and memory of other connections with it.
            connection.touch();
        }
        outcome
    }

    /// Returns the RX queue on which the last segment of a connection arrived; queue 0 before the first one.
    ///
    /// # Errors
    /// [`BadSocket`], also of a listener.
    pub fn rx_queue(&mut self, id: SocketId) -> Result<RxQueueId, BadSocket> {
        let connection = self.sockets.connection_mut(id)?.ok_or(BadSocket(id))?;
        let queue = connection.promise.queue();
        Ok(RxQueueId(u16::try_from(queue).unwrap_or(u16::MAX)))
    }

    /// Takes the oldest range of the error queue, as MSG_ERRQUEUE does, without a control buffer.
    ///
    /// # Errors
    /// [`RecvError::ErrorQueueEmpty`], or the socket has none.
    pub fn completion(&mut self, id: SocketId) -> Result<ZerocopyRange, RecvError> {
        let mut connection = self
            .sockets
            .connection_mut(id)?
            .ok_or(RecvError::NotConnected { id })?;
        connection.errors.pop().ok_or(RecvError::ErrorQueueEmpty)
    }

    /// Gives frags back by their tokens (SO_DEVMEM_DONTNEED); returns how many were freed. Fewer
    /// than were named means that the call stopped early: go on with the rest.
    ///
    /// # Errors
    /// [`DontneedError`], and nothing was freed.
    pub fn dontneed(&mut self, id: SocketId, ranges: &[DmabufToken]) -> Result<u32, DontneedError> {
        let Self {
            network, sockets, ..
        } = self;
        // A listener is a TCP socket too; it has lent nothing.
        let Some(mut connection) = sockets.connection_mut(id)? else {
            return Ok(0);
        };
        let freed = connection.dontneed(ranges, |payload| network.nic_mut().recycle(payload))?;
        if freed > 0 {
            connection.touch();
        }
        Ok(freed)
    }

    /// As [`Stack::dontneed`], from the bytes of the option's value.
    ///
    /// # Errors
    /// [`DontneedError`], and nothing was freed.
    pub fn dontneed_bytes(&mut self, id: SocketId, value: &[u8]) -> Result<u32, DontneedError> {
        self.sockets.get(id)?;
        if !value.len().is_multiple_of(size_of::<DmabufToken>()) {
            return Err(DontneedError::OddLength { len: value.len() });
        }
        let given = value.len() / size_of::<DmabufToken>();
        if given > devmem_uapi::MAX_DONTNEED_TOKENS {
            return Err(DontneedError::TooManyRanges { given });
        }
        let ranges = value
            .chunks_exact(size_of::<DmabufToken>())
            .map(DmabufToken::read_from_bytes);
        let ranges: Vec<_> = ranges.filter_map(Result::ok).collect();
        self.dontneed(id, &ranges)
    }

    /// Sets an option; a listener's are what its connections begin with.
    ///
    /// # Errors
    /// [`OptionError`].
    pub fn set_option(&mut self, id: SocketId, option: SocketOption) -> Result<(), OptionError> {
        let mut socket = self.sockets.get_mut(id)?;
        match &mut *socket {
            SocketKind::Connection(connection) => {
                connection.options.set(option)?;
                connection.options.apply(&mut connection.conn);
                if option == SocketOption::NoDelay(true) {
                    connection.conn.flush();
                }
                connection.write_low = connection.options.write_low();
                if let SocketOption::Timestamping(Timestamping { ids, received, .. }) = option {
                    if !received {
                        connection.arrival_times = ArrivalTimes::default();
                    }
                    let (acked, queued) = (
                        connection.conn.acked_offset(),
                        connection.conn.pushed_offset(),
                    );
                    connection.errors.stamps.number(ids, acked, queued);
                }
            }
            SocketKind::Listener(listener) => listener.options.set(option)?,
            SocketKind::TimeWait(_) => return Err(BadSocket(id).into()),
        }
        socket.touch();
        Ok(())
    }

    /// Returns an option.
    ///
    /// # Errors
    /// [`OptionError`].
    pub fn option(&self, id: SocketId, name: OptionName) -> Result<SocketOption, OptionError> {
        match self.sockets.get(id)? {
            SocketKind::Connection(connection) => Ok(connection.options.get(name)),
            SocketKind::Listener(listener) => Ok(listener.options.get(name)),
            SocketKind::TimeWait(_) => Err(BadSocket(id).into()),
        }
    }

    /// Acknowledges at once, or as it comes, for a while (TCP_QUICKACK).
    ///
    /// # Errors
    /// [`BadSocket`].
    pub fn set_quick_acks(&mut self, id: SocketId, quick: bool) -> Result<(), BadSocket> {
        if let Some(mut connection) = self.sockets.connection_mut(id)? {
            connection.conn.set_quick_acks(quick);
            connection.touch();
        }
        Ok(())
    }

    /// Returns how many payload bytes are queued and not acknowledged (SIOCOUTQ); 0 for a listener.
    ///
    /// # Errors
    /// [`BadSocket`].
    pub fn unacked_len(&self, id: SocketId) -> Result<usize, BadSocket> {
        Ok(match self.sockets.get(id)? {
            SocketKind::Connection(connection) => connection.conn.unacked_len(),
            SocketKind::Listener(_) | SocketKind::TimeWait(_) => 0,
        })
    }

    /// Counts what ever came in for a reader: bytes in order, connections at a listener. While it grows, there is
    /// news even if readiness does not change.
    ///
    /// # Errors
    /// [`BadSocket`].
    pub fn arrivals(&self, id: SocketId) -> Result<u64, BadSocket> {
        Ok(self.sockets.get(id)?.arrivals())
    }

    /// Counts what was ever put into the error queue: as [`Stack::arrivals`] for who waits for that.
    ///
    /// # Errors
    /// [`BadSocket`].
    pub fn error_arrivals(&self, id: SocketId) -> Result<u64, BadSocket> {
        Ok(self.sockets.get(id)?.error_arrivals())
    }

    /// Returns whether a connection, TIME-WAIT included, has this port at an address that `local` takes.
    pub fn is_port_in_use(&self, local: impl Into<BindAddr>) -> bool {
        self.sockets.names().is_port_in_use(&local.into())
    }

    /// Returns and clears the error of a dead connection (SO_ERROR).
    ///
    /// # Errors
    /// [`BadSocket`].
    pub fn take_error(&mut self, id: SocketId) -> Result<Option<TcpError>, BadSocket> {
        let connection = self.sockets.connection_mut(id)?;
        Ok(connection.and_then(|mut connection| connection.take_error()))
    }

    /// Returns the facts of TCP_INFO; `None` for a listener.
    ///
    /// # Errors
    /// [`BadSocket`].
    pub fn info(&self, id: SocketId) -> Result<Option<tcp::Info>, BadSocket> {
        Ok(match self.sockets.get(id)? {
            SocketKind::Connection(connection) => Some(connection.conn.info()),
            SocketKind::Listener(_) | SocketKind::TimeWait(_) => None,
        })
    }

    /// Returns this side's address.
    ///
    /// # Errors
    /// [`BadSocket`].
    pub fn local_addr(&self, id: SocketId) -> Result<SocketAddr, BadSocket> {
        match self.sockets.get(id)? {
            SocketKind::Connection(connection) => Ok(connection.addresses().0),
            SocketKind::Listener(listener) => Ok(listener.local),
            SocketKind::TimeWait(_) => Err(BadSocket(id)),
        }
    }

    /// Returns the peer's address; `None` for a listener.
    ///
    /// # Errors
    /// [`BadSocket`].
    pub fn peer_addr(&self, id: SocketId) -> Result<Option<SocketAddr>, BadSocket> {
        Ok(match self.sockets.get(id)? {
            SocketKind::Connection(connection) => Some(connection.addresses().1),
            SocketKind::Listener(_) | SocketKind::TimeWait(_) => None,
        })
    }

    /// Returns how many frags a socket has lent and not got back.
    ///
    /// # Errors
    /// [`BadSocket`].
    pub fn tokens_outstanding(&self, id: SocketId) -> Result<usize, BadSocket> {
        Ok(match self.sockets.get(id)? {
            SocketKind::Connection(connection) => connection.tokens.outstanding(),
            SocketKind::Listener(_) | SocketKind::TimeWait(_) => 0,
        })
    }

    /// Returns what a socket is ready for.
    ///
    /// # Errors
    /// [`BadSocket`].
    pub fn readiness(&self, id: SocketId) -> Result<Readiness, BadSocket> {
        Ok(self.sockets.get(id)?.readiness())
    }

    /// Ends one or both halves of a connection. After [`Shutdown::Read`] an empty queue reads as
    /// the end of the stream; what still arrives can be read all the same (linux `tcp_recvmsg` with
    /// RCV_SHUTDOWN).
    ///
    /// # Errors
    /// [`ShutdownError`].
    pub fn shutdown(&mut self, id: SocketId, how: Shutdown) -> Result<(), ShutdownError> {
        let mut connection = self
            .sockets
            .connection_mut(id)?
            .ok_or(ShutdownError::NotConnected { id, state: None })?;
        let state = connection.conn.state();
        if matches!(state, StateKind::Closed | StateKind::SynSent) {
            return Err(ShutdownError::NotConnected {
                id,
                state: Some(state),
            });
        }
        if how != Shutdown::Write {
            connection.read_shutdown = true;
        }
        if how != Shutdown::Read {
            connection.conn.shutdown_write();
        }
        connection.touch();
        Ok(())
    }

    /// Closes a socket: its number is void, its tokens go home. A connection finishes by itself,
    /// within a bound; with data unread, the peer is told by a RST. A listener's waiting
    /// connections are reset.
    ///
    /// # Errors
    /// [`BadSocket`].
    pub fn close(&mut self, id: SocketId) -> Result<(), BadSocket> {
        self.sockets.get(id)?;
        self.end(id, Ending::Orderly);
        Ok(())
    }

    /// Closes a socket and resets its connection, whatever was sent or read (SO_LINGER with a time
    /// of 0).
    ///
    /// # Errors
    /// [`BadSocket`].
    pub fn abort(&mut self, id: SocketId) -> Result<(), BadSocket> {
        self.sockets.get(id)?;
        self.end(id, Ending::Reset);
        Ok(())
    }

    fn end(&mut self, id: SocketId, ending: Ending) {
        match self.sockets.get(id) {
            Ok(SocketKind::Connection(_)) => self.end_connection(id, ending),
            Ok(SocketKind::Listener(_)) => {
                let waiting: Vec<_> =
                    std::iter::from_fn(|| self.pop_accepted(id).ok().flatten()).collect();
                self.remove(id.slot());
                for waiting in waiting {
                    self.end(waiting, Ending::Reset);
                }
            }
            Ok(SocketKind::TimeWait(_)) | Err(_) => {}
        }
    }

    fn end_connection(&mut self, id: SocketId, ending: Ending) {
        let is_one_too_many = self.sockets.has_all_orphans();
        let Self {
            network, sockets, ..
        } = self;
        let Ok(Some(mut connection)) = sockets.connection_mut(id) else {
            return;
        };
        connection
            .tokens
            .release_all(|held| held.release(|payload| network.nic_mut().recycle(payload)));
        connection.error = None;
        match ending {
            Ending::Orderly if !is_one_too_many => connection.conn.close(),
            Ending::Orderly | Ending::Reset => connection.conn.abort(),
        }
        connection.touch();
        drop(connection);
        sockets.orphan(id);
    }
}

/// How a socket is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ending {
    Orderly,
    Reset,
}

impl ConnectionSocket {
    /// Reports the oldest entry of the error queue.
    fn recv_error(&mut self, sink: &mut dyn CmsgSink) -> Result<RecvOutcome, RecvError> {
        let (family, address_len) = match self.tuple.dst_ip {
            IpAddr::V4(_) => (OffenderFamily::Ip, 16),
            IpAddr::V6(_) => (OffenderFamily::Ipv6, 28),
        };
        let time = match self.errors.is_time() {
            true => cmsg_space(SCM_TIMESTAMPING_LEN),
            false => 0,
        };
        match self.errors.report(family, sink) {
            None => Err(RecvError::ErrorQueueEmpty),
            Some(Ok(())) => Ok(RecvOutcome {
                bytes: 0,
                host_bytes: 0,
                arrived: None,
                stopped: Stopped::ErrorQueue,
            }),
            Some(Err(_)) => Err(RecvError::NoControlSpace {
                need: time + cmsg_space(size_of::<SockExtendedErr>() + address_len),
            }),
        }
    }

    /// Returns what a receive says when there is nothing to read: why, or the end of the stream.
    fn end_of_queue(&mut self) -> Result<RecvOutcome, RecvError> {
        if let Some(error) = self.take_error() {
            return Err(RecvError::Connection(error));
        }
        let is_over = match self.conn.state() {
            StateKind::SynSent | StateKind::SynReceived => false,
            StateKind::Established | StateKind::FinWait1 | StateKind::FinWait2 => {
                self.read_shutdown
            }
            _ => true,
        };
        match is_over {
            true => Ok(RecvOutcome {
                bytes: 0,
                host_bytes: 0,
                arrived: None,
                stopped: Stopped::Eof,
            }),
            false => Err(RecvError::WouldBlock),
        }
    }
}
