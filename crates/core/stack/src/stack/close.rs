//! The end of sockets: shutdown, close, abort.

use std::net::Shutdown;

use tcp::StateKind;

use super::Stack;
use crate::socket::agenda::Mark;
use crate::socket::error::{BadSocket, ShutdownError};
use crate::socket::id::SocketId;
use crate::socket::kind::SocketKind;

impl Stack {
    /// Shuts down one or both directions of a connection. After [`Shutdown::Read`], a receive from an empty queue
    /// returns the end of the stream; data that arrives later can still be read (linux `tcp_recvmsg` with RCV_SHUTDOWN). After
    /// [`Shutdown::Both`] it resets the connection.
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
            connection.reader.shut_down();
            connection.conn.shutdown_read();
        }
        if how != Shutdown::Read {
            connection.conn.shutdown_write();
        }
        connection.mark(Mark::Touched);
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
        let Self { nic, sockets, .. } = self;
        let Ok(Some(mut connection)) = sockets.connection_mut(id) else {
            return;
        };
        connection
            .reader
            .release_tokens(|netmem| nic.recycle_netmem(netmem));
        connection.end_place(nic);
        connection.take_error();
        match ending {
            Ending::Orderly if !is_one_too_many => connection.conn.close(),
            Ending::Orderly | Ending::Reset => connection.conn.abort(),
        }
        connection.mark(Mark::Touched);
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
