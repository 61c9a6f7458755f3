//! A TAP device: the kernel's network stack at the other end of the cable.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ::wire::{EthernetHeader, Instant, has_cwr};
use netmem::{DmaPort, FragList};
use rustix::event::epoll;
use rustix::io::Errno;

use super::{
    Gso, Link, LinkCaps, MAX_FRAME_LEN, MAX_PACKET_LEN, Posted, Received, RxChecksum, Sent,
    TxFrame, VnetMeta, gso_of,
};

/// Length of the virtio-net header in front of every frame (TUNSETVNETHDRSZ).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum VnetHeaderLen {
    /// `struct virtio_net_hdr`, the default of the TUN driver.
    #[default]
    Ten,
    /// `struct virtio_net_hdr_mrg_rxbuf`: with `num_buffers`.
    Twelve,
}

impl VnetHeaderLen {
    /// Returns the length in bytes.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Ten => 10,
            Self::Twelve => 12,
        }
    }
}

/// How the TAP was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TapOptions {
    /// Length of the virtio-net header.
    pub vnet_header: VnetHeaderLen,
    /// TUNSETOFFLOAD was called with checksum, TSO4 and TSO6: super-packets come and may be sent.
    pub offloads: bool,
    /// MTU of the device.
    pub mtu: u16,
    /// The kernel takes super-packets whose length is 0 in their header, of both families: Linux 6.3 and later.
    pub big_tcp: bool,
}

impl Default for TapOptions {
    fn default() -> Self {
        Self {
            vnet_header: VnetHeaderLen::Ten,
            offloads: true,
            mtu: 1500,
            big_tcp: false,
        }
    }
}

impl TapOptions {
    const fn max_super_packet(self) -> usize {
        match self.offloads && self.big_tcp {
            true => BIG_PACKET_LEN,
            false => MAX_PACKET_LEN,
        }
    }
}

/// A TAP device, one fd per queue.
///
/// The fds come opened and configured (IFF_TAP | IFF_NO_PI | IFF_VNET_HDR, non-blocking, and
/// IFF_MULTI_QUEUE if there are several): opening needs privilege, which is not this crate's business.
#[derive(Debug)]
pub struct TapLink {
    fds: Vec<OwnedFd>,
    options: TapOptions,
    /// Readable when any of several fds is.
    any: Option<OwnedFd>,
    /// The fd that last had a frame: asked first.
    busy: usize,
    up: bool,
    scratch: Vec<u8>,
    nothing: FragList,
}

/// Bytes of the longest super-packet sent where the kernel takes longer ones than an IP header can tell the length of: as
/// long as any that the kernel makes (linux `GSO_MAX_SIZE`). 1 MiB leaves in two of them. The kernel holds one in 16 pieces
/// of 32 KiB, of the 17 that it may have, and refuses it where it has no such pieces ([`Sent::TooLong`]). It also refuses one
/// with 24 to 28 KiB behind 15 pieces, for which it wants three more; TCP makes no such length.
pub const BIG_PACKET_LEN: usize = 8 * 65_535;

/// Most payload pieces written from where they lie. A packet of more consists of small pieces, and is copied together
/// first.
const MAX_PIECES: usize = DmaPort::MAX_WRITE_FRAGS;

impl TapLink {
    /// Makes a link of the fds of one TAP device.
    ///
    /// # Errors
    /// There is no fd, more than `u16::MAX`, or the system has no epoll to give for several.
    pub fn new(fds: Vec<OwnedFd>, options: TapOptions) -> io::Result<Self> {
        if fds.is_empty() || u16::try_from(fds.len()).is_err() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let any = match fds.len() {
            1 => None,
            _ => Some(epoll_of(&fds)?),
        };
        Ok(Self {
            fds,
            options,
            any,
            busy: 0,
            up: true,
            scratch: Vec::new(),
            nothing: FragList::default(),
        })
    }

    /// Notes from an error whether the device is down or gone.
    fn note_error(&mut self, error: &io::Error) {
        // linux v6.18 drivers/net/tun.c: EIO from a write while the interface is down, EFAULT from a
        // read after it was shut down for good, EBADFD once the device is deleted.
        if let Some(Errno::IO | Errno::NETDOWN | Errno::FAULT | Errno::BADFD | Errno::NODEV) =
            Errno::from_io_error(error)
        {
            self.up = false;
        }
    }

    fn read(&mut self, queue: usize, posted: &mut Posted<'_>) -> io::Result<Received> {
        let vnet_len = self.options.vnet_header.bytes();
        let predicted = posted.predicted_header;
        let head = posted.head.with_vnet(vnet_len, predicted);
        let read = posted
            .port
            .readv(self.fds[queue].as_fd(), head, posted.spans, posted.spill)?;
        if read == 0 {
            // A device has no end of file: whoever held the other end is gone.
            return Err(Errno::NETDOWN.into());
        }
        // A runt that does not even fill the virtio-net header is an empty frame.
        let frame_len = read.saturating_sub(vnet_len);
        let head = posted.head.with_vnet(vnet_len, 0);
        Ok(Received::Placed {
            frame_len,
            meta: VnetHeader::parse(head).meta(),
        })
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

impl Link for TapLink {
    fn caps(&self) -> LinkCaps {
        let TapOptions { offloads, mtu, .. } = self.options;
        let queues = u16::try_from(self.fds.len()).unwrap_or(u16::MAX);
        // The kernel finishes checksums of frames with a virtio-net header, whatever TUNSETOFFLOAD says:
        // that is about the other direction. Without offloads it takes no super-packets from us either,
        // so that such a TAP is a plain cable both ways.
        LinkCaps {
            name: "tap",
            mtu,
            vnet: true,
            tso: offloads,
            max_super_packet: self.options.max_super_packet(),
            tx_checksum: offloads,
            queues,
        }
    }

    fn receive(&mut self, posted: &mut Posted<'_>, _now: Instant) -> io::Result<Received> {
        for turn in 0..self.fds.len() {
            let queue = (self.busy + turn) % self.fds.len();
            match self.read(queue, posted) {
                Ok(received) => {
                    self.busy = queue;
                    self.up = true;
                    return Ok(received);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    self.note_error(&error);
                    return Err(error);
                }
            }
        }
        Ok(Received::None)
    }

    fn send(&mut self, frame: &TxFrame<'_>, _now: Instant) -> io::Result<Sent> {
        let longest = self.options.max_super_packet() + EthernetHeader::TAGGED_LEN;
        if frame.frame_len() > longest {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.scratch.clear();
        self.scratch.resize(self.options.vnet_header.bytes(), 0);
        VnetHeader::of(frame).emit(&mut self.scratch);
        self.scratch.extend_from_slice(frame.head);
        let pieces = match frame.payload.frag_count() {
            ..=MAX_PIECES => frame.payload,
            _ => {
                frame.copy_payload_to(&mut self.scratch);
                &self.nothing
            }
        };
        let fd = self.fds[self.busy].as_fd();
        match frame.port.writev(fd, &self.scratch, pieces) {
            Ok(_) => {
                self.up = true;
                Ok(Sent::Done)
            }
            Err(error) => match Errno::from_io_error(&error) {
                // A packet's memory is at most 17 pieces, and where memory lies in pieces, these are small.
                Some(Errno::NOBUFS) if frame.frame_len() > MAX_FRAME_LEN => Ok(Sent::TooLong),
                Some(Errno::AGAIN | Errno::NOBUFS) => Ok(Sent::Busy),
                _ => {
                    self.note_error(&error);
                    Err(error)
                }
            },
        }
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.any.as_ref().or(self.fds.first()).map(AsFd::as_fd)
    }

    fn next_due(&self) -> Option<Instant> {
        None
    }

    fn is_up(&self) -> bool {
        self.up
    }
}

/// `struct virtio_net_hdr` (linux include/uapi/linux/virtio_net.h) in the byte order of the host, which is
/// what the TUN driver uses unless told otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct VnetHeader {
    flags: u8,
    gso_type: u8,
    hdr_len: u16,
    gso_size: u16,
    csum_start: u16,
    csum_offset: u16,
}

/// VIRTIO_NET_HDR_F_NEEDS_CSUM
const NEEDS_CSUM: u8 = 1;
/// VIRTIO_NET_HDR_F_DATA_VALID
const DATA_VALID: u8 = 2;
/// VIRTIO_NET_HDR_GSO_TCPV4
const GSO_TCPV4: u8 = 1;
/// VIRTIO_NET_HDR_GSO_TCPV6
const GSO_TCPV6: u8 = 4;
/// VIRTIO_NET_HDR_GSO_ECN, a flag beside the type: only the first segment gets CWR
const GSO_ECN: u8 = 0x80;

impl VnetHeader {
    fn of(frame: &TxFrame<'_>) -> Self {
        let mut header = Self::default();
        if let Some(checksum) = frame.checksum {
            header.flags = NEEDS_CSUM;
            header.csum_start = checksum.start;
            header.csum_offset = checksum.offset;
        }
        let gso_type = match gso_of(frame) {
            Gso::None => return header,
            Gso::Tcp4 => GSO_TCPV4,
            Gso::Tcp6 => GSO_TCPV6,
        };
        let hdr_len = u16::try_from(frame.head.len()).unwrap_or(0);
        let ecn = match has_cwr(frame.head, header.csum_start.into()) {
            true => GSO_ECN,
            false => 0,
        };
        Self {
            gso_type: gso_type | ecn,
            gso_size: frame.gso_size,
            hdr_len,
            ..header
        }
    }

    /// Reads the header from at least 10 bytes; anything shorter says nothing.
    fn parse(bytes: &[u8]) -> Self {
        let Some(&[flags, gso_type, a, b, c, d, e, f, g, h]) = bytes.first_chunk() else {
            return Self::default();
        };
        let [hdr_len, gso_size, csum_start, csum_offset] =
            [[a, b], [c, d], [e, f], [g, h]].map(u16::from_ne_bytes);
        Self {
            flags,
            gso_type,
            hdr_len,
            gso_size,
            csum_start,
            csum_offset,
        }
    }

    /// Writes the header to the start of `out`; `num_buffers`, if there is room, stays 0.
    fn emit(self, out: &mut [u8]) {
        let Self {
            flags,
            gso_type,
            hdr_len,
            gso_size,
            csum_start,
            csum_offset,
        } = self;
        let [[a, b], [c, d], [e, f], [g, h]] =
            [hdr_len, gso_size, csum_start, csum_offset].map(u16::to_ne_bytes);
        if let Some(out) = out.first_chunk_mut() {
            *out = [flags, gso_type, a, b, c, d, e, f, g, h];
        }
    }

    fn meta(self) -> VnetMeta {
        let gso = match self.gso_type & !GSO_ECN {
            GSO_TCPV4 => Gso::Tcp4,
            GSO_TCPV6 => Gso::Tcp6,
            _ => Gso::None,
        };
        let checksum = if self.flags & NEEDS_CSUM != 0 {
            RxChecksum::Partial
        } else if self.flags & DATA_VALID != 0 {
            RxChecksum::Valid
        } else {
            RxChecksum::Unverified
        };
        let gso_size = if gso == Gso::None { 0 } else { self.gso_size };
        VnetMeta {
            gso_size,
            gso,
            header_len: self.hdr_len,
            checksum,
        }
    }
}
