//! The port at the end of a wire: a TAP, a packet socket, or a UNIX socket that gets another peer when its peer has left.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use devmem_linux::packet::{self, PacketOptions, Presence, Station};
use devmem_linux::tap::{TapOffloads, TapOptions, TapSetUp, VnetHeader as TapHeader};
use gve::{Offload, WireFeatures};
use nic::{MAX_FRAME_LEN, MAX_PACKET_LEN, UnixPort, UnixPortEvent, VnetFd, WireHello, Written};
use peer_socket::{ListenError, SocketFile};
use rustix::io::Errno;
use tool::output::{Failure, note};
use wire::{Instant, VnetHeader};

use crate::plan::WirePort;

/// Length of a buffer for any frame, plus one byte to detect longer ones.
pub const FRAME_BUFFER_BYTES: usize = MAX_FRAME_LEN + 1;

/// How often the kernel is asked for the state of an interface that is down.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Offloads of a TAP, and of another device of ours.
const OFFLOADS: WireFeatures = WireFeatures::CHECKSUM
    .union(WireFeatures::TSO4)
    .union(WireFeatures::TSO6);

/// The end of a wire.
#[derive(Debug)]
pub enum OpenPort {
    /// A TAP interface: the kernel's network stack.
    Tap(TapPort),
    /// A packet socket: the network of an Ethernet interface.
    Packet(PacketPort),
    /// A UNIX socket: another device, or a user-space stack.
    Unix(UnixEnd),
}

/// A TAP interface.
#[derive(Debug)]
pub struct TapPort {
    fd: VnetFd,
    offloads: bool,
    /// Restores an interface that existed before.
    _set_up: Option<TapSetUp>,
}

/// A packet socket that gets all frames of an interface. The kernel merges packets to super-packets.
#[derive(Debug)]
pub struct PacketPort {
    fd: VnetFd,
    index: u32,
    super_packets: SuperPacketLimits,
    /// When to ask for the state of the interface. `None` while it is up: the socket reports when it goes down, but not when
    /// it is removed after that.
    look_at: Option<Instant>,
    /// The interface was removed.
    gone: bool,
}

/// Limits of the super-packets that an end takes whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SuperPacketLimits {
    /// Bytes of the longest super-packet, without the Ethernet header.
    pub longest: usize,
    /// Bytes of the longest IP packet that the segments may be.
    pub mtu: usize,
}

/// One end of a UNIX wire.
#[derive(Debug)]
pub struct UnixEnd {
    port: UnixPort,
    /// The file to which the other end connects, if this end listens. It is removed with the port.
    file: Option<SocketFile>,
}

impl OpenPort {
    /// Opens the port `wire`; `ours` is what this end accepts.
    ///
    /// # Errors
    ///
    /// The TAP or the socket cannot be opened.
    pub fn open(wire: &WirePort, ours: WireHello) -> Result<Self, Failure> {
        let WireHello { offloads, mtu, .. } = ours;
        Ok(match wire {
            WirePort::Tap { name, address } => {
                let options = TapOptions {
                    offloads: match offloads {
                        true => TapOffloads::Segmentation,
                        false => TapOffloads::None,
                    },
                    vnet_header: TapHeader::Short,
                    ..TapOptions::new(name)
                };
                let tap = options.open()?;
                let addresses = address.map(|address| [(address.address, address.len)]);
                let set_up = addresses.map(|addresses| tap.set_up_interface(mtu, &addresses));
                let set_up = set_up.transpose()?;
                let fd = tap.into_queues().pop().context("a TAP without a queue")?;
                let fd = VnetFd::Queue(fd);
                Self::Tap(TapPort {
                    fd,
                    offloads,
                    _set_up: set_up,
                })
            }
            WirePort::Packet { name } => Self::Packet(PacketPort::open(name)?),
            WirePort::Listen(path) => Self::Unix(UnixEnd::listen(path, ours)?),
            WirePort::Connect(path) => Self::Unix(UnixEnd {
                port: UnixPort::connect(path, ours),
                file: None,
            }),
        })
    }

    /// Returns the descriptors to poll for reading: the listener and connections without a hello, and the other end.
    pub fn fds(&self) -> (impl Iterator<Item = BorrowedFd<'_>>, Option<BorrowedFd<'_>>) {
        let (listeners, peer) = match self {
            Self::Tap(port) => (None, Some(port.fd.as_fd())),
            Self::Packet(port) => (None, Some(port.fd.as_fd())),
            Self::Unix(end) => {
                let (listeners, peer) = end.port.fds();
                (Some(listeners), peer)
            }
        };
        (listeners.into_iter().flatten(), peer)
    }

    /// Accepts or makes connections, if the port is a UNIX socket; asks for the state of an interface that is down.
    pub fn serve(&mut self, now: Instant) {
        match self {
            Self::Tap(_) => {}
            Self::Packet(port) => port.look_if_due(now),
            Self::Unix(end) => end.serve(now),
        }
    }

    /// Returns when [`serve`](Self::serve) has to be called even if nothing is readable.
    pub fn next_due(&self) -> Option<Instant> {
        match self {
            Self::Tap(_) => None,
            Self::Packet(port) => port.look_at,
            Self::Unix(end) => end.port.next_due(),
        }
    }

    /// Returns whether the other end is connected.
    pub fn is_up(&self) -> bool {
        match self {
            Self::Tap(_) | Self::Packet(_) => true,
            Self::Unix(end) => end.port.is_up(),
        }
    }

    /// Returns the offloads of the other end.
    pub fn features(&self) -> WireFeatures {
        let offloads = match self {
            Self::Tap(port) => port.offloads,
            Self::Packet(_) => true,
            Self::Unix(end) => end.port.offloads(),
        };
        match offloads {
            true => OFFLOADS,
            false => WireFeatures::empty(),
        }
    }

    /// Returns the limits of the super-packets that the other end takes; `None` if it takes none. Those of an interface are
    /// from the time when it was opened.
    pub fn super_packets(&self) -> Option<SuperPacketLimits> {
        match self {
            // A cable opens it without offloads.
            Self::Tap(_) => None,
            Self::Packet(port) => Some(port.super_packets),
            Self::Unix(end) => {
                let mtu = end.port.super_packet_mtu()?;
                Some(SuperPacketLimits {
                    longest: MAX_PACKET_LEN,
                    mtu: mtu.into(),
                })
            }
        }
    }

    /// Reads one frame into `frame`, whose last byte is for the detection of longer frames. `None` if there is no frame.
    ///
    /// # Errors
    ///
    /// The interface failed: it was deleted.
    pub fn read(
        &mut self,
        frame: &mut [u8],
        now: Instant,
    ) -> Result<Option<(usize, Offload)>, Errno> {
        let read = match self {
            Self::Tap(port) => match port.fd.read(frame) {
                // The interface is down.
                Err(Errno::AGAIN | Errno::INTR | Errno::IO) => None,
                read => read?,
            },
            Self::Packet(port) => port.read(frame, now)?,
            Self::Unix(end) => end.port.read(frame),
        };
        Ok(read.map(|(len, header)| (len, header.offload())))
    }

    /// Writes one frame with `head_len` bytes of headers.
    pub fn write(&mut self, frame: &[u8], head_len: usize, offload: Offload) -> Written {
        let header = VnetHeader::new(offload, frame.get(..head_len).unwrap_or(frame));
        match self {
            Self::Tap(port) => written(port.fd.write(header, frame)),
            Self::Packet(port) => written(port.fd.write(header, frame)),
            Self::Unix(end) => end.port.write(header, frame),
        }
    }
}

/// Returns what a write to an interface has done.
fn written(result: Result<(), Errno>) -> Written {
    match result {
        Ok(()) => Written::Done,
        Err(Errno::AGAIN) => Written::Full,
        // The interface is down, the kernel is out of memory, or it refuses the frame.
        Err(_) => Written::Lost,
    }
}

impl PacketPort {
    fn open(name: &str) -> Result<Self, Failure> {
        let options = PacketOptions {
            interface: name.to_owned(),
            station: Station::Cable,
        };
        let socket = options.open().map_err(|error| {
            let remedy = error.remedy();
            let failure = Failure::failed(format!("packet:{name}: {error}"));
            match remedy {
                Some(remedy) => failure.with_remedy(remedy),
                None => failure,
            }
        })?;
        let index = socket.index();
        let bytes = |limit| usize::try_from(limit).unwrap_or(usize::MAX);
        let super_packets = SuperPacketLimits {
            longest: bytes(socket.max_super_packet()),
            mtu: bytes(socket.mtu()),
        };
        let (fd, _no_ports) = socket.into_parts();
        let fd = VnetFd::Queue(fd);
        Ok(Self {
            fd,
            index,
            super_packets,
            look_at: None,
            gone: false,
        })
    }

    fn read(
        &mut self,
        frame: &mut [u8],
        now: Instant,
    ) -> Result<Option<(usize, VnetHeader)>, Errno> {
        if self.gone {
            return Err(Errno::NODEV);
        }
        match self.fd.read(frame) {
            // EINVAL: a super-packet of no known kind, which the kernel has dropped.
            Err(Errno::AGAIN | Errno::INTR | Errno::INVAL) => Ok(None),
            // linux v6.18 net/packet/af_packet.c packet_notifier: once, when the interface goes down. A removal begins so.
            Err(Errno::NETDOWN) => {
                self.look_at = Some(now + CHECK_INTERVAL);
                Ok(None)
            }
            read => read,
        }
    }

    fn look_if_due(&mut self, now: Instant) {
        if self.look_at.is_none_or(|at| now < at) {
            return;
        }
        self.look_at = None;
        match packet::presence(self.fd.as_fd(), self.index) {
            Ok(Presence::Up) => {}
            Ok(Presence::Gone) => self.gone = true,
            Ok(Presence::Down) | Err(_) => self.look_at = Some(now + CHECK_INTERVAL),
        }
    }
}

/// Returns the error of an end that cannot be read.
pub fn read_failed(errno: Errno) -> Failure {
    let failure = Failure::from(anyhow::Error::from(errno).context("read from the wire"));
    match errno {
        Errno::BADFD | Errno::NODEV => {
            failure.with_remedy("the interface was deleted: start again")
        }
        _ => failure,
    }
}

impl UnixEnd {
    /// Listens at `path`.
    fn listen(path: &Path, ours: WireHello) -> Result<Self, Failure> {
        let (port, file) = UnixPort::listen_at(path, ours).map_err(|error| {
            let remedy = match error {
                ListenError::InUse { .. } => "choose another path, or connect to it with unix:PATH",
                ListenError::NotASocket { .. } => "choose another path, or move that file away",
                ListenError::System { .. } => "choose a new path in a folder that you may write to",
            };
            Failure::failed(format!("unix-listen: {error}")).with_remedy(remedy)
        })?;
        Ok(Self {
            port,
            file: Some(file),
        })
    }

    fn serve(&mut self, now: Instant) {
        let Self { port, file } = self;
        port.serve(now, &mut |event| match (event, &*file) {
            (UnixPortEvent::AcceptFailed(_) | UnixPortEvent::SecondPeer, Some(file)) => {
                note(format_args!("{}: {event}", file.path().display()));
            }
            _ => note(event),
        });
    }
}

#[cfg(test)]
mod tests {
    use devmem_linux::netif::Interface;
    use devmem_linux::test_util::in_netns;

    use super::*;

    #[test]
    fn an_interface_that_is_removed_after_it_went_down_is_noticed() {
        let test = "nic::port::tests::an_interface_that_is_removed_after_it_went_down_is_noticed";
        in_netns(test, || {
            let (mut near, mut far) = Interface::create_veth_pair("near", "far").unwrap();
            near.set_up().unwrap();
            far.set_up().unwrap();
            let mut port = OpenPort::Packet(PacketPort::open("far").unwrap());
            let mut frame = vec![0; FRAME_BUFFER_BYTES];
            // What the kernel sends by itself, until there is nothing more.
            let mut drain = |port: &mut OpenPort, now| {
                port.serve(now);
                loop {
                    match port.read(&mut frame, now) {
                        Ok(Some(_)) => {}
                        Ok(None) => break Ok(()),
                        Err(errno) => break Err(errno),
                    }
                }
            };

            far.set_down().unwrap();
            drain(&mut port, Instant::ZERO).unwrap();
            let due = port.next_due().expect("it is down");
            drain(&mut port, due).unwrap();
            let due = port.next_due().expect("it is still down");
            far.set_up().unwrap();
            drain(&mut port, due).unwrap();
            assert_eq!(port.next_due(), None, "it is up again");

            far.set_down().unwrap();
            drain(&mut port, due).unwrap();
            far.delete().unwrap();
            drain(&mut port, due).unwrap();
            let due = port.next_due().expect("it was down");
            assert_eq!(drain(&mut port, due), Err(Errno::NODEV));
        });
    }
}
