//! Calls that open connections, also with payload in the SYN (TCP Fast Open, RFC 7413).

use std::net::{IpAddr, SocketAddr};

use wire::{FourTuple, Instant};

use super::Stack;
use crate::socket::agenda::Mark;
use crate::socket::connection::{ConnectionSocket, Owner};
use crate::socket::error::{BadSocket, ConnectError};
use crate::socket::id::SocketId;
use crate::socket::sockopt::SocketSettings;
use crate::tcp_setup::{EarlyCookie, NewPath};
use crate::tuple::{endpoints, four_tuple};

impl Stack {
    /// Opens a connection to `remote`. It is open when the socket becomes writable; before that, receives and sends
    /// return `WouldBlock`.
    ///
    /// # Errors
    /// [`ConnectError`]. If the peer refuses or does not answer, the socket reports it later.
    pub fn connect(&mut self, remote: SocketAddr, now: Instant) -> Result<SocketId, ConnectError> {
        let settings = self.tcp.config().settings;
        self.connect_from(None, remote, &settings, None, now)
    }

    /// As [`Stack::connect`], with a local address (if the address is unspecified, or the port 0, the stack chooses it)
    /// and settings of TCP for this connection.
    ///
    /// With `early`, the SYN carries payload (TCP Fast Open, RFC 7413): until the next poll, [`Stack::sendmsg`] takes as
    /// much as the SYN has room for, from host or device memory. It takes none (`WouldBlock`) if the peer's cookie is not
    /// known yet; the SYN requests it then, for later connections. The peer may see such a SYN twice: send only
    /// idempotent requests this way.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn connect_from(
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
        if self.is_link_gone() && !self.network.routes().is_ours(remote.ip()) {
            return Err(ConnectError::LinkGone);
        }
        if self.sockets.is_full() {
            return Err(ConnectError::TooManySockets {
                limit: self.sockets.limit(),
            });
        }
        let tuple = self.name_connection(local, route.source, remote)?;
        let known = self.path_mtus.get(remote.ip(), now);
        let path = NewPath {
            endpoints: endpoints(&tuple),
            link: self.network.link_limits(&self.nic, remote.ip()),
            path_mss: known.map(|path| path.mss),
        };
        let conn = self.tcp.connect(&path, settings, early, now);
        let options = SocketSettings::new(settings);
        let mut connection =
            ConnectionSocket::new(conn, options, tuple, route.next_hop, Owner::Program);
        connection.writer.take_path(known);
        let id = self.sockets.insert_connection(connection);
        self.stats.connects += 1;
        self.turns += 1;
        if let Ok(mut socket) = self.sockets.get_mut(id) {
            socket.mark(Mark::Touched);
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
            if !self.sockets.local_ports.contains(port) {
                return Err(ConnectError::PortNotOurs(port));
            }
            let tuple = tuple_for(port);
            if !self.nic.owns(&tuple) {
                return Err(ConnectError::OtherShard(port));
            }
            return match self.sockets.names.is_free(&tuple) {
                true => Ok(tuple),
                false => Err(ConnectError::PortsExhausted(remote)),
            };
        }
        let nic = &self.nic;
        self.sockets
            .choose_port(source, remote, |tuple| nic.owns(tuple))
            .map(tuple_for)
            .ok_or(ConnectError::PortsExhausted(remote))
    }

    /// Notes that a write waits until a connection is open: with some policies its data carries the last ACK of the handshake.
    ///
    /// # Errors
    /// [`BadSocket`].
    pub fn await_open(&mut self, id: SocketId) -> Result<(), BadSocket> {
        if let Some(mut connection) = self.sockets.connection_mut(id)? {
            connection.conn.await_open();
        }
        Ok(())
    }

    /// Returns whether the SYN of [`Stack::connect_from`] to `peer` would take payload.
    pub fn has_early_cookie(&self, peer: IpAddr, cookie: EarlyCookie, now: Instant) -> bool {
        let settings = &self.tcp.config().fast_open;
        let no_cookie = cookie == EarlyCookie::NotNeeded;
        let start = self
            .tcp
            .fast_open
            .start(peer, u16::MAX, no_cookie, settings, now);
        start.is_some_and(|start| start.data_max > 0)
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
        source.is_ok_and(|ip| self.nic.owns(&tuple(ip)))
    }
}
