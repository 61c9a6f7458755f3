//! Where a wire ends: a descriptor that gives and takes packets of a virtio-net header and a frame.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use anyhow::Context;
use devmem_linux::tap::{TapOffloads, TapOptions, VnetHeader};
use gve::{Offload, WireFeatures};
use nic::MAX_FRAME_LEN;
use rustix::io::{Errno, readv, writev};

use super::unix_port::UnixPort;
use super::vnet;
use crate::plan::WirePort;
use tool::output::Failure;

/// Room for any frame, and one byte by which a longer one is seen.
pub const FRAME_BUFFER_BYTES: usize = MAX_FRAME_LEN + 1;

/// What a TAP or another device of ours does for whoever sends.
const OFFLOADS: WireFeatures = WireFeatures::CHECKSUM
    .union(WireFeatures::TSO4)
    .union(WireFeatures::TSO6);

/// What became of a frame that was handed to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// The other end has it.
    Done,
    /// There is no room now.
    Full,
    /// It is lost: nobody is there, or the frame was refused.
    Lost,
}

/// The end of a wire.
#[derive(Debug)]
pub enum Port {
    /// A TAP interface: the kernel's network stack.
    Tap(TapPort),
    /// A UNIX socket: another device, or a stack of ours.
    Unix(UnixPort),
}

/// A TAP interface.
#[derive(Debug)]
pub struct TapPort {
    fd: OwnedFd,
    offloads: bool,
}

impl Port {
    /// Opens the end of a wire that carries IP packets of `mtu` bytes and, with `offloads`, super-packets and checksums
    /// that are left open.
    ///
    /// # Errors
    ///
    /// The TAP or the socket cannot be had.
    pub fn open(wire: &WirePort, mtu: u16, offloads: bool) -> Result<Self, Failure> {
        Ok(match wire {
            WirePort::Tap { name, address } => {
                let options = TapOptions {
                    offloads: match offloads {
                        true => TapOffloads::Segmentation,
                        false => TapOffloads::None,
                    },
                    vnet_header: VnetHeader::Short,
                    ..TapOptions::new(name)
                };
                let tap = options.open()?;
                if let Some(address) = address {
                    let mut host = tap.interface()?;
                    host.set_mtu(u32::from(mtu))?;
                    host.quiet_ipv6();
                    host.add_address(address.address, address.len)?;
                    host.set_up()?;
                }
                let fd = tap.into_queues().pop().context("a TAP without a queue")?;
                Self::Tap(TapPort { fd, offloads })
            }
            WirePort::Listen(path) => Self::Unix(UnixPort::listen(path, offloads, mtu)?),
            WirePort::Connect(path) => Self::Unix(UnixPort::connect(path, offloads, mtu)),
        })
    }

    /// What to poll for reading: connections that come or have yet to say hello, and the other end.
    pub fn fds(&self) -> (impl Iterator<Item = BorrowedFd<'_>>, Option<BorrowedFd<'_>>) {
        let (doors, peer) = match self {
            Self::Tap(port) => (None, Some(port.fd.as_fd())),
            Self::Unix(port) => {
                let (doors, peer) = port.fds();
                (Some(doors), peer)
            }
        };
        (doors.into_iter().flatten(), peer)
    }

    /// Tells whether somebody is at the other end.
    pub fn is_up(&self) -> bool {
        match self {
            Self::Tap(_) => true,
            Self::Unix(port) => port.is_up(),
        }
    }

    /// Returns what the other end does for us.
    pub fn features(&self) -> WireFeatures {
        let offloads = match self {
            Self::Tap(port) => port.offloads,
            Self::Unix(port) => port.offloads(),
        };
        match offloads {
            true => OFFLOADS,
            false => WireFeatures::empty(),
        }
    }

    /// Reads one frame into `frame`, which is [`FRAME_BUFFER_BYTES`] long. `None` if there is none.
    ///
    /// # Errors
    ///
    /// The TAP failed: it was deleted.
    pub fn read(&mut self, frame: &mut [u8]) -> Result<Option<(usize, Offload)>, Errno> {
        match self {
            Self::Tap(port) => match read_packet(port.fd.as_fd(), frame) {
                // The interface is down.
                Err(Errno::AGAIN | Errno::INTR | Errno::IO) => Ok(None),
                read => read,
            },
            Self::Unix(port) => Ok(port.read(frame)),
        }
    }

    /// Writes one frame, whose headers are `head_len` bytes.
    pub fn write(&mut self, frame: &[u8], head_len: usize, offload: Offload) -> Written {
        let header = vnet::emit(offload, frame, head_len);
        match self {
            Self::Tap(port) => {
                let parts = [IoSlice::new(&header), IoSlice::new(frame)];
                match writev(&port.fd, &parts) {
                    Ok(_) => Written::Done,
                    Err(Errno::AGAIN) => Written::Full,
                    // The interface is down, the kernel is out of memory, or the frame is one it does not take.
                    Err(_) => Written::Lost,
                }
            }
            Self::Unix(port) => port.write(&header, frame),
        }
    }
}

/// Reads one packet: header and frame.
pub fn read_packet(
    fd: BorrowedFd<'_>,
    frame: &mut [u8],
) -> Result<Option<(usize, Offload)>, Errno> {
    let mut header = [0; vnet::LEN];
    let mut parts = [IoSliceMut::new(&mut header), IoSliceMut::new(frame)];
    let len = readv(fd, &mut parts)?;
    Ok(len
        .checked_sub(vnet::LEN)
        .map(|len| (len, vnet::parse(header))))
}
