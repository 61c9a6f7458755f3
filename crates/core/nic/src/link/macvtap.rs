//! A macvtap interface: a link to the network of an Ethernet interface, with the frames of a TAP.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use ::wire::Instant;

use super::definition::{Link, LinkCaps, LinkState};
use super::frames::{LinkReceived, LinkSent, Posted, TxFrame};
use super::packet_socket::InterfaceStatus;
use super::socket_events::readable_of;
use super::tap::TapLink;

/// How often messages of the kernel about the interface are read, at most. Reading costs a system call.
const READ_GAP: Duration = Duration::from_millis(1);

/// How often the link asks for the counter of dropped frames, while frames are received.
const ASK_GAP: Duration = Duration::from_millis(100);

/// What to do with the socket on which the kernel reports about the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusQuery {
    /// Read the messages that have arrived.
    Read,
    /// Ask for a message with the current state and counters.
    Ask,
}

/// Reports on an interface.
pub struct InterfaceReports {
    /// Readable when a message has arrived.
    pub socket: OwnedFd,
    /// Does what it is told, without waiting, and returns the news; `None` if there are none.
    pub look: Box<dyn FnMut(StatusQuery) -> Option<InterfaceStatus> + Send>,
}

/// The queues of a macvtap interface. It has no errors that say that its interface is down or gone: the kernel drops what is
/// written, and there is nothing to read. So the state comes from messages of the kernel.
pub struct MacvtapLink {
    tap: TapLink,
    reports: InterfaceReports,
    /// Readable when a queue or the socket of the reports is.
    events: OwnedFd,
    state: LinkState,
    read_at: Instant,
    /// When to ask next. `None`: no frame was received since the last time.
    ask_at: Option<Instant>,
    /// Lost frames that [`Link::take_lost`] has not returned yet.
    lost: u64,
}

impl fmt::Debug for MacvtapLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MacvtapLink")
            .field("tap", &self.tap)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl MacvtapLink {
    /// Returns a link over the queues in `tap`.
    ///
    /// # Errors
    /// An epoll instance cannot be created.
    pub fn new(tap: TapLink, reports: InterfaceReports) -> io::Result<Self> {
        let fds = tap.poll_fd().into_iter().chain([reports.socket.as_fd()]);
        let mut link = Self {
            events: readable_of(fds)?,
            tap,
            reports,
            state: LinkState::Up,
            read_at: Instant::ZERO,
            ask_at: None,
            lost: 0,
        };
        link.look(StatusQuery::Ask);
        Ok(link)
    }

    /// Drops `value` when the link is dropped, after its queues were closed.
    #[must_use]
    pub fn keeping(mut self, value: impl Send + 'static) -> Self {
        self.tap = self.tap.keeping(value);
        self
    }

    fn look(&mut self, look: StatusQuery) {
        let Some(InterfaceStatus { state, lost }) = (self.reports.look)(look) else {
            return;
        };
        self.lost += lost;
        if self.state != LinkState::Gone {
            self.state = state;
        }
    }
}

impl Link for MacvtapLink {
    fn caps(&self) -> LinkCaps {
        LinkCaps {
            name: "macvtap",
            ..self.tap.caps()
        }
    }

    fn receive(&mut self, posted: &mut Posted<'_>, now: Instant) -> io::Result<LinkReceived> {
        let received = self.tap.receive(posted, now);
        match received {
            Ok(LinkReceived::None) if now >= self.read_at => {
                self.read_at = now + READ_GAP;
                self.look(StatusQuery::Read);
            }
            Ok(LinkReceived::Scattered { .. }) => {
                self.ask_at.get_or_insert(now + ASK_GAP);
            }
            _ => {}
        }
        received
    }

    fn send(&mut self, frame: &TxFrame<'_>, now: Instant) -> io::Result<LinkSent> {
        match self.state {
            LinkState::Up => self.tap.send(frame, now),
            LinkState::Down | LinkState::Gone => Err(io::ErrorKind::NetworkDown.into()),
        }
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.events.as_fd())
    }

    fn next_due(&self) -> Option<Instant> {
        self.ask_at
    }

    fn state(&self) -> LinkState {
        self.state
    }

    fn take_lost(&mut self, now: Instant) -> u64 {
        if self.ask_at.is_some_and(|at| now >= at) {
            self.ask_at = None;
            self.look(StatusQuery::Ask);
        }
        std::mem::take(&mut self.lost)
    }
}
