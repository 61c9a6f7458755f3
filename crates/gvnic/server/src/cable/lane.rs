//! One direction of a cable.
//!
//! A perfect cable takes a frame only when the one before it was passed on: what finds no room waits in the sockets of the ends, and
//! super-packets stay whole. An impaired one takes all frames, cuts super-packets, and conditions each segment.

use nic::{BIG_PACKET_LEN, Conditioner, FrameCutter, Impairment, Written, complete_checksum};
use wire::{EthernetHeader, Instant, Network, RxHeaders, segment_headers_len};

use gve::{ChecksumState, Gso, GsoKind, Offload};

use super::report::LaneReport;
use crate::nic::{OpenPort, read_failed};
use tool::counters::Lane as Counted;
use tool::output::Failure;

/// Maximum number of frames read from one end before the other end is read.
const BATCH_FRAMES: usize = 64;

/// Length of a buffer for any frame, plus one byte to detect longer ones.
pub const BUFFER_BYTES: usize = BIG_PACKET_LEN + EthernetHeader::TAGGED_LEN + 1;

/// One direction.
#[derive(Debug)]
pub struct CableLane {
    /// Frames pass unchanged and at once.
    is_perfect: bool,
    conditioner: Conditioner,
    cutter: FrameCutter,
    /// The last frame to be passed on.
    outgoing: Vec<u8>,
    /// The receiving end had no room for `outgoing`.
    waiting: Option<Waiting>,
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

/// A frame that waits for room.
#[derive(Clone, Copy, Debug)]
enum Waiting {
    /// A frame from the conditioner.
    Single,
    /// A super-packet that the receiving end takes whole.
    Whole(Whole),
}

/// How a super-packet of TCP is passed on whole.
#[derive(Clone, Copy, Debug)]
struct Whole {
    /// Length of its headers.
    head_len: usize,
    checksum: ChecksumState,
    gso: Gso,
}

impl CableLane {
    /// Returns a lane without frames.
    pub fn new(impairment: Impairment) -> Self {
        Self {
            is_perfect: impairment.is_none(),
            conditioner: Conditioner::new(impairment),
            cutter: FrameCutter::default(),
            outgoing: Vec::new(),
            waiting: None,
            refused: 0,
            unfit: 0,
            whole: 0,
            longest: 0,
        }
    }

    /// Returns whether a frame waits for room at the receiving end.
    pub fn awaits_room(&self) -> bool {
        self.waiting.is_some()
    }

    /// Returns whether the lane takes frames of the sending end now.
    pub fn takes_frames(&self) -> bool {
        !self.is_perfect || self.waiting.is_none() && self.conditioner.is_empty()
    }

    /// Returns when a frame is due that does not wait for room.
    pub fn next_due(&self) -> Option<Instant> {
        match self.waiting {
            None => self.conditioner.next_due(),
            Some(_) => None,
        }
    }

    /// Takes the frames of the sending end, as far as the lane takes any.
    pub fn take_in(
        &mut self,
        from: &mut OpenPort,
        to: &mut OpenPort,
        buffer: &mut [u8],
        now: Instant,
    ) -> Result<(), Failure> {
        for _ in 0..BATCH_FRAMES {
            if !self.takes_frames() {
                break;
            }
            let read = from.read(buffer, now).map_err(read_failed)?;
            let Some((len, offload)) = read else {
                break;
            };
            let is_frame = (EthernetHeader::LEN..BUFFER_BYTES).contains(&len);
            match buffer.get_mut(..len).filter(|_| is_frame) {
                Some(frame) => self.take(frame, offload, to, now),
                None => self.unfit += 1,
            }
        }
        Ok(())
    }

    fn take(&mut self, frame: &mut [u8], offload: Offload, to: &mut OpenPort, now: Instant) {
        match offload.gso {
            Some(gso) if self.pass_whole(frame, gso, offload.checksum, to) => {}
            Some(gso) => {
                self.take_in_super(frame, gso, |lane, segment| {
                    lane.take_single(segment, to, now)
                });
            }
            None => {
                if matches!(offload.checksum, ChecksumState::Partial(_)) {
                    complete_checksum(frame);
                }
                self.take_single(frame, to, now);
            }
        }
    }

    /// Takes in a single frame, and lets out what is due: a frame that leaves at once is not in the queue when the next one comes, which
    /// may have been read together with it.
    fn take_single(&mut self, frame: &[u8], to: &mut OpenPort, now: Instant) {
        self.conditioner.push(frame, now);
        if !self.awaits_room() {
            self.let_out(to, now);
        }
    }

    /// Passes a super-packet on to the receiving end as it is, or keeps it until there is room. Returns whether it does: the cable is
    /// perfect, so that no frame is before this one, and the receiving end takes such super-packets.
    fn pass_whole(
        &mut self,
        frame: &[u8],
        gso: Gso,
        checksum: ChecksumState,
        to: &mut OpenPort,
    ) -> bool {
        let is_partial = matches!(checksum, ChecksumState::Partial(_));
        if !self.is_perfect || !is_partial {
            return false;
        }
        let Some(whole) = Whole::of(frame, gso, to) else {
            return false;
        };
        match to.write(frame, whole.head_len, whole.offload()) {
            Written::Done => self.count_whole(frame.len()),
            Written::Full => {
                self.outgoing.clear();
                self.outgoing.extend_from_slice(frame);
                self.waiting = Some(Waiting::Whole(whole));
            }
            // An interface refuses a long one for which it finds no memory.
            Written::Lost => return false,
        }
        true
    }

    fn count_whole(&mut self, bytes: usize) {
        self.whole += 1;
        self.longest = self.longest.max(bytes);
    }

    /// Segments a super-packet, and hands each segment to `take`.
    fn take_in_super(&mut self, frame: &[u8], gso: Gso, mut take: impl FnMut(&mut Self, &[u8])) {
        let mut cutter = std::mem::take(&mut self.cutter);
        let cut = cutter.cut(frame, gso.size, |segment| take(self, segment));
        self.cutter = cutter;
        self.unfit += u64::from(cut.is_err());
    }

    /// Writes the frames that are due to the receiving end, first a frame that had to wait for room.
    pub fn let_out(&mut self, to: &mut OpenPort, now: Instant) {
        loop {
            let next = match self.waiting.take() {
                None if self.conditioner.pop(now, &mut self.outgoing) => Waiting::Single,
                None => return,
                Some(waiting) => waiting,
            };
            let (head_len, offload) = match next {
                Waiting::Single => (0, Offload::default()),
                Waiting::Whole(whole) => (whole.head_len, whole.offload()),
            };
            match (to.write(&self.outgoing, head_len, offload), next) {
                (Written::Full, _) => {
                    self.waiting = Some(next);
                    return;
                }
                (Written::Done, Waiting::Single) => {}
                (Written::Done, Waiting::Whole(_)) => self.count_whole(self.outgoing.len()),
                // The driver also refuses some frames that the impairment has corrupted.
                (Written::Lost, Waiting::Single) => self.refused += 1,
                (Written::Lost, Waiting::Whole(whole)) => {
                    let frame = std::mem::take(&mut self.outgoing);
                    self.take_in_super(&frame, whole.gso, |lane, segment| {
                        lane.conditioner.push(segment, now);
                    });
                    self.outgoing = frame;
                }
            }
        }
    }

    /// Returns the counters.
    pub fn report(&self) -> LaneReport {
        let lane = Counted::from(self.conditioner.stats());
        let (single, whole) = match self.waiting {
            None => (0, 0),
            Some(Waiting::Single) => (1, 0),
            Some(Waiting::Whole(_)) => (0, 1),
        };
        LaneReport {
            lane: Counted {
                offered: lane.offered + self.whole + whole,
                delivered: lane.delivered - self.refused - single + self.whole,
                ..lane
            },
            refused: self.refused + self.unfit,
            super_packets: self.whole,
            longest_super: self.longest,
        }
    }
}

impl Whole {
    /// Returns how the end `to` takes a super-packet; `None` if it does not take this one whole.
    fn of(frame: &[u8], gso: Gso, to: &OpenPort) -> Option<Self> {
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
        (is_exact && fits).then_some(Self {
            head_len: headers.header_len,
            checksum: headers.tx_checksum().into(),
            gso: Gso { kind, ..gso },
        })
    }

    fn offload(self) -> Offload {
        Offload {
            checksum: self.checksum,
            gso: Some(self.gso),
        }
    }
}

#[cfg(test)]
pub mod tests {
    use std::net::Ipv4Addr;
    use std::num::NonZeroU16;

    use gve::GsoKind;
    use wire::{
        EtherType, EthernetHeader, IpRepr, MacAddr, RxHeaders, TcpFlags, TcpHeader, TcpOptions,
        emit_tcp_frame_headers, fill_checksum,
    };

    use super::*;

    /// Segments of 1,000 bytes.
    pub const GSO: Gso = Gso {
        kind: GsoKind::Tcp4,
        size: NonZeroU16::new(1000).unwrap(),
    };

    /// A super-packet of 2,500 bytes; its sequence numbers start at 7.
    fn super_packet() -> Vec<u8> {
        super_packet_of(7, 2500)
    }

    /// A super-packet of `bytes` bytes; its sequence numbers start at `seq`.
    pub fn super_packet_of(seq: u32, bytes: usize) -> Vec<u8> {
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
            seq,
            ack: 0,
            flags: TcpFlags::ACK | TcpFlags::PSH,
            window: 100,
            urgent: 0,
            options: TcpOptions::default(),
            header_len: TcpHeader::LEN,
        };
        let mut frame = vec![0; 128];
        let len = emit_tcp_frame_headers(&ethernet, &ip, &tcp, bytes, &mut frame);
        frame.truncate(len);
        frame.resize(len + bytes, 0xa5);
        frame
    }

    fn take_in(lane: &mut CableLane, frame: &[u8]) {
        lane.take_in_super(frame, GSO, |lane, segment| {
            lane.conditioner.push(segment, Instant::ZERO);
        });
    }

    #[test]
    fn each_segment_of_a_super_packet_is_a_separate_frame() {
        let mut lane = CableLane::new("none".parse().unwrap());
        take_in(&mut lane, &super_packet());
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
            take_in(&mut lane, frame);
        }
        assert_eq!((lane.report().refused, lane.conditioner.len()), (4, 0));
    }
}
