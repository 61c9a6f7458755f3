//! The receiving half of a connection: what is accepted, in what order it is delivered, what the
//! peer is told.

use netmem::Payload;
use wire::{Ecn, Instant, SackBlocks, TcpOptions, Timestamps};

use crate::ack_policy::{AckPolicy, Arrival};
use crate::config::{ConnectionConfig, EcnMode};
use crate::ecn::Echo;
use crate::options::{Negotiated, TsRecent};
use crate::reassembly::{Reassembly, SeqRange};
use crate::recv_queue::RecvQueue;
use crate::segment::{Control, Segment};
use crate::seqnum::SeqNum;
use crate::state::SegmentDrop;
use crate::window::RecvWindow;

/// Host memory that one segment costs beside its payload, roughly: a peer that sends single bytes
/// may make us keep one segment per so many bytes of `Config::rcv_buf_max` (linux charges an skb's
/// truesize, at least 768).
const SEGMENT_CHARGE: usize = 512;

/// Bounds of the number of segments that one connection keeps, in order and out of order each.
const MAX_SEGMENTS: core::ops::RangeInclusive<usize> = 1024..=65_536;

/// RCV.NXT, RCV.WND and all that arrived.
#[derive(Debug)]
pub(crate) struct Receiver<P> {
    rcv_nxt: SeqNum,
    /// RCV.NXT as the last ACK told it (Last.ACK.sent of RFC 7323, `rcv_wup` in linux).
    last_ack_sent: SeqNum,
    window: RecvWindow,
    reassembly: Reassembly<P>,
    max_segments: usize,
    kept: KeptPayload,
    /// The number of the peer's FIN, once one was seen, in order or not.
    fin: Option<SeqNum>,
    fin_received: bool,
    /// What arrived twice, until it was told once (RFC 2883 4).
    dsack: Option<SeqRange>,
    dsacks_out: u64,
    sack: bool,
    /// TS.Recent; `None` if timestamps were not negotiated.
    ts_recent: Option<TsRecent>,
    ack: AckPolicy,
    echo: Echo,
}

/// How a segment lies to the receive window (RFC 9293 3.10.7.4, first check).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placement {
    /// Inside, or so close that its ACK counts.
    Acceptable,
    /// All of it was acknowledged before.
    Old,
    /// Beyond what was ever promised.
    Beyond,
}

/// Which payload a receiver keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum KeptPayload {
    /// Whatever the window allows.
    #[default]
    All,
    /// Only what is next in order: memory is short.
    InOrder,
}

/// What accepting a segment's payload did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Accepted {
    /// Bytes that became readable.
    pub(crate) delivered: usize,
    /// The peer's FIN became the next number and was consumed.
    pub(crate) fin: bool,
    /// Why something was not kept.
    pub(crate) drop: Option<SegmentDrop>,
}

/// Where a receiver starts.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReceiverStart {
    /// The number after the peer's SYN.
    pub(crate) rcv_nxt: SeqNum,
    /// What our SYN promised.
    pub(crate) right_edge: SeqNum,
    /// Bytes that may lie beyond RCV.NXT.
    pub(crate) space: u32,
    pub(crate) ts_recent: Option<TsRecent>,
}

impl<P: Payload> Receiver<P> {
    pub(crate) fn new(
        config: &ConnectionConfig,
        negotiated: &Negotiated,
        start: ReceiverStart,
    ) -> Receiver<P> {
        let ReceiverStart {
            rcv_nxt,
            right_edge,
            space,
            ts_recent,
        } = start;
        let max_segments = config.options.rcv_buf_max as usize / SEGMENT_CHARGE;
        let max_segments = max_segments.clamp(*MAX_SEGMENTS.start(), *MAX_SEGMENTS.end());
        Receiver {
            rcv_nxt,
            last_ack_sent: rcv_nxt,
            window: RecvWindow::new(
                rcv_nxt,
                right_edge,
                space,
                config.mss(),
                negotiated.rcv_wscale,
            ),
            reassembly: Reassembly::new(max_segments),
            max_segments,
            kept: KeptPayload::All,
            fin: None,
            fin_received: false,
            dsack: None,
            dsacks_out: 0,
            sack: negotiated.sack,
            ts_recent,
            ack: AckPolicy::new(config),
            echo: Echo::new(negotiated.ecn == EcnMode::Classic),
        }
    }

    pub(crate) fn rcv_nxt(&self) -> SeqNum {
        self.rcv_nxt
    }

    pub(crate) fn window(&self) -> &RecvWindow {
        &self.window
    }

    pub(crate) fn is_ack_pending(&self) -> bool {
        self.ack.is_pending()
    }

    pub(crate) fn is_ack_due(&self, now: Instant) -> bool {
        self.ack.is_due(now)
    }

    pub(crate) fn next_timer(&self) -> Option<Instant> {
        self.ack.next_timer()
    }

    /// Wants an ACK at once.
    pub(crate) fn request_ack(&mut self) {
        self.ack.request();
    }

    /// The link is empty: acknowledges what is not acknowledged yet.
    pub(crate) fn on_drained(&mut self) {
        self.ack.on_drained();
    }

    /// Data of ours leaves: what arrived before was perhaps a question.
    pub(crate) fn on_data_sent(&mut self, now: Instant) {
        self.ack.on_data_sent(now);
    }

    /// The user has read all there was.
    pub(crate) fn on_read(&mut self) {
        self.ack.on_read();
    }

    /// Switches quick ACKs on or off.
    pub(crate) fn set_quick_acks(&mut self, quick: bool) {
        self.ack.set_quick(quick);
    }

    /// Returns what is known of marks.
    pub(crate) fn echo(&self) -> Echo {
        self.echo
    }

    pub(crate) fn dsacks_out(&self) -> u64 {
        self.dsacks_out
    }

    pub(crate) fn ts_recent(&self) -> Option<TsRecent> {
        self.ts_recent
    }

    pub(crate) fn rcv_mss(&self) -> u16 {
        self.ack.rcv_mss()
    }

    /// Returns the number of bytes held out of order.
    pub(crate) fn out_of_order(&self) -> usize {
        self.reassembly.len()
    }

    /// Sets which payload is kept from now on.
    pub(crate) fn set_kept_payload(&mut self, kept: KeptPayload) {
        self.kept = kept;
    }

    /// Gives up the payload with the highest numbers that is held out of order.
    ///
    /// The peer may have been told of it: SACK is advice, and a receiver may take it back (RFC 2018 8).
    /// Nothing in order is touched, so no byte is lost that an ACK has covered, and no later SACK block
    /// names what is given up.
    pub(crate) fn prune(&mut self) -> Option<P> {
        let payload = self.reassembly.pop_last()?;
        let held_to = self.reassembly.last_end().unwrap_or(self.rcv_nxt);
        // A first block beyond the ACK that no second one covers is a report of new data (RFC 2883 4).
        self.dsack = self.dsack.filter(|(_, to)| to.before_eq(held_to));
        Some(payload)
    }

    /// Returns the payloads held out of order.
    pub(crate) fn held(&self) -> impl Iterator<Item = &P> + '_ {
        self.reassembly.payloads()
    }

    /// Returns the payloads held out of order, to be moved to other memory.
    pub(crate) fn held_mut(&mut self) -> impl Iterator<Item = &mut P> + '_ {
        self.reassembly.payloads_mut()
    }

    /// The next payload in order found no memory: the peer is told that there is no window, although
    /// one was promised (RFC 9293 3.8.6 has senders cope with that; linux `ICSK_ACK_NOMEM`). It asks
    /// from time to time instead of giving up.
    pub(crate) fn on_unplaced(&mut self, seq: SeqNum) {
        if seq.before_eq(self.rcv_nxt) {
            self.window.withdraw();
        }
        self.ack.request();
    }

    /// There is memory again: the peer is told what it was promised.
    pub(crate) fn restore_window(&mut self) {
        if self.window.restore() {
            self.ack.request();
        }
    }

    /// Returns how many SACK blocks fit beside the options of every segment.
    pub(crate) fn max_sack_blocks(&self) -> usize {
        // 40 bytes of options; SACK takes 2 + 8n, aligned by two NOPs (RFC 2018 3).
        SackBlocks::CAPACITY - usize::from(self.ts_recent.is_some())
    }

    /// Returns whether there is something for a SACK option to say.
    pub(crate) fn has_sack(&self) -> bool {
        self.sack && (self.dsack.is_some() || !self.reassembly.is_empty())
    }

    /// Returns where the D-SACK begins that the next ACK tells.
    pub(crate) fn pending_dsack(&self) -> Option<SeqNum> {
        self.dsack.map(|(from, _)| from)
    }

    /// Returns what the peer may still send into memory: promised, and neither received in order
    /// nor held.
    pub(crate) fn outstanding(&self) -> u32 {
        let promised = self.window.promised(self.rcv_nxt);
        promised.saturating_sub(u32::try_from(self.reassembly.len()).unwrap_or(u32::MAX))
    }

    /// Returns whether the peer sees no window, or has used all of it out of order.
    pub(crate) fn is_shut(&self) -> bool {
        self.window.field(self.rcv_nxt) == 0 || self.outstanding() == 0
    }

    /// Sets how many bytes may lie beyond RCV.NXT and wants an ACK if the peer should hear of it.
    pub(crate) fn set_space(&mut self, bytes: u32, queue: &RecvQueue<P>) {
        self.window.set_space(self.rcv_nxt, bytes);
        if !self.fin_received
            && queue.segments() < self.max_segments
            && self.window.is_update_due(self.rcv_nxt)
        {
            self.ack.request();
        }
    }

    /// Places a segment of `[seq, end)`.
    ///
    /// Three steps wider than RFC 9293, all as in linux `tcp_sequence`: what was in order when the
    /// last ACK left still counts for its ACK field; a segment may start right at the edge, as the
    /// ACKs of a peer that used its window up do; and so does a probe of a closed window.
    pub(crate) fn place(&self, seq: SeqNum, end: SeqNum) -> Placement {
        if end.before(self.last_ack_sent) {
            Placement::Old
        } else if seq.after(self.window.right_edge()) {
            Placement::Beyond
        } else {
            Placement::Acceptable
        }
    }

    /// Notes that `[seq, end)` arrived again, for a D-SACK. There is room for one: the first waits
    /// until it is told.
    pub(crate) fn note_duplicate(&mut self, seq: SeqNum, end: SeqNum) {
        if self.sack && self.dsack.is_none() && seq.before(end) {
            self.dsack = Some((seq, end));
        }
    }

    /// Takes over the timestamp of an acceptable segment (RFC 7323 4.3 (2)).
    pub(crate) fn note_timestamp(
        &mut self,
        seq: SeqNum,
        timestamps: Option<Timestamps>,
        now: Instant,
    ) {
        if let (Some(recent), Some(ts)) = (&mut self.ts_recent, timestamps)
            && seq.before_eq(self.last_ack_sent)
            && !recent.rejects(ts.value, now)
        {
            recent.update(ts.value, now);
        }
    }

    /// Takes payload and FIN of an acceptable segment and delivers into `queue` what is in order
    /// now.
    pub(crate) fn accept(
        &mut self,
        mut segment: Segment<P>,
        queue: &mut RecvQueue<P>,
        now: Instant,
    ) -> Accepted {
        if segment.seq_len() == 0 {
            return Accepted::default();
        }
        if self.fin_received {
            let is_old = segment.end().before_eq(self.rcv_nxt);
            let reason = match is_old {
                true => SegmentDrop::Duplicate,
                false => SegmentDrop::AfterFin,
            };
            return self.refuse(&segment, reason);
        }
        if segment.cwr {
            // The sender's window may be down to a packet: it waits for this ACK.
            self.echo.on_cwr();
            self.ack.request();
        }
        self.take_fin(&mut segment);
        let mut accepted = Accepted::default();
        if !segment.payload.is_empty() {
            accepted = self.accept_payload(segment, queue, now);
        } else if self.fin != Some(self.rcv_nxt) {
            self.ack.on_arrival(Arrival::Notable, 0, now);
        }
        if self.fin == Some(self.rcv_nxt) {
            self.finish(queue, now);
            accepted.fin = true;
        }
        accepted
    }

    /// Notes where the FIN stands and takes it off the segment. It needs no memory, so it is
    /// welcome right at the edge of a closed window (linux `tcp_data_queue`). The first FIN seen
    /// counts, and bytes beyond it do not; a FIN before bytes that we hold is a lie and does not
    /// count.
    fn take_fin(&mut self, segment: &mut Segment<P>) {
        if segment.control == Control::Fin {
            segment.control = Control::None;
            let at = segment.end();
            let held_to = self.reassembly.last_end().unwrap_or(self.rcv_nxt);
            if self.fin.is_none() && at.after_eq(held_to) && at.before_eq(self.window.right_edge())
            {
                self.fin = Some(at);
            }
        }
    }

    fn accept_payload(
        &mut self,
        mut segment: Segment<P>,
        queue: &mut RecvQueue<P>,
        now: Instant,
    ) -> Accepted {
        let (seq, end) = (segment.seq, segment.end());
        // A FIN is only noted before the right edge.
        let edge = self.fin.unwrap_or(self.window.right_edge());
        if seq.before(self.rcv_nxt) {
            self.note_duplicate(seq, end.earliest(self.rcv_nxt));
        }
        if !segment.trim_to_window(self.rcv_nxt, edge) {
            let drop = match self.fin {
                _ if end.before_eq(self.rcv_nxt) => SegmentDrop::Duplicate,
                Some(_) => SegmentDrop::AfterFin,
                None => SegmentDrop::NoSpace,
            };
            self.ack.request();
            return Accepted {
                drop: Some(drop),
                ..Accepted::default()
            };
        }
        if segment.seq != self.rcv_nxt {
            return self.accept_out_of_order(segment, now);
        }
        if queue.segments() >= self.max_segments {
            return self.refuse(&segment, SegmentDrop::TooManySegments);
        }
        let undisturbed = self.reassembly.is_empty() && seq == self.rcv_nxt;
        let arrival = match undisturbed {
            true => Arrival::InOrder {
                len: segment.payload.len(),
                push: segment.push,
            },
            // The gap is filled, or part of it: RFC 5681 4.2.
            false => Arrival::Notable,
        };
        let delivered = self.deliver(segment.payload, queue);
        self.ack
            .on_arrival(arrival, self.window.promised(self.rcv_nxt), now);
        self.note_mark(segment.ecn);
        Accepted {
            delivered,
            ..Accepted::default()
        }
    }

    /// Delivers payload that starts at RCV.NXT, and what it makes ready. Where it overlaps what is
    /// held, the held bytes came first and stay.
    fn deliver(&mut self, mut payload: P, queue: &mut RecvQueue<P>) -> usize {
        let start = self.rcv_nxt;
        if self.reassembly.is_empty() {
            self.rcv_nxt += payload.len();
            queue.push(payload);
            return self.rcv_nxt.bytes_since(start);
        }
        loop {
            let gap = self
                .reassembly
                .first_start()
                .map_or(payload.len(), |held| held.bytes_since(self.rcv_nxt));
            let piece = if gap >= payload.len() {
                core::mem::take(&mut payload)
            } else {
                payload.split_off_front(gap)
            };
            self.rcv_nxt += piece.len();
            queue.push(piece);
            let held_from = self.rcv_nxt;
            for ready in self.reassembly.pop_ready(self.rcv_nxt) {
                self.rcv_nxt += ready.len();
                queue.push(ready);
            }
            let overlap = self.rcv_nxt.bytes_since(held_from).min(payload.len());
            self.note_duplicate(held_from, held_from + overlap);
            payload.trim_front(overlap);
            if payload.is_empty() {
                return self.rcv_nxt.bytes_since(start);
            }
        }
    }

    fn accept_out_of_order(&mut self, segment: Segment<P>, now: Instant) -> Accepted {
        self.ack.on_arrival(Arrival::Notable, 0, now);
        self.note_mark(segment.ecn);
        if self.kept == KeptPayload::InOrder {
            return Accepted {
                drop: Some(SegmentDrop::OfoNoMemory),
                ..Accepted::default()
            };
        }
        let drop = match self.reassembly.insert(segment.seq, segment.payload) {
            Ok(inserted) => {
                if let Some((from, to)) = inserted.duplicate {
                    self.note_duplicate(from, to);
                }
                (!inserted.stored).then_some(SegmentDrop::Duplicate)
            }
            Err(_full) => Some(SegmentDrop::ReassemblyFull),
        };
        Accepted {
            drop,
            ..Accepted::default()
        }
    }

    fn note_mark(&mut self, ecn: Ecn) {
        let haste = self.echo.on_data(ecn);
        self.ack.on_mark(haste);
    }

    fn refuse(&mut self, segment: &Segment<P>, drop: SegmentDrop) -> Accepted {
        if segment.end().before_eq(self.rcv_nxt) {
            self.note_duplicate(segment.seq, segment.end());
        }
        self.ack.request();
        Accepted {
            drop: Some(drop),
            ..Accepted::default()
        }
    }

    /// Consumes the FIN. What a confused peer sent beyond it is forgotten.
    fn finish(&mut self, queue: &mut RecvQueue<P>, now: Instant) {
        self.rcv_nxt += 1;
        self.fin_received = true;
        self.reassembly.clear();
        // Nothing will be sent again that a report could spare (linux `tcp_fin`).
        self.dsack = None;
        queue.set_eof();
        self.ack.on_arrival(Arrival::Fin, 0, now);
    }

    /// Returns ACK number, window field and options of a segment that leaves now; the ACK counts as
    /// sent.
    pub(crate) fn announce(
        &mut self,
        queue: &RecvQueue<P>,
        at: AnnouncedAt,
        blocks: usize,
    ) -> Announcement {
        let AnnouncedAt { now, ts_value } = at;
        // A reader far behind in segments, if not in bytes, stops the edge.
        let window = match queue.segments() < self.max_segments {
            true => self.window.advertise(self.rcv_nxt),
            false => self.window.field(self.rcv_nxt),
        };
        let mut sack = SackBlocks::default();
        if self.sack && blocks > 0 {
            self.fill_sack(&mut sack, blocks);
        }
        self.last_ack_sent = self.rcv_nxt;
        self.ack.on_sent(now);
        let timestamps = self.ts_recent.map(|recent| Timestamps {
            value: ts_value,
            echo: recent.value(),
        });
        Announcement {
            ack: self.rcv_nxt,
            ece: self.echo.is_due(),
            window,
            options: TcpOptions {
                timestamps,
                sack,
                ..TcpOptions::default()
            },
        }
    }

    /// Writes the D-SACK, once, and then the ranges held, the latest first (RFC 2018 4, RFC 2883
    /// 4).
    fn fill_sack(&mut self, sack: &mut SackBlocks, blocks: usize) {
        let dsack = self.dsack.take();
        self.dsacks_out += u64::from(dsack.is_some());
        // A FIN behind a range is held too.
        let with_fin =
            |(from, to): SeqRange| (from, if self.fin == Some(to) { to + 1 } else { to });
        let ranges = dsack
            .into_iter()
            .chain(self.reassembly.sack_ranges().map(with_fin));
        for (from, to) in ranges.take(blocks) {
            sack.push(from.0, to.0);
        }
    }
}

/// The time at which a segment leaves, and what our timestamp clock shows then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AnnouncedAt {
    pub(crate) now: Instant,
    pub(crate) ts_value: u32,
}

/// What a segment says about this half of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Announcement {
    pub(crate) ack: SeqNum,
    /// A mark is to be echoed.
    pub(crate) ece: bool,
    /// The window field, scaled down.
    pub(crate) window: u16,
    pub(crate) options: TcpOptions,
}
