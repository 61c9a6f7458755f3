//! A packet socket: a link to an Ethernet interface of this machine, usually a NIC.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use ::wire::{EthernetHeader, Instant};
use rustix::io::Errno;

use super::definition::{Link, LinkCaps, LinkState};
use super::frames::{LinkReceived, LinkSent, Posted, TxFrame};
use super::socket_events::SocketEvents;
use super::tap::{BIG_PACKET_LEN, TapLink, TapOptions};
use crate::drops::DropReason;

/// How often the link asks the kernel how many packets the socket has dropped, and for the state of an interface that is
/// down.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// What the kernel says about the interface of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterfaceStatus {
    /// State of the interface.
    pub state: LinkState,
    /// Packets for which the buffer between the interface and the link had no room, since the last time.
    pub lost: u64,
}

/// Options of a [`PacketLink`].
#[derive(Clone, Copy, Debug)]
pub struct PacketLinkOptions {
    /// Index of the interface.
    pub ifindex: u32,
    /// MTU of the interface.
    pub mtu: u16,
    /// Bytes of the longest packet that the kernel passes to the interface as a super-packet,
    /// [`MAX_PACKET_LEN`](super::MAX_PACKET_LEN) to [`BIG_PACKET_LEN`]: it cuts longer ones to segments, which takes much more time.
    pub max_super_packet: usize,
    /// Asks the kernel about the socket and the interface of that index.
    pub look: fn(BorrowedFd<'_>, u32) -> io::Result<InterfaceStatus>,
}

/// A packet socket that is bound to one interface.
///
/// The socket is opened and configured by the caller (PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING, a filter by our MAC address;
/// non-blocking), because that needs privileges. The filter shortens frames of VLANs, whose tag cannot be seen, to less than an
/// Ethernet header. Packets are read and written as those of a TAP.
pub struct PacketLink {
    tap: TapLink,
    options: PacketLinkOptions,
    room: SocketEvents,
    state: LinkState,
    /// When to ask the kernel next. `None`: nothing was received since the last time, and the interface is not down.
    look_at: Option<Instant>,
    /// Lost packets that [`Link::take_lost`] has not returned yet.
    lost: u64,
}

impl fmt::Debug for PacketLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PacketLink")
            .field("options", &self.options)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl PacketLink {
    /// Returns a link over a packet socket.
    ///
    /// # Errors
    /// An epoll instance cannot be created.
    pub fn new(socket: OwnedFd, options: PacketLinkOptions) -> io::Result<Self> {
        let as_tap = TapOptions {
            offloads: true,
            mtu: options.mtu,
            max_super_packet: options.max_super_packet,
            // What arrives is as long as other machines, or this one for the packets that it merges (GRO), have been set to.
            max_rx_packet: BIG_PACKET_LEN,
        };
        Ok(Self {
            tap: TapLink::new(vec![socket], as_tap)?,
            options,
            room: SocketEvents::of_room()?,
            state: LinkState::Up,
            look_at: None,
            lost: 0,
        })
    }

    /// Drops `value` when the link is dropped, after its socket was closed.
    #[must_use]
    pub fn keeping(mut self, value: impl Send + 'static) -> Self {
        self.tap = self.tap.keeping(value);
        self
    }

    /// Asks the kernel, if it is time to. While the interface is down, this repeats until it is up or gone.
    fn look_if_due(&mut self, now: Instant) {
        if self.look_at.is_none_or(|at| now < at) {
            return;
        }
        self.look_at = None;
        let socket = self.tap.poll_fd();
        let look = |socket| (self.options.look)(socket, self.options.ifindex).ok();
        if let Some(status) = socket.and_then(look) {
            self.lost += status.lost;
            // An interface that was moved away and back is not the one of the socket any more.
            if self.state != LinkState::Gone {
                self.state = status.state;
            }
        }
        if self.state == LinkState::Down {
            self.look_again(now);
        }
    }

    fn look_again(&mut self, now: Instant) {
        self.look_at.get_or_insert(now + CHECK_INTERVAL);
    }

    /// Changes the state if the error means that the interface is down or gone.
    fn note_error(&mut self, error: &io::Error, now: Instant) {
        // linux v6.18 net/packet/af_packet.c: ENETDOWN once from a read when the interface goes down or is removed, and from
        // each write while it is down; ENXIO from each write after it was removed.
        match Errno::from_io_error(error) {
            Some(Errno::NETDOWN) if self.state == LinkState::Up => {
                self.state = LinkState::Down;
                self.look_at = Some(now + CHECK_INTERVAL);
            }
            Some(Errno::NXIO | Errno::NODEV) => {
                self.state = LinkState::Gone;
                self.look_at = None;
            }
            _ => {}
        }
    }
}

impl Link for PacketLink {
    fn caps(&self) -> LinkCaps {
        LinkCaps {
            name: "packet",
            ..self.tap.caps()
        }
    }

    fn receive(&mut self, posted: &mut Posted<'_>, now: Instant) -> io::Result<LinkReceived> {
        let received = self.tap.receive(posted, now);
        match &received {
            Ok(LinkReceived::Scattered { frame_len, .. }) => {
                self.look_again(now);
                if *frame_len < EthernetHeader::LEN {
                    return Ok(LinkReceived::Dropped(DropReason::RxVlan));
                }
            }
            Ok(_) => {}
            // linux v6.18 include/linux/virtio_net.h virtio_net_hdr_from_skb: a super-packet of no known kind.
            Err(error) if Errno::from_io_error(error) == Some(Errno::INVAL) => {
                return Ok(LinkReceived::Dropped(DropReason::RxLro));
            }
            Err(error) => self.note_error(error, now),
        }
        received
    }

    fn send(&mut self, frame: &TxFrame<'_>, now: Instant) -> io::Result<LinkSent> {
        let sent = self.tap.send(frame, now);
        match (&sent, self.tap.poll_fd()) {
            (Ok(sent), Some(socket)) => self.room.on_sent(socket, *sent),
            (Ok(_), None) => {}
            (Err(error), _) => self.note_error(error, now),
        }
        sent
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        // The socket itself: an epoll instance would be told of each packet that arrives, by the thread that delivers it.
        self.tap.poll_fd()
    }

    fn room_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.room.as_fd())
    }

    fn tells_of_room(&self) -> bool {
        self.room.awaits_room()
    }

    fn next_due(&self) -> Option<Instant> {
        self.look_at
    }

    fn state(&self) -> LinkState {
        self.state
    }

    fn take_lost(&mut self, now: Instant) -> u64 {
        self.look_if_due(now);
        std::mem::take(&mut self.lost)
    }
}
