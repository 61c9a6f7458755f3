//! A TAP device: a link to the kernel's network stack.

use std::fmt;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use ::wire::{EtherType, EthernetHeader, Instant, protocol};
use peer_socket::PeerSocket;
use rustix::event::epoll;
use rustix::io::Errno;

use super::vnet_fd::FrameWriter;
use super::{
    Link, LinkCaps, LinkReceived, LinkSent, MAX_PACKET_LEN, Posted, TxFrame, VnetFd, VnetHeaderLen,
};

/// Options that the TAP was opened with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TapOptions {
    /// Length of the virtio-net header.
    pub vnet_header: VnetHeaderLen,
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
            vnet_header: VnetHeaderLen::Ten,
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
    writer: FrameWriter,
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

/// Frames that are read from one of several queues before the next one is read, so that a queue that always has frames does not
/// keep the others from being read.
const QUEUE_TURN: usize = 64;

/// Bytes of the longest super-packet that is sent to a kernel with BIG TCP: the maximum of the kernel's own packets (linux
/// `GSO_MAX_SIZE`). 1 MiB is sent as two of them. The kernel stores one in 16 pieces of 32 KiB; a packet may have 17 pieces.
/// If it has no free pieces of this size, it refuses the packet ([`LinkSent::TooLong`]). It also refuses
/// `UNFIT_BIG_PAYLOAD`.
pub const BIG_PACKET_LEN: usize = 8 * 65_535;

/// Payload lengths of super-packets, in bytes, that the kernel refuses although it accepts longer ones: it stores the
/// payload in pieces of 32 KiB and the rest in pieces of 16, 8 and 4 KiB. For these lengths it needs 15 of the first and
/// one of each of the others: 18, where a packet may have 17 (linux net/core/skbuff.c `alloc_skb_with_frags`,
/// `MAX_SKB_FRAGS`).
pub(super) const UNFIT_BIG_PAYLOAD: RangeInclusive<u32> =
    (15 << 15) + (24 << 10) + 1..=(15 << 15) + (28 << 10);

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
            _ => Some(epoll_of(&fds)?),
        };
        let with_header = |fd| VnetFd::new(fd, options.vnet_header);
        Ok(Self {
            any,
            ..Self::of_queues(fds.into_iter().map(with_header).collect(), options)
        })
    }

    /// Returns a link over a connected socket, whose packets are as those of a TAP.
    pub(super) fn of_socket(socket: Arc<PeerSocket>, options: TapOptions) -> Self {
        let socket = VnetFd::of_socket(socket, options.vnet_header);
        Self::of_queues(vec![socket], options)
    }

    fn of_queues(fds: Vec<VnetFd>, options: TapOptions) -> Self {
        Self {
            fds,
            options: options.bounded(),
            any: None,
            first: 0,
            read: 0,
            up: true,
            writer: FrameWriter::default(),
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

fn epoll_of(fds: &[OwnedFd]) -> io::Result<OwnedFd> {
    let any = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for fd in fds {
        epoll::add(
            &any,
            fd,
            epoll::EventData::new_u64(0),
            epoll::EventFlags::IN,
        )?;
    }
    Ok(any)
}

/// Returns the queue to send a frame on: the same for all frames of a connection. The kernel delivers the packets of a
/// connection to the queue that last sent one (linux drivers/net/tun.c `tun_flow_update`), so a connection that changed its
/// queue would be received out of order.
fn queue_of(head: &[u8], queues: usize) -> usize {
    let hash = flow_hash(head).unwrap_or(0);
    // Less than `queues`, and evenly distributed, as the hash is.
    ((u64::from(hash) * queues as u64) >> 32) as usize
}

/// Returns a hash of the addresses and ports of a frame of this stack; `None` for a frame without ports.
fn flow_hash(head: &[u8]) -> Option<u32> {
    let ethernet = EthernetHeader::parse(head).ok()?;
    let ip = head.get(ethernet.header_len()..)?;
    let (addresses, ports_at) = match ethernet.ethertype {
        EtherType::IPV4 => (ip.get(12..20)?, 4 * usize::from(ip.first()? & 0x0f)),
        // Only the jumbo payload option (8 bytes) may be between the header and TCP; long packets have it.
        EtherType::IPV6 if *ip.get(6)? == protocol::HOP_BY_HOP => (ip.get(8..40)?, 48),
        EtherType::IPV6 => (ip.get(8..40)?, 40),
        _ => return None,
    };
    let ports = ip.get(ports_at..ports_at + 4)?;
    let words = addresses.chunks_exact(4).chain([ports]);
    let hash = words.fold(0_u64, |hash, word| {
        let word = u32::from_ne_bytes([word[0], word[1], word[2], word[3]]);
        let hash = (hash ^ u64::from(word)).wrapping_mul(GOLDEN_RATIO);
        hash ^ hash >> 32
    });
    Some(hash as u32)
}

/// 2^64 divided by the golden ratio: a multiplication by it distributes neighbouring numbers evenly (Knuth, The Art of
/// Computer Programming 3, 6.4).
const GOLDEN_RATIO: u64 = 0x9e37_79b9_7f4a_7c15;

impl Link for TapLink {
    fn caps(&self) -> LinkCaps {
        let TapOptions {
            offloads,
            mtu,
            max_super_packet,
            max_rx_packet,
            ..
        } = self.options;
        let queues = u16::try_from(self.fds.len()).unwrap_or(u16::MAX);
        // The kernel would complete checksums of sent frames in any case (TUNSETOFFLOAD is for received frames). Without
        // offloads the link does not use this, so that it behaves like a plain cable in both directions.
        LinkCaps {
            name: "tap",
            mtu,
            vnet: true,
            tso: offloads,
            max_super_packet,
            max_rx_packet,
            tx_checksum: offloads,
            queues,
            lends: false,
        }
    }

    fn receive(&mut self, posted: &mut Posted<'_>, _now: Instant) -> io::Result<LinkReceived> {
        for turn in 0..self.fds.len() {
            let queue = (self.first + turn) % self.fds.len();
            match self.fds[queue].receive(posted) {
                Ok((frame_len, header)) => {
                    self.note_read(queue);
                    self.up = true;
                    let meta = header.offload().into();
                    return Ok(LinkReceived::Placed { frame_len, meta });
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

    fn send(&mut self, frame: &TxFrame<'_>, _now: Instant) -> io::Result<LinkSent> {
        let longest = self.options.max_super_packet + EthernetHeader::TAGGED_LEN;
        if frame.frame_len() > longest {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let queue = match self.fds.len() {
            1 => 0,
            queues => queue_of(frame.head, queues),
        };
        let sent = self.writer.send(&self.fds[queue], frame);
        match &sent {
            Ok(LinkSent::Done) => self.up = true,
            Ok(LinkSent::Busy | LinkSent::TooLong) => {}
            Err(error) => self.note_error(error),
        }
        sent
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.any {
            Some(any) => Some(any.as_fd()),
            None => self.fds.first().map(AsFd::as_fd),
        }
    }

    fn is_up(&self) -> bool {
        self.up
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Headers of an Ethernet frame with TCP over IPv6.
    fn head_v6() -> Vec<u8> {
        let mut head = vec![0; 14 + 40 + 20];
        head[12..14].copy_from_slice(&EtherType::IPV6.0.to_be_bytes());
        head[14] = 0x60;
        head[14 + 6] = protocol::TCP;
        for (at, byte) in head[22..58].iter_mut().enumerate() {
            *byte = at as u8;
        }
        head
    }

    #[test]
    fn a_long_packet_with_a_jumbo_payload_option_has_the_hash_of_its_connection() {
        let short = head_v6();
        let mut long = short.clone();
        long[14 + 6] = protocol::HOP_BY_HOP;
        long.splice(54..54, [protocol::TCP, 0, 0xc2, 4, 0, 1, 0, 0]);
        assert!(flow_hash(&short).is_some());
        assert_eq!(flow_hash(&long), flow_hash(&short));
    }

    #[test]
    fn a_frame_without_ports_has_no_hash_and_one_queue() {
        let mut arp = head_v6();
        arp[12..14].copy_from_slice(&EtherType::ARP.0.to_be_bytes());
        for head in [&arp[..], &head_v6()[..57], &arp[..9], &[]] {
            assert_eq!((flow_hash(head), queue_of(head, 8)), (None, 0));
        }
    }
}
