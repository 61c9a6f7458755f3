//! What a driver waits for on the socket of a link: frames, and room after the socket was full.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, EventData, EventFlags};

use super::frames::LinkSent;

/// Returns an epoll descriptor that is readable when one of `fds` is.
pub(super) fn readable_of<'a>(
    fds: impl IntoIterator<Item = BorrowedFd<'a>>,
) -> io::Result<OwnedFd> {
    let any = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for fd in fds {
        epoll::add(&any, fd, EventData::new_u64(0), EventFlags::IN)?;
    }
    Ok(any)
}

/// An epoll descriptor: readable when the socket has room again, if it was full at the last send. A socket with room would
/// otherwise be writable all the time.
#[derive(Debug)]
pub(super) struct SocketEvents {
    epoll: OwnedFd,
    /// What is reported at all times. Empty: the descriptor has the socket only while room is awaited, so that arriving frames cost
    /// nothing.
    always: EventFlags,
    awaits_room: bool,
}

impl SocketEvents {
    /// Returns the events of `socket`: frames that may have arrived, and room.
    pub(super) fn of(socket: impl AsFd) -> io::Result<Self> {
        let events = Self {
            always: EventFlags::IN,
            ..Self::of_room()?
        };
        epoll::add(&events.epoll, socket, EventData::new_u64(0), events.always)?;
        Ok(events)
    }

    /// Returns the events of a socket whose frames are reported elsewhere: room only.
    pub(super) fn of_room() -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            always: EventFlags::empty(),
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
            true => self.always | EventFlags::OUT,
            false => self.always,
        };
        let data = EventData::new_u64(0);
        let changed = match (self.always.is_empty(), wanted) {
            (false, _) => epoll::modify(&self.epoll, socket, data, flags),
            (true, true) => epoll::add(&self.epoll, socket, data, flags),
            (true, false) => epoll::delete(&self.epoll, socket),
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
