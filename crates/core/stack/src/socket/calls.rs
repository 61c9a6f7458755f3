//! The socket calls of a program. No call blocks and none sends; the next poll sends.

use std::net::{IpAddr, Shutdown, SocketAddr};

use devmem_uapi::{
    CmsgSink, DmabufToken, MsgFlags, OffenderFamily, SCM_TIMESTAMPING_LEN, SockExtendedErr,
    ZerocopyRange, cmsg_space,
};
use steer::RxQueueId;
use tcp::StateKind;
use wire::{FourTuple, Instant};
use zerocopy::FromBytes;

use super::error::{
    AcceptError, BadSocket, ConnectError, DontneedError, ListenError, OptionError, RecvError,
    ShutdownError,
};
use super::listener::{Listener, ListenerEnd};
use super::recvmsg::{RecvCall, RecvMsg, RecvOutcome, Stopped, recvmsg};
use super::sockopt::{OptionName, SocketOption, SocketSettings};
use super::timestamps::{ArrivalTimes, Timestamping};
use super::{ConnectionSocket, Holder, SocketId, SocketKind};
use crate::Stack;
use crate::bind_addr::BindAddr;
use crate::config::MAX_BACKLOG;
use crate::direct::Placing;
use crate::stack::four_tuple;
use crate::tcp_setup::{EarlyCookie, NewPath};

impl Stack {
    /// Listens on `local`: a local address, or the unspecified address for all local addresses of the family (IPv6: of
    /// both families). Port 0 chooses a free port. At most `backlog` connections wait to be accepted, and as many are
    /// half-open; further SYNs are answered with SYN cookies.
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn listen(&mut self, local: SocketAddr, backlog: usize) -> Result<SocketId, ListenError> {
        let settings = self.tcp.config().settings;
        self.listen_with(local, backlog, &settings)
    }

    /// As [`Stack::listen`], with settings of TCP for the connections of this listener, and with socket options of the
    /// address ([`BindAddr`]).
    ///
    /// # Errors
    /// [`ListenError`].
    pub fn listen_with(
        &mut self,
        local: impl Into<BindAddr>,
        backlog: usize,
        settings: &tcp::Settings,
    ) -> Result<SocketId, ListenError> {
        if self.network.is_gone() {
            return Err(ListenError::LinkGone);
        }
        let mut local: BindAddr = local.into();
        let (ip, limit) = (local.address.ip(), self.sockets.limit());
        if !ip.is_unspecified() && !self.network.routes().may_bind(ip) {
            return Err(ListenError::AddrNotAvailable(ip));
        }
        if self.sockets.is_full() {
            return Err(ListenError::TooManySockets { limit });
        }
        let port = local.address.port();
        if port != 0 && !self.sockets.local_ports().contains(port) {
            return Err(ListenError::PortNotOurs(port));
        }
        if port == 0 {
            let is_free = |stack: &Self, address| stack.is_free_to_listen(address, &local);
            let port = self.free_port(ip, is_free);
            local.address.set_port(port.ok_or(ListenError::NoFreePort)?);
        }
        let backlog = backlog.clamp(1, MAX_BACKLOG);
        // A listener for both families repeats SYN-ACKs with the MSS of IPv6, which is smaller and fits both.
        let link = self.network.link_limits(ip);
        let half_open = self.tcp.backlog(settings.rcv_space_initial, backlog);
        let listener = Listener::new(local.address, half_open, backlog, link, settings);
        self.sockets
            .insert_listener(local, listener)
            .map_err(|_| ListenError::AddrInUse(local.address))
    }

    /// Changes the backlog of a listener; see [`Stack::listen`].
    ///
    /// # Errors
    /// [`BadSocket`], also if the socket is a connection.
    pub fn set_backlog(&mut self, id: SocketId, backlog: usize) -> Result<(), BadSocket> {
        match &mut *self.sockets.get_mut(id)? {
            SocketKind::Listener(listener) => listener.set_backlog(backlog.clamp(1, MAX_BACKLOG)),
            SocketKind::Connection(_) | SocketKind::TimeWait(_) => return Err(BadSocket(id)),
        }
        Ok(())
    }

    /// Returns the ports that this stack chooses from for programs that name none.
    pub fn ports_to_choose(&self) -> std::ops::RangeInclusive<u16> {
        self.sockets.local_ports().to_choose()
    }

    /// Returns the port of [`ports_to_choose`](Self::ports_to_choose) at which to begin a search for a free port at `ip`: a different one each
    /// time.
    pub fn first_port(&mut self, ip: IpAddr) -> u16 {
        self.sockets.first_port(ip)
    }

    /// Returns a port at `ip` for which `is_free` returns true.
    fn free_port(
        &mut self,
        ip: IpAddr,
        is_free: impl Fn(&Self, SocketAddr) -> bool,
    ) -> Option<u16> {
        let begin = self.first_port(ip);
        let ports = self.sockets.local_ports().to_choose();
        (begin..=*ports.end())
            .chain(*ports.start()..begin)
            .find(|port| is_free(self, SocketAddr::new(ip, *port)))
    }

    /// Returns whether neither a listener nor a connection has an overlapping address with the same port.
    fn is_free_to_listen(&self, address: SocketAddr, like: &BindAddr) -> bool {
        let local = BindAddr { address, ..*like };
        let names = self.sockets.names();
        !names.is_listened_on(&local) && !names.is_port_in_use(&local)
    }

    /// Opens a connection to `remote`. It is open when the socket becomes writable; before that, receives and sends
    /// return `WouldBlock`.
    ///
    /// # Errors
    /// [`ConnectError`]. If the peer refuses or does not answer, the socket reports it later.
    pub fn connect(&mut self, remote: SocketAddr, now: Instant) -> Result<SocketId, ConnectError> {
        let settings = self.tcp.config().settings;
        self.connect_from(None, remote, &settings, now)
    }

    /// As [`Stack::connect`], with a local address (if the address is unspecified, or the port 0, the stack chooses it)
    /// and settings of TCP for this connection.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn connect_from(
        &mut self,
        local: Option<SocketAddr>,
        remote: SocketAddr,
        settings: &tcp::Settings,
        now: Instant,
    ) -> Result<SocketId, ConnectError> {
        self.open(local, remote, settings, None, now)
    }

    /// Opens a connection, with Fast Open if `early` says so.
    pub(super) fn open(
        &mut self,
        local: Option<SocketAddr>,
        remote: SocketAddr,
        settings: &tcp::Settings,
        early: Option<EarlyCookie>,
        now: Instant,
    ) -> Result<SocketId, ConnectError> {
        if remote.port() == 0 {
            return Err(ConnectError::PortZero(remote));
        }
        let route = self.network.routes().route(remote.ip())?;
        if self.network.is_gone() && !self.network.routes().is_ours(remote.ip()) {
            return Err(ConnectError::LinkGone);
        }
        if self.sockets.is_full() {
            return Err(ConnectError::TooManySockets {
                limit: self.sockets.limit(),
            });
        }
        let tuple = self.name_connection(local, route.source, remote)?;
        let known = self.network.path(remote.ip(), now);
        let path = NewPath {
            endpoints: crate::rx::endpoints(&tuple),
            link: self.network.link_limits(remote.ip()),
            path_mss: known.map(|path| path.mss),
        };
        let conn = self.tcp.connect(&path, settings, early, now);
        let options = SocketSettings::new(settings);
        let mut connection =
            ConnectionSocket::new(conn, options, tuple, route.next_hop, Holder::Program);
        connection.take_path(known);
        let id = self.sockets.insert_connection(connection);
        self.stats.connects += 1;
        self.turns += 1;
        if let Ok(mut socket) = self.sockets.get_mut(id) {
            socket.touch();
        }
        Ok(id)
    }

    /// Returns an unused four-tuple for a connection to `remote`.
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
            if !self.sockets.local_ports().contains(port) {
                return Err(ConnectError::PortNotOurs(port));
            }
            let tuple = tuple_for(port);
            if !self.network.nic().owns(&tuple) {
                return Err(ConnectError::OtherShard(port));
            }
            return match self.sockets.names().is_free(&tuple) {
                true => Ok(tuple),
                false => Err(ConnectError::PortsExhausted(remote)),
            };
        }
        let nic = self.network.nic();
        self.sockets
            .choose_port(source, remote, |tuple| nic.owns(tuple))
            .map(tuple_for)
            .ok_or(ConnectError::PortsExhausted(remote))
    }

    /// Returns whether this shard of a NIC has connections from `local` to `remote`. If the address is unspecified, it is that
    /// of the route; if the port is 0, every shard chooses one.
    pub fn has_connections(&self, local: SocketAddr, remote: SocketAddr) -> bool {
        if local.port() == 0 {
            return true;
        }
        let source = match local.ip().is_unspecified() {
            true => self
                .network
                .routes()
                .route(remote.ip())
                .map(|route| route.source),
            false => Ok(local.ip()),
        };
        let tuple = |ip| four_tuple(SocketAddr::new(ip, local.port()), remote);
        source.is_ok_and(|ip| self.network.nic().owns(&tuple(ip)))
    }

    /// Returns the TCP configuration of new connections and listeners.
    pub fn tcp_config(&self) -> &tcp::Config {
        self.tcp.config()
    }

    /// Changes the TCP configuration of new connections and listeners.
    pub fn set_tcp_config(&mut self, config: tcp::Config) {
        self.tcp.set_config(config);
    }

    /// Returns whether a program may use `ip` as its local address.
    pub fn may_bind(&self, ip: IpAddr) -> bool {
        self.network.routes().may_bind(ip)
    }

    /// Returns the connection that has waited longest to be accepted, and the address of its peer.
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
        match self.sockets.get(listener)? {
            SocketKind::Listener(queue) => Err(match queue.end() {
                Some(ListenerEnd::LinkGone) => AcceptError::LinkGone,
                Some(ListenerEnd::AddressTaken) => AcceptError::AddressTaken,
                None => AcceptError::WouldBlock,
            }),
            _ => Err(AcceptError::WouldBlock),
        }
    }

    fn pop_accepted(&mut self, listener: SocketId) -> Result<Option<SocketId>, AcceptError> {
        match &mut *self.sockets.get_mut(listener)? {
            SocketKind::Listener(queue) => Ok(queue.pop()),
            SocketKind::Connection(_) | SocketKind::TimeWait(_) => {
                Err(AcceptError::NotListening { id: listener })
            }
        }
    }

    /// Receives payload in order into `msg` and `sink`; ABI.md 3 describes `flags`. MSG_WAITALL and MSG_DONTWAIT have
    /// no effect, because no call blocks: [`RecvOutcome::stopped`] tells a blocking caller whether to wait for more.
    ///
    /// A net_iov with bytes that were received as tokens stays in use until [`Stack::dontneed`]: a reader that keeps
    /// all tokens can use up the memory of a binding (see [`Stack::bind_rx`]).
    ///
    /// # Errors
    /// [`RecvError`] if nothing was delivered. An error after delivered bytes is returned by the next call.
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
            lent_places,
            options,
            ..
        } = &mut *connection;
        let mut home = |payload| network.recycle(payload);
        let call = RecvCall {
            msg,
            sink,
            tokens,
            lent_places: lent_places.as_deref_mut(),
            flags,
            merge: options.merge_frags,
            home: &mut home,
        };
        let mut outcome = match recvmsg(conn.recv_queue(), call) {
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
            // The window may grow, and memory for windows of other connections may become free.
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

    /// Takes the oldest range of completed zero-copy sends from the error queue, as MSG_ERRQUEUE does, without a
    /// control buffer.
    ///
    /// # Errors
    /// [`RecvError::ErrorQueueEmpty`], or the socket is not a connection.
    pub fn completion(&mut self, id: SocketId) -> Result<ZerocopyRange, RecvError> {
        let mut connection = self
            .sockets
            .connection_mut(id)?
            .ok_or(RecvError::NotConnected { id })?;
        connection.errors.pop().ok_or(RecvError::ErrorQueueEmpty)
    }

    /// Gives frags back by their tokens (SO_DEVMEM_DONTNEED); returns how many were freed. If it is fewer than given,
    /// call again for the rest: one call handles at most 1,024 tokens.
    ///
    /// # Errors
    /// [`DontneedError`], and nothing was freed.
    pub fn dontneed(&mut self, id: SocketId, ranges: &[DmabufToken]) -> Result<u32, DontneedError> {
        let Self {
            network, sockets, ..
        } = self;
        // A listener is a TCP socket, too, but has no tokens.
        let Some(mut connection) = sockets.connection_mut(id)? else {
            return Ok(0);
        };
        let freed = connection.dontneed(ranges, |netmem| network.recycle_netmem(netmem))?;
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

    /// Sets an option. Connections inherit the options of their listener.
    ///
    /// # Errors
    /// [`OptionError`].
    pub fn set_option(&mut self, id: SocketId, option: SocketOption) -> Result<(), OptionError> {
        let mut socket = self.sockets.get_mut(id)?;
        match &mut *socket {
            SocketKind::Connection(connection) => {
                let connection = &mut *connection;
                connection.options.set(option)?;
                connection.conn.on_settings(&connection.options.tcp);
                if option == SocketOption::NoDelay(true) {
                    connection.conn.flush();
                }
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

    /// Sets the largest segment that connections of a listener announce and send (TCP_MAXSEG); one that exists keeps
    /// its own.
    ///
    /// # Errors
    /// [`BadSocket`].
    pub fn set_user_mss(&mut self, id: SocketId, mss: Option<u16>) -> Result<(), BadSocket> {
        if let SocketKind::Listener(listener) = &mut *self.sockets.get_mut(id)? {
            listener.options.tcp.user_mss = mss;
        }
        Ok(())
    }

    /// Returns whether received data is acknowledged at once (TCP_QUICKACK); `None` of a listener.
    ///
    /// # Errors
    /// [`BadSocket`].
    pub fn has_quick_acks(&self, id: SocketId) -> Result<Option<bool>, BadSocket> {
        Ok(match self.sockets.get(id)? {
            SocketKind::Connection(connection) => Some(connection.conn.has_quick_acks()),
            SocketKind::Listener(_) | SocketKind::TimeWait(_) => None,
        })
    }

    /// Returns whether every unicast address counts as local (`StackConfig::any_local`).
    pub fn has_any_local(&self) -> bool {
        self.network.routes().has_any_local()
    }

    /// Switches delayed ACKs off or on for the near future (TCP_QUICKACK).
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

    /// Shuts down one or both directions of a connection. After [`Shutdown::Read`], a receive from an empty queue
    /// returns the end of the stream; data that arrives later can still be read (linux `tcp_recvmsg` with RCV_SHUTDOWN).
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
        drop(connection);
        self.turns += 1;
        Ok(())
    }

    /// Closes a socket: its id becomes invalid, and its tokens are given back. The connection finishes without the
    /// program, in bounded time; if data was unread, it is reset. Closing a listener resets the connections that wait
    /// to be accepted.
    ///
    /// # Errors
    /// [`BadSocket`].
    pub fn close(&mut self, id: SocketId) -> Result<(), BadSocket> {
        self.sockets.get(id)?;
        self.end(id, Ending::Orderly);
        Ok(())
    }

    /// Closes a socket and resets its connection (SO_LINGER with a time of 0).
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
            .release_all(|held| held.release(|netmem| network.recycle_netmem(netmem)));
        Placing::end(&mut connection, network);
        connection.error = None;
        match ending {
            Ending::Orderly if !is_one_too_many => connection.conn.close(),
            Ending::Orderly | Ending::Reset => connection.conn.abort(),
        }
        connection.touch();
        drop(connection);
        sockets.orphan(id);
        self.turns += 1;
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

    /// Returns the result of a receive from an empty queue: the error of the connection, the end of the stream, or
    /// `WouldBlock`.
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
