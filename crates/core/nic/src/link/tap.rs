//! A TAP device: a link to the kernel's network stack. Other links with such packets stand on it.

mod flow;

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ::wire::{EthernetHeader, Instant, VnetHeader};
use netmem::{DmaPort, FragList};
use peer_socket::{PeerSocket, close_aside};
use rustix::io::Errno;

use super::definition::{Link, LinkCaps, LinkState, MAX_FRAME_LEN, MAX_PACKET_LEN};
use super::frames::{LinkReceived, LinkSent, Posted, TxFrame};
use super::socket_events::readable_of;
use super::vnet_fd::VnetFd;
use flow::queue_of;

/// Options that the TAP was opened with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TapOptions {
    /// TUNSETOFFLOAD was called with checksum, TSO4 and TSO6: super-packets may be received and sent.
    pub offloads: bool,
    /// MTU of the device.
    pub mtu: u16,
    /// Bytes of the longest super-packet that is sent, with offloads: [`MAX_PACKET_LEN`] to [`BIG_PACKET_LEN`]. A kernel before
    /// Linux 6.3 refuses super-packets with the length 0 in their header.
    pub max_super_packet: usize,
    /// Bytes of the longest super-packet that is received, with offloads: those of a macvtap may be as long as
    /// [`BIG_PACKET_LEN`].
    pub max_rx_packet: usize,
}

impl Default for TapOptions {
    fn default() -> Self {
        Self {
            offloads: true,
            mtu: 1500,
            max_super_packet: MAX_PACKET_LEN,
            max_rx_packet: MAX_PACKET_LEN,
        }
    }
}

impl TapOptions {
    /// Returns the options with no longer packets than the link can have.
    fn bounded(self) -> Self {
        let most = match self.offloads {
            true => BIG_PACKET_LEN,
            false => MAX_PACKET_LEN,
        };
        Self {
            max_super_packet: self.max_super_packet.clamp(MAX_PACKET_LEN, most),
            max_rx_packet: self.max_rx_packet.clamp(MAX_PACKET_LEN, most),
            ..self
        }
    }
}

/// A TAP device, one fd per queue.
///
/// The fds are opened and configured by the caller (IFF_TAP | IFF_NO_PI | IFF_VNET_HDR, non-blocking, and
/// IFF_MULTI_QUEUE if there are several), because that needs privileges.
#[derive(Debug)]
pub struct TapLink {
    fds: Vec<VnetFd>,
    options: TapOptions,
    /// Readable when any of several fds is.
    any: Option<OwnedFd>,
    /// Index of the fd that is read first.
    first: usize,
    /// Number of frames that were read from it since it became the first.
    read: usize,
    up: bool,
    /// Host bytes of the packet that is being sent: the virtio-net header and the head.
    scratch: Vec<u8>,
    nothing: FragList,
    kept: Guard,
}

/// A value that ends with a link, after its descriptors.
#[derive(Default)]
struct Guard(Option<Box<dyn Send>>);

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guard").field(&self.0.is_some()).finish()
    }
}

/// Maximum number of payload pieces of one write. A packet with more pieces, which are small then, is first copied into
/// one buffer.
const MAX_PIECES: usize = DmaPort::MAX_WRITE_FRAGS;

/// Frames that are read from one of several queues before the next one is read, so that a queue that always has frames does not
/// keep the others from being read.
const QUEUE_TURN: usize = 64;

/// Bytes of the longest super-packet that is sent to a kernel with BIG TCP: the maximum of the kernel's own packets (linux
/// `GSO_MAX_SIZE`). 1 MiB is sent as two of them. The kernel stores one in 16 pieces of 32 KiB; a packet may have 17 pieces.
/// If it has no free pieces of this size, it refuses the packet ([`LinkSent::TooLong`]). It also refuses
/// [some lengths](LinkCaps::unfit_payload).
pub const BIG_PACKET_LEN: usize = 8 * 65_535;

impl TapLink {
    /// Returns a link over the fds of one TAP device.
    ///
    /// # Errors
    /// There is no fd, or more than `u16::MAX`; or an epoll instance for several fds cannot be created.
    pub fn new(fds: Vec<OwnedFd>, options: TapOptions) -> io::Result<Self> {
        if fds.is_empty() || u16::try_from(fds.len()).is_err() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let any = match fds.len() {
            1 => None,
            _ => Some(readable_of(fds.iter().map(AsFd::as_fd))?),
        };
        Ok(Self {
            any,
            ..Self::of_queues(fds.into_iter().map(VnetFd::Queue).collect(), options)
        })
    }

    /// Returns a link over a connected socket, whose packets are as those of a TAP.
    pub(super) fn of_socket(socket: Arc<PeerSocket>, options: TapOptions) -> Self {
        Self::of_queues(vec![VnetFd::Socket(socket)], options)
    }

    fn of_queues(fds: Vec<VnetFd>, options: TapOptions) -> Self {
        Self {
            fds,
            options: options.bounded(),
            any: None,
            first: 0,
            read: 0,
            up: true,
            scratch: Vec::new(),
            nothing: FragList::default(),
            kept: Guard::default(),
        }
    }

    /// Drops `value` when the link is dropped, after its queues were closed.
    #[must_use]
    pub fn keeping(mut self, value: impl Send + 'static) -> Self {
        self.kept = Guard(Some(Box::new(value)));
        self
    }

    /// Makes `queue`, which had a frame, the first to be read; the next one if it has had its turn.
    fn note_read(&mut self, queue: usize) {
        let read = match queue == self.first {
            true => self.read + 1,
            false => 1,
        };
        (self.first, self.read) = match read < QUEUE_TURN {
            true => (queue, read),
            false => ((queue + 1) % self.fds.len(), 0),
        };
    }

    /// Sets the link down if the error means that the device is down or deleted.
    fn note_error(&mut self, error: &io::Error) {
        // linux v6.18 drivers/net/tun.c: EIO from a write while the interface is down, EFAULT from a
        // read after it was shut down for good, EBADFD once the device is deleted.
        if let Some(Errno::IO | Errno::NETDOWN | Errno::FAULT | Errno::BADFD | Errno::NODEV) =
            Errno::from_io_error(error)
        {
            self.up = false;
        }
    }
}

impl Link for TapLink {
    fn caps(&self) -> LinkCaps {
        let TapOptions {
            offloads,
            mtu,
            max_super_packet,
            max_rx_packet,
            ..
        } = self.options;
        // The kernel would complete checksums of sent frames in any case (TUNSETOFFLOAD is for received frames). Without
        // offloads the link does not use this, so that it behaves like a plain cable in both directions.
        LinkCaps {
            name: "tap",
            mtu,
            tso: offloads,
            max_super_packet,
            max_rx_packet,
            tx_checksum: offloads,
            borrows: false,
        }
    }

    fn receive(&mut self, posted: &mut Posted<'_>, _now: Instant) -> io::Result<LinkReceived> {
        for turn in 0..self.fds.len() {
            let queue = (self.first + turn) % self.fds.len();
            match read_into(posted, &self.fds[queue]) {
                Ok(placed) => {
                    self.note_read(queue);
                    self.up = true;
                    return Ok(placed);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    self.note_error(&error);
                    return Err(error);
                }
            }
        }
        Ok(LinkReceived::None)
    }

    /// Sends one frame by one writev: the virtio-net header, and the frame.
    fn send(&mut self, frame: &TxFrame<'_>, _now: Instant) -> io::Result<LinkSent> {
        let longest = self.options.max_super_packet + EthernetHeader::TAGGED_LEN;
        if frame.frame_len() > longest {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let queue = match self.fds.len() {
            1 => 0,
            queues => queue_of(frame.head, queues),
        };
        self.scratch.clear();
        self.scratch.resize(VnetHeader::LEN, 0);
        VnetHeader::new(frame.offload(), frame.head).emit(&mut self.scratch);
        self.scratch.extend_from_slice(frame.head);
        let pieces = match frame.payload.frag_count() {
            ..=MAX_PIECES => frame.payload,
            _ => {
                frame.copy_payload_to(&mut self.scratch);
                &self.nothing
            }
        };
        let fd = self.fds[queue].as_fd();
        match frame.port.writev(fd, &self.scratch, pieces) {
            Ok(_) => {
                self.up = true;
                Ok(LinkSent::Done)
            }
            Err(error) => match Errno::from_io_error(&error) {
                // A packet has at most 17 pieces of memory, which are small where memory is fragmented.
                Some(Errno::NOBUFS) if frame.frame_len() > MAX_FRAME_LEN => Ok(LinkSent::TooLong),
                Some(Errno::AGAIN | Errno::NOBUFS) => Ok(LinkSent::Busy),
                _ => {
                    self.note_error(&error);
                    Err(error)
                }
            },
        }
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.any {
            Some(any) => Some(any.as_fd()),
            None => self.fds.first().map(AsFd::as_fd),
        }
    }

    fn state(&self) -> LinkState {
        match self.up {
            true => LinkState::Up,
            false => LinkState::Down,
        }
    }
}

/// Reads one packet of a queue into memory of the NIC, by one readv, or recvmsg where descriptors may come with it: the frame's
/// first bytes into `posted.head`, the next into the spans, the rest into the spill. A packet shorter than the virtio-net header
/// is an empty frame.
///
/// # Errors
/// As readv(2). `ENETDOWN` at the end of file: the peer has closed its socket. A TAP has no end of file.
fn read_into(posted: &mut Posted<'_>, queue: &VnetFd) -> io::Result<LinkReceived> {
    let vnet_len = VnetHeader::LEN;
    let head = posted.head.with_vnet(vnet_len, posted.predicted_header);
    let (port, spans) = (posted.port, posted.spans);
    let read = match queue.may_get_descriptors() {
        false => port.readv(queue.as_fd(), head, spans, posted.spill)?,
        true => {
            let mut fds = Vec::new();
            let read = port.receive(queue.as_fd(), head, spans, posted.spill, &mut fds);
            // Their files are of no use here.
            close_aside(fds);
            read?
        }
    };
    if read == 0 {
        return Err(Errno::NETDOWN.into());
    }
    let (frame_len, header) = match read.checked_sub(vnet_len) {
        Some(len) => (len, VnetHeader::parse(posted.head.with_vnet(vnet_len, 0))),
        None => (0, Ok(VnetHeader::default())),
    };
    let meta = header.unwrap_or_default().offload().into();
    Ok(LinkReceived::Scattered { frame_len, meta })
}
