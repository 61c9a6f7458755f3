//! Row B: the minimum of work that moves a TCP stream from a TAP to device memory: the upper limit for any receiver over a
//! TAP. It is no TCP: it supports one peer and one connection, expects segments in order, and drops all others. It checks
//! only sequence numbers. It accepts the connection of a sender, or requests a file from a server.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::AsFd;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use devmem_uapi::DmabufId;
use mapped::DmaRight;
use netmem::{BufSpan, DmaPort, Dmabuf, Frag, MemoryProvider, Netmem, NiovSize, PagePool};
use nic::{HeaderBuf, VnetFd};
use wire::{
    ArpOperation, ArpPacket, MAX_HEADER_LEN, MacAddr, Network, Offload, RxHeaders, TcpFlags,
    TcpHeader, TcpOptions, Timestamps, VnetHeader,
};

use super::cases::Placement;
use crate::meter::{Meter, MeterReading};
use crate::network::open_tap;
use crate::row::Packets;
use crate::sender::{PORT, RECEIVER, Starter, wait_for_sender};
use crate::shuffle::{SEED, shuffle};
use crate::station::{MAC, emit_segment, send_arp};

/// Payload bytes after which an ACK is sent. Measured: 128 to 256 KiB cost least.
const ACK_EVERY: u32 = 256 << 10;
/// Window scale: 65,535 << 7 is 8 MiB, more than the kernel's sender has in flight.
const WINDOW_SCALE: u8 = 7;
/// Size of a buffer for one super-packet.
const PACKET_MAX: usize = 64 << 10;
/// Most bytes of a request.
const TEXT_MAX: usize = 256;

/// Receives one stream.
pub fn receive(
    memory: &Dmabuf,
    placement: Placement,
    mtu: u16,
    starter: Starter,
) -> Result<MeterReading> {
    let size = match placement {
        Placement::Contiguous => NiovSize::DEFAULT,
        Placement::Scattered => NiovSize::MIN,
    };
    let provider = MemoryProvider::of_dmabuf(memory, DmabufId(1), size)?;
    let mut pool = PagePool::new(Arc::new(provider));
    let port = pool.dma_port(DmaRight::of_a_nic());
    let mut pages = Vec::new();
    pool.alloc_contiguous(memory.size() / size.bytes(), &mut pages);
    if placement == Placement::Scattered {
        shuffle(&mut pages, SEED);
    }
    let target = Target {
        pages: &pages,
        size: size.bytes(),
        align: size.bytes(),
    };
    let mut peer = Peer::new(open_tap(mtu, Packets::Usual)?, mtu, Role::Accepts);
    starter.go().context("start the sender")?;
    peer.run(&target, &port)
}

/// Requests a file from the server at `server`, and receives the response: every byte, also those of its head, one behind the other
/// in `memory`, which has room for all. `from` is the port of this end: another one each time, because the server keeps the last
/// connection in TIME-WAIT. Returns the number of all these bytes, and the cost since the first of them.
///
/// # Errors
///
/// The TAP failed, or the server is silent.
pub fn fetch(
    memory: &Dmabuf,
    tap: VnetFd,
    mtu: u16,
    from: u16,
    server: SocketAddrV4,
    request: &'static [u8],
) -> Result<MeterReading> {
    let provider = MemoryProvider::of_dmabuf(memory, DmabufId(1), NiovSize::DEFAULT)?;
    let mut pool = PagePool::new(Arc::new(provider));
    let port = pool.dma_port(DmaRight::of_a_nic());
    let mut pages = Vec::new();
    let size = NiovSize::DEFAULT.bytes();
    pool.alloc_contiguous(memory.size() / size, &mut pages);
    let target = Target {
        pages: &pages,
        size,
        align: 1,
    };
    let mut peer = Peer::new(tap, mtu, Role::Requests { from, request });
    peer.look_for(server)?;
    peer.run(&target, &port)
}

/// The device memory, in the order in which it is filled repeatedly.
struct Target<'a> {
    pages: &'a [Netmem],
    size: usize,
    /// Each packet begins at a multiple of this.
    align: usize,
}

impl<'a> Target<'a> {
    /// Sets `spans` to the memory for one super-packet from the byte at `next` on: 64 KiB in one or two spans, or in pages, with
    /// one more page for a header that is longer than predicted.
    fn post(&self, next: usize, spans: &mut Vec<BufSpan<'a>>) {
        let spare = match self.size < PACKET_MAX {
            true => self.size,
            false => 0,
        };
        spans.clear();
        let (mut at, mut room) = (next, 0);
        while room < PACKET_MAX + spare {
            let offset = at % self.size;
            let len = self.size - offset;
            // The size of a net_iov is at most 2 MiB.
            spans.push(BufSpan {
                netmem: &self.pages[at / self.size % self.pages.len()],
                offset: offset as u32,
                len: len as u32,
            });
            at += len;
            room += len;
        }
    }

    /// Returns the place of the next packet after one that kept `bytes`.
    fn after(&self, next: usize, bytes: usize) -> usize {
        (next + bytes).next_multiple_of(self.align) % (self.size * self.pages.len())
    }
}

/// How the connection begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// The peer makes it.
    Accepts,
    /// This end makes it from its port `from`, and sends a request.
    Requests { from: u16, request: &'static [u8] },
}

impl Role {
    /// Returns the port of this end.
    fn port(self) -> u16 {
        match self {
            Self::Accepts => PORT,
            Self::Requests { from, .. } => from,
        }
    }
}

/// The kernel at the other end of the TAP, and the state of its connection.
struct Peer {
    tap: VnetFd,
    role: Role,
    mss: u16,
    header_len: usize,
    mac: MacAddr,
    address: Ipv4Addr,
    port: u16,
    snd_nxt: u32,
    rcv_nxt: u32,
    acknowledged: u32,
    timestamp: Option<u32>,
    scale: Option<u8>,
    done: bool,
}

impl Peer {
    fn new(tap: VnetFd, mtu: u16, role: Role) -> Self {
        Self {
            tap,
            role,
            mss: mtu.saturating_sub(40),
            // Ethernet, IPv4, TCP with timestamps.
            header_len: 14 + 20 + 32,
            mac: MacAddr::BROADCAST,
            address: Ipv4Addr::UNSPECIFIED,
            port: 0,
            snd_nxt: 1,
            rcv_nxt: 0,
            acknowledged: 0,
            timestamp: None,
            scale: None,
            done: false,
        }
    }

    /// Receives until the end of the stream.
    fn run(&mut self, target: &Target<'_>, port: &DmaPort) -> Result<MeterReading> {
        let mut meter = Meter::default();
        let mut head = HeaderBuf::new(0);
        let mut spill = vec![0; PACKET_MAX];
        let (mut spans, mut next) = (Vec::new(), 0);
        while !self.done {
            target.post(next, &mut spans);
            let predicted = head.with_vnet(VnetHeader::LEN, self.header_len);
            match port.readv(self.tap.as_fd(), predicted, &spans, &mut spill) {
                Ok(read) => {
                    let frame_len = read.saturating_sub(VnetHeader::LEN);
                    let split = self.header_len.min(frame_len);
                    // The rest of a header that is longer than predicted is in device memory.
                    let rest = (frame_len - split).min(MAX_HEADER_LEN - split);
                    let seen = head.with_vnet(0, split + rest);
                    let headers = RxHeaders::parse(&seen[..split], frame_len).or_else(|_| {
                        let first = Frag::new(spans[0].netmem.share(), 0, spans[0].len);
                        port.copy_out(&first, 0, &mut seen[split..]);
                        RxHeaders::parse(seen, frame_len)
                    });
                    if let Ok(headers) = headers {
                        next = target.after(next, self.on_frame(&headers, seen, &mut meter)?);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.acknowledge()?;
                    wait_for_sender(&self.tap)?;
                }
                Err(error) => return Err(error).context("read the TAP"),
            }
        }
        Ok(meter.finish())
    }

    /// Asks for the hardware address of a server; the connection follows when it answers.
    fn look_for(&mut self, server: SocketAddrV4) -> Result<()> {
        self.address = *server.ip();
        self.port = server.port();
        self.scale = Some(WINDOW_SCALE);
        // With the option for timestamps, as a kernel connects.
        self.timestamp = Some(0);
        let request = ArpPacket::request(MAC, RECEIVER, self.address);
        send_arp(&self.tap, &request, MacAddr::BROADCAST)
    }

    /// Handles one frame; returns the number of bytes of the memory that stay in use.
    fn on_frame(&mut self, headers: &RxHeaders, head: &[u8], meter: &mut Meter) -> Result<usize> {
        if headers.network == Network::Arp {
            self.on_arp(headers, head)?;
            return Ok(0);
        }
        let (Network::Ipv4(ip), Some(tcp)) = (headers.network, headers.tcp()) else {
            return Ok(0);
        };
        if ip.dst != RECEIVER || tcp.dst_port != self.role.port() {
            return Ok(0);
        }
        self.mac = headers.ethernet.src;
        self.timestamp = tcp.options.timestamps.map(|timestamps| timestamps.value);
        if tcp.flags.contains(TcpFlags::SYN) {
            self.address = ip.src;
            self.port = tcp.src_port;
            self.scale = tcp.options.window_scale.map(|_| WINDOW_SCALE);
            self.rcv_nxt = tcp.seq.wrapping_add(1);
            self.begin()?;
            return Ok(0);
        }
        if tcp.flags.contains(TcpFlags::RST) {
            bail!("the sender reset the connection");
        }
        self.on_payload(headers, tcp, meter)
    }

    /// Accepts the connection of the peer, or sends the request on the one that it has accepted.
    fn begin(&mut self) -> Result<()> {
        match self.role {
            Role::Accepts => {
                self.send(TcpFlags::SYN | TcpFlags::ACK)?;
                self.snd_nxt = self.snd_nxt.wrapping_add(1);
            }
            Role::Requests { request, .. } => {
                self.send_with(TcpFlags::ACK | TcpFlags::PSH, request)?;
                // A request has fewer bytes than a packet.
                self.snd_nxt = self.snd_nxt.wrapping_add(request.len() as u32);
            }
        }
        Ok(())
    }

    fn on_payload(
        &mut self,
        headers: &RxHeaders,
        tcp: &TcpHeader,
        meter: &mut Meter,
    ) -> Result<usize> {
        if tcp.seq != self.rcv_nxt {
            // A segment was lost or repeated: send a duplicate ACK.
            self.send(TcpFlags::ACK)?;
            return Ok(0);
        }
        let len = headers.payload_len;
        if len > 0 {
            self.header_len = headers.header_len;
            meter.add(len);
        }
        // A packet's length has 16 bits.
        self.rcv_nxt = self.rcv_nxt.wrapping_add(len as u32);
        if tcp.flags.contains(TcpFlags::FIN) {
            self.rcv_nxt = self.rcv_nxt.wrapping_add(1);
            self.send(TcpFlags::ACK | TcpFlags::FIN)?;
            self.done = true;
        } else if self.rcv_nxt.wrapping_sub(self.acknowledged) >= ACK_EVERY {
            self.acknowledge()?;
        }
        Ok(len)
    }

    fn acknowledge(&mut self) -> Result<()> {
        if self.acknowledged != self.rcv_nxt {
            self.send(TcpFlags::ACK)?;
        }
        Ok(())
    }

    fn send(&mut self, flags: TcpFlags) -> Result<()> {
        self.send_with(flags, &[])
    }

    /// Sends a segment with at most [`TEXT_MAX`] bytes of payload.
    fn send_with(&mut self, flags: TcpFlags, payload: &[u8]) -> Result<()> {
        let syn = flags.contains(TcpFlags::SYN);
        let options = TcpOptions {
            mss: syn.then_some(self.mss),
            window_scale: self.scale.filter(|_| syn),
            timestamps: self.timestamp.map(|echo| Timestamps { value: 1, echo }),
            ..TcpOptions::default()
        };
        let tcp = TcpHeader {
            src_port: self.role.port(),
            dst_port: self.port,
            seq: self.snd_nxt,
            ack: self.rcv_nxt,
            flags,
            window: u16::MAX,
            urgent: 0,
            options,
            header_len: 0,
        };
        let mut frame = [0; MAX_HEADER_LEN + TEXT_MAX];
        let (len, checksum) = emit_segment(self.mac, self.address, &tcp, payload.len(), &mut frame);
        let end = len + payload.len();
        frame[len..end].copy_from_slice(payload);
        let offload = Offload {
            checksum,
            gso: None,
        };
        let frame = &frame[..end];
        self.acknowledged = self.rcv_nxt;
        self.tap
            .write(VnetHeader::new(offload, frame), frame)
            .context("write to the TAP")
    }

    /// Answers a request, and connects after the answer to one of ours.
    fn on_arp(&mut self, headers: &RxHeaders, head: &[u8]) -> Result<()> {
        let Some(Ok(arp)) = head.get(headers.header_len..).map(ArpPacket::parse) else {
            return Ok(());
        };
        if arp.target_ip != RECEIVER {
            return Ok(());
        }
        if arp.op == ArpOperation::REQUEST {
            return send_arp(&self.tap, &arp.reply(MAC), headers.ethernet.src);
        }
        if self.role != Role::Accepts && self.mac == MacAddr::BROADCAST {
            self.mac = arp.sender_mac;
            self.send(TcpFlags::SYN)?;
            self.snd_nxt = self.snd_nxt.wrapping_add(1);
        }
        Ok(())
    }
}
