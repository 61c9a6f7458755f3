//! The end of a UNIX wire that listens: a link whose peer comes and goes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ::wire::Instant;
use netmem::MemoryProvider;
use peer_socket::{PeerSocket, SocketFile};
use rustix::event::epoll;

use super::definition::{Link, LinkCaps, LinkState};
use super::frames::{LinkReceived, LinkSent, Posted, TxFrame};
use super::hello::{WireHello, listen_at};
use super::socket_events::readable_of;
use super::unix::{UnixLink, caps_of};
use super::unix_port::{BACKLOG, UnixPort};
use crate::drops::DropReason;

/// Time after which connections are looked for while a peer is connected, to close them.
const REFUSE_AFTER: Duration = Duration::from_secs(1);

/// Time after which the first packet of a connection is looked for again.
const HELLO_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The listening end of a UNIX wire: down until another end has connected, and again when that has left. It has one peer at a
/// time; the next one may be another process.
///
/// The link has the capabilities of its own hello from the start, so a peer that allows less is refused: its connection is
/// closed, it is told so by this end's hello, and its hello is counted as `DropReason::RxPeerRefused`. It need not share memory: frames are cut to what an IP header can say then.
#[derive(Debug)]
pub struct UnixListenLink {
    port: UnixPort,
    ours: WireHello,
    peer: Option<UnixLink>,
    /// A peer was refused, and not counted yet.
    has_refused: bool,
    /// Readable when the listener is, while there is no peer, or when the peer's link is.
    ready: OwnedFd,
    listener: Arc<PeerSocket>,
    refuse_at: Instant,
    /// When to look for hellos.
    look_at: Instant,
    shares_send_memory: bool,
    /// No thread sleeps on the descriptor without [`Link::prepare_sleep`].
    is_watched: bool,
    _file: SocketFile,
}

impl UnixListenLink {
    /// Listens at `path`, where it creates a socket file. It replaces one that nothing listens on, and removes its own when it
    /// is dropped.
    ///
    /// # Errors
    /// As socket(2), bind(2) and listen(2); `AddrInUse` if the file exists, unless it is such a socket. Or the system has no
    /// descriptor left.
    pub fn at(path: &Path, ours: WireHello) -> io::Result<Self> {
        let ours = WireHello {
            needs_offloads: ours.offloads,
            ..ours
        };
        let (listener, file) = listen_at(path, BACKLOG)?;
        let ready = readable_of([listener.as_fd()])?;
        let again = Arc::clone(&listener);
        Ok(Self {
            port: UnixPort::listen(listener, ours),
            ours,
            peer: None,
            has_refused: false,
            ready,
            listener: again,
            refuse_at: Instant::ZERO,
            look_at: Instant::ZERO,
            shares_send_memory: false,
            is_watched: false,
            _file: file,
        })
    }

    /// Lets each peer read the send queues of this NIC while it is the peer: see [`UnixLink::share_send_memory`].
    pub fn share_send_memory(&mut self) {
        self.shares_send_memory = true;
    }

    fn watch(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let data = epoll::EventData::new_u64(0);
        epoll::add(&self.ready, fd, data, epoll::EventFlags::IN)?;
        Ok(())
    }

    /// Accepts a peer, or finds that it has left.
    fn look_for_peer(&mut self, now: Instant) -> io::Result<()> {
        if let Some(peer) = &self.peer {
            if peer.state() != LinkState::Gone {
                if self.refuse_at <= now {
                    self.refuse_at = now + REFUSE_AFTER;
                    self.port.refuse_others(now, &mut |_| {});
                }
                return Ok(());
            }
            // Dropped with it: what it has registered.
            self.peer = None;
            self.watch(self.listener.as_fd())?;
        }
        self.port.serve(now, &mut |_| {});
        self.look_at = now + HELLO_POLL_INTERVAL;
        let Some((socket, theirs)) = self.port.take_peer() else {
            return Ok(());
        };
        if self.ours.refuses(theirs) {
            self.has_refused = true;
            return Ok(());
        }
        let mut peer = UnixLink::new(socket, self.ours, theirs)?;
        if self.shares_send_memory {
            peer.share_send_memory()?;
        }
        if let Some(fd) = peer.poll_fd() {
            self.watch(fd)?;
        }
        // Readable as long as another end waits: it would wake the driver again and again.
        epoll::delete(&self.ready, &self.listener)?;
        if self.is_watched {
            peer.end_sleep();
        }
        self.refuse_at = now + REFUSE_AFTER;
        self.peer = Some(peer);
        Ok(())
    }
}

impl Link for UnixListenLink {
    fn caps(&self) -> LinkCaps {
        caps_of(self.ours)
    }

    fn receive(&mut self, posted: &mut Posted<'_>, now: Instant) -> io::Result<LinkReceived> {
        self.look_for_peer(now)?;
        if std::mem::take(&mut self.has_refused) {
            return Ok(LinkReceived::Dropped(DropReason::RxPeerRefused));
        }
        match &mut self.peer {
            Some(peer) => {
                let received = match peer.receive(posted, now) {
                    // From a peer that shares no memory. The NIC has posted none, so the frame is in host buffers.
                    Ok(LinkReceived::Scattered { frame_len, meta }) => {
                        let mut frame = std::mem::take(posted.frame);
                        posted.gather(frame_len, &mut frame);
                        *posted.frame = frame;
                        Ok(LinkReceived::Frame { meta })
                    }
                    received => received,
                };
                if received.is_err() {
                    // Nothing wakes the driver for a peer that has left, but for the next one.
                    self.look_for_peer(now)?;
                }
                received
            }
            None => Ok(LinkReceived::None),
        }
    }

    fn send(&mut self, frame: &TxFrame<'_>, now: Instant) -> io::Result<LinkSent> {
        match &mut self.peer {
            Some(peer) => peer.send(frame, now),
            None => Err(io::ErrorKind::NetworkDown.into()),
        }
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ready.as_fd())
    }

    fn tells_of_room(&self) -> bool {
        self.peer.as_ref().is_some_and(UnixLink::tells_of_room)
    }

    fn prepare_sleep(&mut self) -> bool {
        self.peer.as_mut().is_none_or(Link::prepare_sleep)
    }

    fn end_sleep(&mut self) {
        self.is_watched = true;
        if let Some(peer) = &mut self.peer {
            peer.end_sleep();
        }
    }

    fn send_memory(&self) -> Option<&Arc<MemoryProvider>> {
        self.peer.as_ref()?.send_memory()
    }

    fn is_near(&self) -> bool {
        true
    }

    fn next_due(&self) -> Option<Instant> {
        match &self.peer {
            Some(peer) => [peer.next_due(), Some(self.refuse_at)]
                .into_iter()
                .flatten()
                .min(),
            // The events of the listener are on the descriptor, those of connections without a hello are not.
            None if self.port.is_greeting() => Some(self.look_at),
            None => self.port.next_due(),
        }
    }

    /// The link stays after its peer: the next one may connect.
    fn state(&self) -> LinkState {
        match self.peer.as_ref().map(Link::state) {
            Some(LinkState::Up) => LinkState::Up,
            _ => LinkState::Down,
        }
    }
}
