//! Calls of TCP Fast Open (RFC 7413): connections that begin with payload in their SYN, and listeners that accept them.

use std::net::{IpAddr, SocketAddr};

use wire::Instant;

use super::error::{BadSocket, ConnectError};
use super::{SocketId, SocketKind};
use crate::Stack;
use crate::tcp_setup::EarlyCookie;

impl Stack {
    /// As [`Stack::connect_from`], with payload in the SYN (TCP Fast Open, RFC 7413): until the next poll,
    /// [`Stack::sendmsg`] takes as much as the SYN has room for, from host or device memory. It takes none
    /// (`WouldBlock`) if the peer's cookie is not known yet; the SYN requests it then, for later connections.
    ///
    /// The peer may see such a SYN twice: only requests that may be repeated should be sent so.
    ///
    /// # Errors
    /// [`ConnectError`].
    pub fn connect_early(
        &mut self,
        local: Option<SocketAddr>,
        remote: SocketAddr,
        settings: &tcp::Settings,
        cookie: EarlyCookie,
        now: Instant,
    ) -> Result<SocketId, ConnectError> {
        self.open(local, remote, settings, Some(cookie), now)
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

    /// Returns whether the SYN of [`Stack::connect_early`] to `peer` would take payload.
    pub fn has_early_cookie(&self, peer: IpAddr, cookie: EarlyCookie, now: Instant) -> bool {
        let settings = &self.tcp.config().fast_open;
        let no_cookie = cookie == EarlyCookie::NotNeeded;
        let start = self
            .tcp
            .fast_open
            .start(peer, u16::MAX, no_cookie, settings, now);
        start.is_some_and(|start| start.data_max > 0)
    }

    /// Changes what a listener does about TCP Fast Open; a queue length above 0 allows it (TCP_FASTOPEN).
    ///
    /// # Errors
    /// [`BadSocket`], also if the socket is a connection.
    pub fn change_fast_open(
        &mut self,
        id: SocketId,
        change: impl FnOnce(&mut tcp::FastOpenListener),
    ) -> Result<(), BadSocket> {
        match &mut *self.sockets.get_mut(id)? {
            SocketKind::Listener(listener) => {
                listener.half_open.fast_open_mut().map(change);
                Ok(())
            }
            SocketKind::Connection(_) | SocketKind::TimeWait(_) => Err(BadSocket(id)),
        }
    }
}
