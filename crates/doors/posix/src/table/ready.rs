//! Readiness of files, and the changes that wake the epolls watching them.

use std::cell::Cell;

use devmem_uapi::Errno;
use stack::{Readiness, SocketId};

use super::{FileKind, Sock, SockState, Table};
use crate::abi::ev;

/// Bits of poll(2) that may have changed, for watchers to check; 0: any of them.
pub type ChangedBits = u32;

/// The state changed: every watcher checks (linux `sk_state_change`).
pub const ANYTHING: ChangedBits = 0;
/// More to read or to accept (linux `sock_def_readable`).
pub const READABLE: ChangedBits = ev::IN | ev::PRI | ev::RDNORM | ev::RDBAND;
/// Room in the send buffer again (linux `sk_stream_write_space`).
pub const WRITABLE: ChangedBits = ev::OUT | ev::WRNORM | ev::WRBAND;

/// State of a file when its watchers were last woken; only an increase wakes them again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Reported {
    ready: u32,
    arrived: u64,
    errors: u64,
}

impl Table {
    pub(crate) fn note_events(&mut self) {
        let events: Vec<SocketId> = self.stack.take_events().collect();
        for socket in events {
            self.changes += 1;
            if let Some(&index) = self.by_socket.get(&socket)
                && let Some(news) = self.news(index, socket)
            {
                self.wake_watchers(index, news);
            }
        }
    }

    /// Returns what is new since the last call: more ready bits, more received data, more errors. Room for more bytes counts
    /// only after a caller was told that there was none (linux `SOCK_NOSPACE`).
    fn news(&mut self, index: usize, socket: SocketId) -> Option<ChangedBits> {
        let now = Reported {
            ready: self.events_at(index),
            arrived: self.stack.arrivals(socket).unwrap_or(0),
            errors: self.stack.error_arrivals(socket).unwrap_or(0),
        };
        let file = self.files.get_mut(index)?;
        let was = std::mem::replace(&mut file.reported, now);
        let ready = now.ready & !was.ready;
        if ready & (ev::RDHUP | ev::HUP) != 0 {
            return Some(ANYTHING);
        }
        let is_readable = ready & ev::IN != 0 || now.arrived > was.arrived;
        let has_error = ready & ev::ERR != 0 || now.errors > was.errors;
        let has_space = now.ready & ev::OUT != 0 && file.no_space.replace(false);
        let news = READABLE.when(is_readable) | ev::ERR.when(has_error) | WRITABLE.when(has_space);
        (news != 0).then_some(news)
    }

    /// Returns the bits that poll(2) reports for `fd`, unmasked.
    ///
    /// # Errors
    /// EBADF.
    pub fn poll_events(&self, fd: i32) -> Result<u32, Errno> {
        Ok(self.examine(self.index_of(fd)?))
    }

    /// Returns the ready bits of a file, and notes a missing EPOLLOUT so that the next free space wakes the watchers.
    pub(super) fn examine(&self, index: usize) -> u32 {
        let ready = self.events_at(index);
        if ready & ev::OUT == 0 {
            self.note_full(index);
        }
        ready
    }

    /// Notes that a caller was told that the file has no room (linux `SOCK_NOSPACE`).
    pub(super) fn note_full(&self, index: usize) {
        if let Some(no_space) = self.files.get(index).map(|file| &file.no_space) {
            Cell::set(no_space, true);
        }
    }

    fn events_at(&self, index: usize) -> u32 {
        match self.files.get(index).map(|file| &file.kind) {
            Some(FileKind::Epoll(epoll)) => ev::IN.when(self.has_events(epoll)),
            Some(FileKind::Socket(sock)) => self.sock_events(sock),
            Some(FileKind::Pipe(end)) => end.events(),
            None => 0,
        }
    }

    /// As linux net/ipv4/tcp.c `tcp_poll`.
    fn sock_events(&self, sock: &Sock) -> u32 {
        let ready = sock.state.id().and_then(|id| self.stack.readiness(id).ok());
        match (sock.state, ready) {
            (SockState::Listening(_), Some(ready)) => {
                (ev::IN | ev::RDNORM).when(ready.contains(Readiness::ACCEPTABLE))
            }
            (_, Some(ready)) => self.connection_events(sock, ready),
            // The first send connects.
            (_, None) if sock.deferred.is_some() => ev::OUT | ev::WRNORM,
            // A socket without a connection (linux TCP_CLOSE).
            (_, None) => ev::OUT | ev::WRNORM | ev::HUP,
        }
    }

    fn connection_events(&self, sock: &Sock, ready: Readiness) -> u32 {
        let has = |what| ready.contains(what);
        let is_closed = has(Readiness::READ_CLOSED) && has(Readiness::WRITE_CLOSED);
        let is_ended = has(Readiness::READ_CLOSED) || has(Readiness::ERROR);
        let is_readable = is_ended || (has(Readiness::READABLE) && self.has_low_water(sock));
        (ev::IN | ev::RDNORM).when(is_readable)
            | (ev::OUT | ev::WRNORM).when(has(Readiness::WRITABLE))
            | ev::PRI.when(has(Readiness::URGENT))
            | ev::RDHUP.when(has(Readiness::READ_CLOSED))
            | ev::HUP.when(is_closed)
            | ev::ERR.when(ready.intersects(Readiness::ERROR | Readiness::ERROR_QUEUE))
    }

    /// Returns whether at least SO_RCVLOWAT bytes can be read.
    fn has_low_water(&self, sock: &Sock) -> bool {
        sock.options.rcv_lowat <= 1 || self.readable_len(sock.state) >= sock.options.rcv_lowat
    }

    pub(super) fn readable_len(&self, state: SockState) -> usize {
        let info = state.id().and_then(|id| self.stack.info(id).ok().flatten());
        info.map_or(0, |info| info.readable)
    }
}

/// The bits if a condition holds, else 0.
trait When {
    fn when(self, condition: bool) -> Self;
}

impl When for u32 {
    fn when(self, condition: bool) -> Self {
        if condition { self } else { 0 }
    }
}
