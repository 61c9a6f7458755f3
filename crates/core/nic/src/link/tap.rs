//! A TAP device: a link to the kernel's network stack.

use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ::wire::{EthernetHeader, Instant};
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
    /// The kernel accepts super-packets with the length 0 in their header, over IPv4 and IPv6: Linux 6.3 and later.
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
/// The fds are opened and configured by the caller (IFF_TAP | IFF_NO_PI | IFF_VNET_HDR, non-blocking, and
/// IFF_MULTI_QUEUE if there are several), because that needs privileges.
#[derive(Debug)]
pub struct TapLink {
    fds: Vec<VnetFd>,
    options: TapOptions,
    /// Readable when any of several fds is.
    any: Option<OwnedFd>,
    /// Index of the fd that last had a frame; it is read first.
    busy: usize,
    up: bool,
    writer: FrameWriter,
}

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
            fds: fds.into_iter().map(with_header).collect(),
            options,
            any,
            busy: 0,
            up: true,
            writer: FrameWriter::default(),
        })
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

impl Link for TapLink {
    fn caps(&self) -> LinkCaps {
        let TapOptions { offloads, mtu, .. } = self.options;
        let queues = u16::try_from(self.fds.len()).unwrap_or(u16::MAX);
        // The kernel would complete checksums of sent frames in any case (TUNSETOFFLOAD is for received frames). Without
        // offloads the link does not use this, so that it behaves like a plain cable in both directions.
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

    fn receive(&mut self, posted: &mut Posted<'_>, _now: Instant) -> io::Result<LinkReceived> {
        for turn in 0..self.fds.len() {
            let queue = (self.busy + turn) % self.fds.len();
            match self.fds[queue].receive(posted) {
                Ok((frame_len, header)) => {
                    self.busy = queue;
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
        let longest = self.options.max_super_packet() + EthernetHeader::TAGGED_LEN;
        if frame.frame_len() > longest {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let sent = self.writer.send(&self.fds[self.busy], frame);
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

    fn next_due(&self) -> Option<Instant> {
        None
    }

    fn is_up(&self) -> bool {
        self.up
    }
}
