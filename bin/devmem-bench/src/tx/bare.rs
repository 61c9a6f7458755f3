//! Row B: the minimum of work that sends a TCP stream from device memory to a TAP: the upper limit for any sender over a TAP.
//! It is no TCP: it supports one peer and one connection, has no congestion window, and never retransmits.

use std::io;
use std::num::NonZeroU16;
use std::os::fd::AsFd;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use devmem_linux::cpu;
use devmem_uapi::DmabufId;
use mapped::DmaRight;
use netmem::{FragList, FragSource, MemoryProvider, NiovSize, PagePool};
use nic::{BIG_PACKET_LEN, MAX_PACKET_LEN, VnetFd};
use wire::{
    ArpOperation, ArpPacket, Gso, GsoKind, MAX_HEADER_LEN, MacAddr, Network, Offload, RxHeaders,
    TcpFlags, TcpHeader, TcpOptions, VnetHeader,
};

use crate::network::open_tap;
use crate::row::Packets;
use crate::runner::Bench;
use crate::send_time::SendTime;
use crate::sender::{PORT, RECEIVER, SENDER, SenderReport, wait_for_sender};
use crate::station::{MAC, emit_segment, send_arp};

/// Our ports, a different one for each run, because the kernel may still have state of the last connection, which began with
/// the same sequence number.
const OUR_PORTS: std::ops::Range<u16> = 40_000..60_000;
/// IPv4 and TCP headers.
const HEADERS: usize = 40;
/// Longest payload of a super-packet without BIG TCP.
const SHORT: usize = MAX_PACKET_LEN - HEADERS;
/// Number of super-packets between two reads of the TAP.
const PACKETS_PER_READ: u32 = 4;
/// Size of a buffer for received frames, which have no payload.
const FRAME_MAX: usize = 2048;

/// Sends all of the device memory repeatedly until the time has passed.
pub fn send(bench: &Bench, packets: Packets) -> Result<SenderReport> {
    let memory = FragSource::new(&bench.memory, DmabufId(1))?;
    // Only for the pool's `DmaPort`; nothing is allocated from the pool.
    let provider = MemoryProvider::of_dmabuf(&bench.memory, DmabufId(1), NiovSize::MAX)?;
    let pool = PagePool::new(Arc::new(provider));
    let port = pool.dma_port(DmaRight::of_a_nic());
    let write = |tap: &VnetFd, header: VnetHeader, head: &mut [u8], payload: &FragList| {
        header.emit(head);
        port.writev(tap.as_fd(), head, payload).map(|_| ())
    };
    let mut peer = Peer::new(open_tap(bench.mtu, packets)?, bench.mtu, write);
    let before = cpu::process_cpu_time();
    peer.connect()?;
    let time = SendTime::of(bench.time);
    let mut longest = match packets {
        Packets::Legacy => SHORT,
        Packets::Usual | Packets::Big => BIG_PACKET_LEN - HEADERS,
    };
    let (mut at, mut bytes) = (0, 0);
    while time.continues(bytes) {
        for _ in 0..PACKETS_PER_READ {
            let len = peer.wait_for_window(longest)?.min(memory.size());
            if at + len > memory.size() {
                at = 0;
            }
            match peer.send(TcpFlags::ACK, &memory.begin().frags(at, len)?) {
                // The kernel has no contiguous memory for a long packet: this run goes on with packets that need less.
                Err(error) if longest > SHORT && has_no_memory(&error) => {
                    longest = SHORT;
                    continue;
                }
                sent => sent?,
            }
            bytes += len as u64;
            at += len;
        }
        peer.look()?;
    }
    peer.close()?;
    let cpu_ns = u64::try_from((cpu::process_cpu_time() - before).as_nanos())?;
    Ok(SenderReport { bytes, cpu_ns })
}

/// Returns whether the TAP refused a packet because the kernel had no memory for it (ENOBUFS).
fn has_no_memory(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.and_then(rustix::io::Errno::from_io_error) == Some(rustix::io::Errno::NOBUFS)
}

/// Returns one of [`OUR_PORTS`], chosen by the CPU time of this process.
fn any_port() -> u16 {
    let ports = OUR_PORTS.len() as u32;
    // Less than the number of ports.
    OUR_PORTS.start + (cpu::process_cpu_time().subsec_nanos() % ports) as u16
}

/// The kernel at the other end of the TAP, and the state of its connection.
struct Peer<W> {
    tap: VnetFd,
    /// Writes a virtio-net header, the packet's headers, and device memory.
    write: W,
    mss: u16,
    mac: Option<MacAddr>,
    our_port: u16,
    snd_una: u32,
    snd_nxt: u32,
    rcv_nxt: u32,
    /// The peer's window, from `snd_una` on.
    window: u32,
    scale: u8,
    is_open: bool,
    has_ended: bool,
}

impl<W> Peer<W>
where
    W: Fn(&VnetFd, VnetHeader, &mut [u8], &FragList) -> io::Result<()>,
{
    fn new(tap: VnetFd, mtu: u16, write: W) -> Self {
        Self {
            tap,
            write,
            mss: mtu.saturating_sub(40),
            mac: None,
            our_port: any_port(),
            snd_una: 1,
            snd_nxt: 1,
            rcv_nxt: 0,
            window: 0,
            scale: 0,
            is_open: false,
            has_ended: false,
        }
    }

    fn connect(&mut self) -> Result<()> {
        let question = ArpPacket::request(MAC, RECEIVER, SENDER);
        send_arp(&self.tap, &question, MacAddr::BROADCAST)?;
        while self.mac.is_none() {
            self.wait()?;
        }
        self.send(TcpFlags::SYN, &FragList::new())?;
        while !self.is_open {
            self.wait()?;
        }
        Ok(())
    }

    fn close(&mut self) -> Result<()> {
        self.send(TcpFlags::FIN | TcpFlags::ACK, &FragList::new())?;
        while !self.has_ended {
            self.wait()?;
        }
        Ok(())
    }

    /// Waits until the window has room for the next packet, and returns its length: `longest`, or less while the window is
    /// smaller than that, as the first one is.
    fn wait_for_window(&mut self, longest: usize) -> Result<usize> {
        loop {
            let (window, mss) = (self.window as usize, usize::from(self.mss));
            let len = longest.min(window) / mss * mss;
            let in_flight = self.snd_nxt.wrapping_sub(self.snd_una) as usize;
            if len > 0 && in_flight + len <= window {
                return Ok(len);
            }
            self.wait()?;
        }
    }

    /// Waits for a frame, and handles all received frames.
    fn wait(&mut self) -> Result<()> {
        if !self.look()? {
            wait_for_sender(&self.tap)?;
            self.look()?;
        }
        Ok(())
    }

    /// Handles all received frames; returns whether there was one.
    fn look(&mut self) -> Result<bool> {
        let mut frame = [0; FRAME_MAX];
        let mut any = false;
        loop {
            match self.tap.read(&mut frame) {
                Ok(Some((len, _))) => self.on_frame(&frame[..len])?,
                Ok(None) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(any),
                Err(errno) => return Err(errno).context("read the TAP"),
            }
            any = true;
        }
    }

    fn on_frame(&mut self, frame: &[u8]) -> Result<()> {
        let Ok(headers) = RxHeaders::parse(frame, frame.len()) else {
            return Ok(());
        };
        match (headers.network, headers.tcp()) {
            (Network::Arp, _) => self.on_arp(frame.get(headers.header_len..).unwrap_or_default()),
            (Network::Ipv4(ip), Some(tcp))
                if ip.dst == RECEIVER && tcp.dst_port == self.our_port =>
            {
                self.on_tcp(tcp)
            }
            _ => Ok(()),
        }
    }

    fn on_arp(&mut self, packet: &[u8]) -> Result<()> {
        let Ok(arp) = ArpPacket::parse(packet) else {
            return Ok(());
        };
        if arp.sender_ip == SENDER {
            self.mac = Some(arp.sender_mac);
        }
        if arp.op == ArpOperation::REQUEST && arp.target_ip == RECEIVER {
            send_arp(&self.tap, &arp.reply(MAC), arp.sender_mac)?;
        }
        Ok(())
    }

    fn on_tcp(&mut self, tcp: &TcpHeader) -> Result<()> {
        if tcp.flags.contains(TcpFlags::RST) {
            bail!("the receiver reset the connection");
        }
        if tcp.flags.contains(TcpFlags::SYN) {
            self.scale = tcp.options.window_scale.unwrap_or(0).min(14);
            self.rcv_nxt = tcp.seq.wrapping_add(1);
            self.mss = tcp.options.mss.unwrap_or(self.mss).min(self.mss);
            self.is_open = true;
        }
        self.snd_una = tcp.ack;
        // The window of a SYN is not scaled (RFC 7323 2.2).
        let scale = if tcp.flags.contains(TcpFlags::SYN) {
            0
        } else {
            self.scale
        };
        self.window = u32::from(tcp.window) << scale;
        if tcp.flags.contains(TcpFlags::FIN) {
            self.rcv_nxt = self.rcv_nxt.wrapping_add(1);
            self.has_ended = true;
        }
        if tcp.flags.intersects(TcpFlags::SYN | TcpFlags::FIN) {
            self.send(TcpFlags::ACK, &FragList::new())?;
        }
        Ok(())
    }

    /// Sends a segment; the kernel segments one that is longer than a packet.
    fn send(&mut self, flags: TcpFlags, payload: &FragList) -> Result<()> {
        use netmem::Payload;
        let syn = flags.contains(TcpFlags::SYN);
        let options = TcpOptions {
            mss: syn.then_some(self.mss),
            window_scale: syn.then_some(0),
            ..TcpOptions::default()
        };
        let tcp = TcpHeader {
            src_port: self.our_port,
            dst_port: PORT,
            seq: self.snd_nxt,
            ack: self.rcv_nxt,
            flags,
            window: u16::MAX,
            urgent: 0,
            options,
            header_len: 0,
        };
        let mac = self
            .mac
            .context("the receiver's address is not known yet")?;
        let mut head = [0; VnetHeader::LEN + MAX_HEADER_LEN];
        let room = &mut head[VnetHeader::LEN..];
        let (len, checksum) = emit_segment(mac, SENDER, &tcp, payload.len(), room);
        let is_super = payload.len() > usize::from(self.mss);
        let size = NonZeroU16::new(self.mss).filter(|_| is_super);
        let offload = Offload {
            checksum,
            gso: size.map(|size| Gso {
                kind: GsoKind::Tcp4,
                size,
            }),
        };
        let header = VnetHeader::new(offload, &room[..len]);
        let head = &mut head[..VnetHeader::LEN + len];
        (self.write)(&self.tap, header, head, payload).context("write to the TAP")?;
        let control = flags.intersects(TcpFlags::SYN | TcpFlags::FIN);
        // Less than 2^32.
        let advance = payload.len() as u32 + u32::from(control);
        self.snd_nxt = self.snd_nxt.wrapping_add(advance);
        Ok(())
    }
}
