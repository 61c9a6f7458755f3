//! shutdown and close.

use std::net::Shutdown;
use std::time::Duration;

use devmem_uapi::Errno;
use tcp::StateKind;

use super::{FileKind, SockState, Table};
use crate::options::Linger;

impl Table {
    /// shutdown(2).
    ///
    /// # Errors
    /// EBADF, ENOTSOCK, EINVAL, ENOTCONN.
    pub fn shutdown(&mut self, fd: i32, how: i32) -> Result<(), Errno> {
        let how = match how {
            0 => Shutdown::Read,
            1 => Shutdown::Write,
            2 => Shutdown::Both,
            _ => return Err(Errno::EINVAL),
        };
        match self.sock(fd)?.state {
            SockState::Fresh => Err(Errno::ENOTCONN),
            // SHUT_WR has no effect on a listener; SHUT_RD stops it (linux `inet_shutdown`).
            SockState::Listening(_) if how == Shutdown::Write => Ok(()),
            SockState::Listening(id) => {
                self.stack.close(id).map_err(|error| error.errno())?;
                self.attach(fd, SockState::Fresh)
            }
            SockState::Connecting(id) | SockState::Connected(id) => {
                let info = self.stack.info(id).ok().flatten();
                if info.is_some_and(|info| info.state == StateKind::SynSent) {
                    let _ = self.stack.abort(id);
                    return self.attach(fd, SockState::Fresh);
                }
                match self.has_ended(id) {
                    true => Err(Errno::ENOTCONN),
                    false => self.stack.shutdown(id, how).map_err(|error| error.errno()),
                }
            }
        }
    }

    /// Returns whether a connection is over for the program. TIME-WAIT belongs to no socket any more: that is closed (linux
    /// `tcp_time_wait`).
    pub(super) fn has_ended(&self, id: stack::SocketId) -> bool {
        let state = self.stack.info(id).ok().flatten().map(|info| info.state);
        matches!(state, None | Some(StateKind::Closed | StateKind::TimeWait))
    }

    /// Returns how long close waits until the peer has acknowledged everything (SO_LINGER); `None`: it does not wait.
    ///
    /// # Errors
    /// EBADF.
    pub(crate) fn linger(&mut self, fd: i32) -> Result<Option<Duration>, Errno> {
        let file = self.file(fd)?;
        let FileKind::Socket(sock) = &file.kind else {
            return Ok(None);
        };
        let Linger { on, seconds } = sock.options.linger;
        let waits = on && seconds != 0 && !file.nonblocking;
        let Some(id) = self.opened(sock.state) else {
            return Ok(None);
        };
        if !waits || !self.has_unacknowledged(id) {
            return Ok(None);
        }
        // The FIN is sent now; the file is closed once it is acknowledged.
        let _ = self.stack.shutdown(id, Shutdown::Write);
        // A negative time means for ever (linux `sk_setsockopt` reads it as unsigned).
        let seconds = u64::try_from(seconds).unwrap_or(u64::from(u32::MAX));
        Ok(Some(Duration::from_secs(seconds)))
    }

    /// Checks that a lingering close has nothing left to wait for.
    ///
    /// # Errors
    /// EAGAIN: the peer has not acknowledged everything.
    pub(crate) fn lingered(&self, fd: i32) -> Result<(), Errno> {
        match self.opened(self.sock(fd)?.state) {
            Some(id) if self.has_unacknowledged(id) => Err(Errno::EAGAIN),
            _ => Ok(()),
        }
    }

    fn has_unacknowledged(&self, id: stack::SocketId) -> bool {
        let info = self.stack.info(id).ok().flatten();
        info.is_some_and(|info| {
            let state = info.state;
            matches!(
                state,
                StateKind::Established
                    | StateKind::CloseWait
                    | StateKind::FinWait1
                    | StateKind::Closing
                    | StateKind::LastAck
            )
        })
    }

    /// close(2): frees the descriptor. The file is destroyed at once, or when the last call that waits for it returns. Its
    /// connection closes in the background, and its tokens are released.
    ///
    /// # Errors
    /// EBADF.
    pub fn close(&mut self, fd: i32) -> Result<(), Errno> {
        let index = self.index_of(fd)?;
        match self.files.get_mut(index) {
            Some(file) if file.holders > 0 => file.is_closed = true,
            _ => self.destroy(index),
        }
        Ok(())
    }

    /// Destroys a file.
    pub(super) fn destroy(&mut self, index: usize) {
        self.forget_watches(index);
        let Some(file) = self.files.try_remove(index) else {
            return;
        };
        self.touch();
        let sock = match file.kind {
            FileKind::Socket(sock) => sock,
            FileKind::Pipe(end) => return end.closed(self),
            FileKind::Epoll(_) => return,
        };
        self.forget_port(index, sock.bound);
        let Some(id) = sock.state.id() else {
            return;
        };
        self.by_socket.remove(&id);
        let Linger { on, seconds } = sock.options.linger;
        // Every connection in the table exists in the stack.
        let closed = match on && seconds == 0 {
            true => self.stack.abort(id),
            false => self.stack.close(id),
        };
        debug_assert!(closed.is_ok(), "{closed:?}");
    }

    /// Closes every file; calls that wait for one of them return EBADF.
    pub fn close_all(&mut self) {
        let open: Vec<usize> = self.files.iter().map(|(index, _)| index).collect();
        open.into_iter().for_each(|index| self.destroy(index));
    }
}
