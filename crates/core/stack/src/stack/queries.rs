//! What a program asks about a socket; nothing changes, except that an error is reported once.

use std::net::SocketAddr;

use steer::RxQueueId;
use tcp::TcpError;

use super::Stack;
use crate::bind_addr::BindAddr;
use crate::socket::error::BadSocket;
use crate::socket::id::SocketId;
use crate::socket::kind::SocketKind;
use crate::socket::readiness::{Pollable, Readiness, Snapshot};

impl Stack {
    /// Returns how many payload bytes are queued and not acknowledged (SIOCOUTQ); 0 for a listener.
    ///
    /// # Errors
    /// [`BadSocket`].
    pub fn unacked_len(&self, id: SocketId) -> Result<usize, BadSocket> {
        let connection = self.sockets.connection(id)?;
        Ok(connection.map_or(0, |it| it.conn.unacked_len()))
    }

    /// Returns the total number of bytes received in order, or of connections at a listener. If it grows, there is
    /// more to read, even if the readiness has not changed.
    ///
    /// # Errors
    /// [`BadSocket`].
    pub fn arrivals(&self, id: SocketId) -> Result<u64, BadSocket> {
        Ok(self.snapshot(id)?.arrivals)
    }

    /// Returns the total number of entries of the error queue, as [`Stack::arrivals`] does for data.
    ///
    /// # Errors
    /// [`BadSocket`].
    pub fn error_arrivals(&self, id: SocketId) -> Result<u64, BadSocket> {
        Ok(self.snapshot(id)?.error_arrivals)
    }

    /// Returns whether a connection, including those in TIME-WAIT, has this port at an address that `local` covers.
    pub fn is_port_in_use(&self, local: impl Into<BindAddr>) -> bool {
        self.sockets.names.is_port_in_use(&local.into())
    }

    /// Returns and clears the error of a failed connection (SO_ERROR).
    ///
    /// # Errors
    /// [`BadSocket`].
    pub fn take_error(&mut self, id: SocketId) -> Result<Option<TcpError>, BadSocket> {
        let connection = self.sockets.connection_mut(id)?;
        Ok(connection.and_then(|mut connection| connection.take_error()))
    }

    /// Returns the values of TCP_INFO; `None` for a listener.
    ///
    /// # Errors
    /// [`BadSocket`].
    pub fn info(&self, id: SocketId) -> Result<Option<tcp::Info>, BadSocket> {
        let connection = self.sockets.connection(id)?;
        Ok(connection.map(|it| it.conn.info(&it.options.tcp)))
    }

    /// Returns the local address.
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
        Ok(self.sockets.connection(id)?.map(|it| it.addresses().1))
    }

    /// Returns the number of tokens of a socket that have not been given back.
    ///
    /// # Errors
    /// [`BadSocket`].
    pub fn tokens_outstanding(&self, id: SocketId) -> Result<usize, BadSocket> {
        let connection = self.sockets.connection(id)?;
        Ok(connection.map_or(0, |it| it.reader.tokens_outstanding()))
    }

    /// Returns what a socket is ready for.
    ///
    /// # Errors
    /// [`BadSocket`].
    pub fn readiness(&self, id: SocketId) -> Result<Readiness, BadSocket> {
        Ok(self.snapshot(id)?.readiness)
    }

    fn snapshot(&self, id: SocketId) -> Result<Snapshot, BadSocket> {
        let snapshot = self.sockets.get(id)?.snapshot();
        Ok(snapshot.unwrap_or(Snapshot::NONE))
    }

    /// Returns how many unread bytes lie before the byte that the peer last called urgent; `None` if there is no such byte.
    ///
    /// Urgent bytes stay in the stream, as RFC 6093 6 recommends (SO_OOBINLINE).
    ///
    /// # Errors
    /// [`BadSocket`].
    pub fn until_urgent(&self, id: SocketId) -> Result<Option<u64>, BadSocket> {
        let connection = self.sockets.connection(id)?;
        Ok(connection.and_then(|it| it.reader.until_urgent()))
    }

    /// Returns the RX queue on which the last segment of a connection arrived; queue 0 before the first one.
    ///
    /// # Errors
    /// [`BadSocket`], also of a listener.
    pub fn rx_queue(&mut self, id: SocketId) -> Result<RxQueueId, BadSocket> {
        let connection = self.sockets.connection_mut(id)?.ok_or(BadSocket(id))?;
        Ok(connection.rx_queue())
    }
}
