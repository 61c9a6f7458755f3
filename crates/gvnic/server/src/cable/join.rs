//! The cable between two ends: one loop, with a conditioner for each direction.

use std::time::{Duration, Instant as Clock};

use anyhow::Context;
use devmem_linux::netns::NetNs;
use nic::{
    BIG_PACKET_LEN, Conditioner, FrameCutter, Impairment, WireHello, Written, complete_checksum,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use wire::{EthernetHeader, Instant, Network, RxHeaders, segment_headers_len};

use gve::{ChecksumState, Gso, GsoKind, Offload};

use super::report::LaneReport;
use crate::nic::{OpenPort, read_failed};
use crate::plan::{WireEnd, WirePort};
use tool::counters::Lane as Counted;
use tool::output::Failure;

/// Maximum number of frames read from one end before the other end is read.
const BATCH_FRAMES: usize = 64;

/// Length of a buffer for any frame, plus one byte to detect longer ones.
const BUFFER_BYTES: usize = BIG_PACKET_LEN + EthernetHeader::TAGGED_LEN + 1;

/// Both directions of a cable.
#[derive(Debug)]
pub struct Cable {
    ends: [OpenPort; 2],
    /// From the first end to the second, and back.
    lanes: [CableLane; 2],
    start: Clock,
    incoming: Box<[u8]>,
}

/// One direction.
#[derive(Debug)]
struct CableLane {
    conditioner: Conditioner,
    cutter: FrameCutter,
    /// A frame that is due.
    outgoing: Vec<u8>,
    /// The receiving end had no room for `outgoing`.
    waits: bool,
    /// Frames lost at the receiving end: not connected, interface down, or out of memory.
    refused: u64,
    /// Super-packets that cannot be segmented, frames longer than [`BUFFER_BYTES`], and what a packet socket gets in place of a frame of
    /// a VLAN.
    unfit: u64,
    /// Super-packets that were passed on whole.
    whole: u64,
    /// Bytes of the longest of them.
    longest: usize,
}

/// Opens one end: a UNIX socket, or an interface in its network namespace; a TAP is set up if an address is given.
///
/// # Errors
///
/// The interface or the socket cannot be opened.
pub fn open(end: &WireEnd, mtu: u16) -> Result<OpenPort, Failure> {
    // Impairment needs single frames. The kernel segments super-packets before it passes them to a TAP without
    // offloads; super-packets from sockets are segmented here, unless the cable is perfect and the other end takes them.
    let cuts = !matches!(end.port, WirePort::Tap { .. });
    let ours = WireHello {
        offloads: cuts,
        mtu,
        // A cable passes on frames and no files.
        shares_memory: false,
        needs_offloads: false,
    };
    let open = || OpenPort::open(&end.port, ours);
    match &end.netns {
        Some(name) => NetNs::open(name)?.run(open)?,
        None => open(),
    }
}

impl Cable {
    /// Returns a cable between two ends.
    pub fn new(ends: [OpenPort; 2], impairment: Impairment) -> Self {
        // Each direction has a different seed.
        let other = Impairment {
            seed: !impairment.seed,
            ..impairment
        };
        Self {
            ends,
            lanes: [CableLane::new(impairment), CableLane::new(other)],
            start: Clock::now(),
            incoming: vec![0; BUFFER_BYTES].into_boxed_slice(),
        }
    }

    /// Returns the time since the ends were connected.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Returns the counters of each direction.
    pub fn report(&self) -> [LaneReport; 2] {
        self.lanes.each_ref().map(CableLane::report)
    }

    /// Waits at most `limit` for frames, and forwards them.
    ///
    /// # Errors
    ///
    /// An end failed permanently.
    pub fn step(&mut self, limit: Duration) -> Result<(), Failure> {
        let room = self.sleep(limit)?;
        let now = self.now();
        for end in &mut self.ends {
            end.serve(now);
        }
        let ([a, b], [there, back]) = (&mut self.ends, &mut self.lanes);
        there.take_in(a, b, &mut self.incoming, now)?;
        back.take_in(b, a, &mut self.incoming, now)?;
        let now = self.now();
        let [a, b] = &mut self.ends;
        for ((lane, to), room) in self.lanes.iter_mut().zip([b, a]).zip(room) {
            if room || !lane.waits {
                lane.let_out(to, now);
            }
        }
        Ok(())
    }

    /// Sleeps until a frame arrives or is due; returns for each direction whether the receiving end may have room again.
    fn sleep(&self, limit: Duration) -> Result<[bool; 2], Failure> {
        let limit = self
            .next_due()
            .map_or(limit, |due| due.saturating_since(self.now()).min(limit));
        let limit = Timespec::try_from(limit).context("a time to sleep")?;
        let [there, back] = &self.lanes;
        let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(4);
        // The receiving end of one lane is the sending end of the other.
        let peers = [(&self.ends[0], back), (&self.ends[1], there)].map(|(end, to_it)| {
            let (listeners, peer) = end.fds();
            fds.extend(listeners.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
            let wanted = match to_it.waits {
                true => PollFlags::IN | PollFlags::OUT,
                false => PollFlags::IN,
            };
            peer.map(|fd| {
                fds.push(PollFd::from_borrowed_fd(fd, wanted));
                fds.len() - 1
            })
        });
        match poll(&mut fds, Some(&limit)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(Failure::from(anyhow::Error::from(errno).context("poll"))),
        }
        // An end that is not connected counts as having room: it drops the frame.
        let [to_a, to_b] =
            peers.map(|peer| peer.is_none_or(|at| fds[at].revents() != PollFlags::empty()));
        Ok([to_b, to_a])
    }

    /// Returns the next deadline.
    fn next_due(&self) -> Option<Instant> {
        let frames = self
            .lanes
            .iter()
            .filter(|lane| !lane.waits)
            .filter_map(|lane| lane.conditioner.next_due());
        let ends = self.ends.iter().filter_map(OpenPort::next_due);
        frames.chain(ends).min()
    }

    fn now(&self) -> Instant {
        // 2^64 ns are 584 years.
        Instant::from_nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }
}

impl CableLane {
    fn new(impairment: Impairment) -> Self {
        Self {
            conditioner: Conditioner::new(impairment),
            cutter: FrameCutter::default(),
            outgoing: Vec::new(),
            waits: false,
            refused: 0,
            unfit: 0,
            whole: 0,
            longest: 0,
        }
    }

    fn take_in(
        &mut self,
        from: &mut OpenPort,
        to: &mut OpenPort,
        buffer: &mut [u8],
        now: Instant,
    ) -> Result<(), Failure> {
        for _ in 0..BATCH_FRAMES {
            let read = from.read(buffer, now).map_err(read_failed)?;
            let Some((len, offload)) = read else {
                break;
            };
            let is_frame = (EthernetHeader::LEN..BUFFER_BYTES).contains(&len);
            let Some(frame) = buffer.get_mut(..len).filter(|_| is_frame) else {
                self.unfit += 1;
                continue;
            };
            if let Some(gso) = offload.gso {
                if !self.pass_whole(frame, gso, offload.checksum, to, now) {
                    self.take_in_super(frame, gso, now);
                }
                continue;
            }
            if matches!(offload.checksum, ChecksumState::Partial(_)) {
                complete_checksum(frame);
            }
            self.conditioner.push(frame, now);
        }
        Ok(())
    }

    /// Writes a super-packet to the receiving end as it is, behind all frames before it. Returns whether it has: the cable is perfect, no
    /// frame waits, and the receiving end takes super-packets of this length.
    fn pass_whole(
        &mut self,
        frame: &[u8],
        gso: Gso,
        checksum: ChecksumState,
        to: &mut OpenPort,
        now: Instant,
    ) -> bool {
        let is_partial = matches!(checksum, ChecksumState::Partial(_));
        if !self.conditioner.impairment().is_none() || !is_partial {
            return false;
        }
        let Some((head_len, offload)) = whole_offload(frame, gso, to) else {
            return false;
        };
        if !self.waits {
            self.let_out(to, now);
        }
        let is_next = !self.waits && self.conditioner.is_empty();
        // An interface refuses a long one for which it finds no memory.
        if !is_next || to.write(frame, head_len, offload) != Written::Done {
            return false;
        }
        self.whole += 1;
        self.longest = self.longest.max(frame.len());
        true
    }

    /// Segments a super-packet, and applies the impairment to each segment.
    fn take_in_super(&mut self, frame: &[u8], gso: Gso, now: Instant) {
        let conditioner = &mut self.conditioner;
        let cut = self
            .cutter
            .cut(frame, gso.size, |segment| conditioner.push(segment, now));
        self.unfit += u64::from(cut.is_err());
    }

    /// Writes the frames that are due to the receiving end, first a frame that had to wait for room.
    fn let_out(&mut self, to: &mut OpenPort, now: Instant) {
        while self.waits || self.conditioner.pop(now, &mut self.outgoing) {
            self.waits = false;
            match to.write(&self.outgoing, 0, Offload::default()) {
                Written::Done => {}
                Written::Full => {
                    self.waits = true;
                    return;
                }
                // The driver also refuses some frames that the impairment has corrupted.
                Written::Lost => self.refused += 1,
            }
        }
    }

    fn report(&self) -> LaneReport {
        let lane = Counted::from(self.conditioner.stats());
        LaneReport {
            lane: Counted {
                offered: lane.offered + self.whole,
                delivered: lane.delivered - self.refused - u64::from(self.waits) + self.whole,
                ..lane
            },
            refused: self.refused + self.unfit,
            super_packets: self.whole,
            longest_super: self.longest,
        }
    }
}

/// Returns the length of the headers of a super-packet of TCP, and how the receiver cuts it; `None` if the end `to` does not take it
/// whole.
fn whole_offload(frame: &[u8], gso: Gso, to: &OpenPort) -> Option<(usize, Offload)> {
    let limits = to.super_packets()?;
    let headers = RxHeaders::parse(frame, frame.len()).ok()?;
    headers.tcp()?;
    let kind = match headers.network {
        Network::Ipv4(_) => GsoKind::Tcp4,
        Network::Ipv6(_) => GsoKind::Tcp6,
        Network::Arp | Network::Other => return None,
    };
    let ethernet = headers.ethernet.header_len();
    let segment_headers = segment_headers_len(frame.get(..headers.header_len)?);
    let segment = (segment_headers + usize::from(gso.size.get())).checked_sub(ethernet)?;
    // Bytes behind the packet would become payload.
    let is_exact = headers.header_len + headers.payload_len == frame.len();
    let fits = frame.len() - ethernet <= limits.longest && segment <= limits.mtu;
    let offload = Offload {
        checksum: headers.tx_checksum().into(),
        gso: Some(Gso { kind, ..gso }),
    };
    (is_exact && fits).then_some((headers.header_len, offload))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::num::NonZeroU16;

    use gve::GsoKind;
    use wire::{
        EtherType, EthernetHeader, IpRepr, MacAddr, RxHeaders, TcpFlags, TcpHeader, TcpOptions,
        emit_tcp_frame_headers, fill_checksum,
    };

    use super::*;

    const GSO: Gso = Gso {
        kind: GsoKind::Tcp4,
        size: NonZeroU16::new(1000).unwrap(),
    };

    /// A super-packet of 2,500 bytes; its sequence numbers start at 7.
    fn super_packet() -> Vec<u8> {
        let ethernet = EthernetHeader {
            dst: MacAddr([2, 0, 0, 0, 0, 2]),
            src: MacAddr([2, 0, 0, 0, 0, 1]),
            ethertype: EtherType::IPV4,
            vlan: None,
        };
        let (a, b) = (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2));
        let ip = IpRepr::new(a.into(), b.into()).unwrap();
        let tcp = TcpHeader {
            src_port: 1,
            dst_port: 2,
            seq: 7,
            ack: 0,
            flags: TcpFlags::ACK | TcpFlags::PSH,
            window: 100,
            urgent: 0,
            options: TcpOptions::default(),
            header_len: TcpHeader::LEN,
        };
        let mut frame = vec![0; 128];
        let len = emit_tcp_frame_headers(&ethernet, &ip, &tcp, 2500, &mut frame);
        frame.truncate(len);
        frame.resize(len + 2500, 0xa5);
        frame
    }

    #[test]
    fn each_segment_of_a_super_packet_is_a_separate_frame() {
        let mut lane = CableLane::new("none".parse().unwrap());
        lane.take_in_super(&super_packet(), GSO, Instant::ZERO);
        let mut frame = Vec::new();
        for (seq, len) in [(7, 1000), (1007, 1000), (2007, 500)] {
            assert!(lane.conditioner.pop(Instant::ZERO, &mut frame));
            let headers = RxHeaders::parse(&frame, frame.len()).unwrap();
            assert_eq!(
                (headers.tcp().unwrap().seq, headers.payload_len),
                (seq, len)
            );
            let sent = frame.clone();
            let what = headers.tx_checksum().unwrap();
            let field = usize::from(what.start + what.offset);
            let pseudo = headers.pseudo_header(frame.len() - usize::from(what.start));
            frame[field..field + 2].copy_from_slice(&pseudo.unwrap().partial().to_be_bytes());
            fill_checksum(&mut frame, 0, what);
            assert_eq!(frame, sent, "the checksum is the segment's");
        }
        assert!(lane.conditioner.is_empty());
    }

    #[test]
    fn a_malformed_super_packet_is_dropped_and_counted() {
        let mut lane = CableLane::new("none".parse().unwrap());
        let frame = super_packet();
        for frame in [&frame[..0], &frame[..30], &frame[..54], &[0; 2000]] {
            lane.take_in_super(frame, GSO, Instant::ZERO);
        }
        assert_eq!((lane.report().refused, lane.conditioner.len()), (4, 0));
    }
}
