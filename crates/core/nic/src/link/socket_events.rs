//! What a driver waits for on the socket of a link: frames, and room after the socket was full.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;

use super::LinkSent;

/// An epoll descriptor: readable when a frame may have arrived on a socket or, if the socket was full at the last send, when
/// it has room again. A socket with room would otherwise be writable all the time.
#[derive(Debug)]
pub(super) struct SocketEvents {
    epoll: OwnedFd,
    awaits_room: bool,
}

impl SocketEvents {
    /// Returns the events of `socket`, frames only at first.
    pub(super) fn of(socket: impl AsFd) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(0);
        epoll::add(&epoll, socket, data, epoll::EventFlags::IN)?;
        Ok(Self {
            epoll,
            awaits_room: false,
        })
    }

    /// Notes the result of a send on the socket.
    pub(super) fn on_sent(&mut self, socket: impl AsFd, sent: LinkSent) {
        let wanted = sent == LinkSent::Busy;
        if self.awaits_room == wanted {
            return;
        }
        let flags = match wanted {
            true => epoll::EventFlags::IN | epoll::EventFlags::OUT,
            false => epoll::EventFlags::IN,
        };
        let data = epoll::EventData::new_u64(0);
        // If this fails, `awaits_room` does not change, so that no caller waits for an event that is not reported.
        if epoll::modify(&self.epoll, socket, data, flags).is_ok() {
            self.awaits_room = wanted;
        }
    }

    /// Returns whether room will be reported.
    pub(super) fn awaits_room(&self) -> bool {
        self.awaits_room
    }

    /// Reports nothing any more.
    pub(super) fn remove(&self, socket: impl AsFd) {
        // Fails only if it was removed before.
        let _ = epoll::delete(&self.epoll, socket);
    }
}

impl AsFd for SocketEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// An epoll descriptor: readable when a socket has room again, if it was full at the last send. At other times it does not have
/// the socket, so that arriving frames cost nothing.
#[derive(Debug)]
pub(super) struct RoomEvents {
    epoll: OwnedFd,
    awaits_room: bool,
}

impl RoomEvents {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            awaits_room: false,
        })
    }

    /// Notes the result of a send on the socket.
    pub(super) fn on_sent(&mut self, socket: impl AsFd, sent: LinkSent) {
        let wanted = sent == LinkSent::Busy;
        if self.awaits_room == wanted {
            return;
        }
        let changed = match wanted {
            true => {
                let data = epoll::EventData::new_u64(0);
                epoll::add(&self.epoll, socket, data, epoll::EventFlags::OUT)
            }
            false => epoll::delete(&self.epoll, socket),
        };
        // If this fails, `awaits_room` does not change, so that no caller waits for an event that is not reported.
        if changed.is_ok() {
            self.awaits_room = wanted;
        }
    }

    /// Returns whether room will be reported.
    pub(super) fn awaits_room(&self) -> bool {
        self.awaits_room
    }
}

impl AsFd for RoomEvents {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}
