//! The receiving half of a connection: which payload is accepted, its order, and the fields of ACKs.

use netmem::Payload;
use wire::{Ecn, Instant, SackBlocks, TcpOptions, Timestamps};

use crate::ack_policy::{AckPolicy, Arrival};
use crate::context::Context;
use crate::ecn::echo::{EarlierAck, Echo};
use crate::options::{Negotiated, TimestampClock, TsRecent, ack_options};
use crate::reassembly::{Reassembly, SeqRange};
use crate::recv_queue::RecvQueue;
use crate::segment::{Control, Segment};
use crate::segment_drop::SegmentDrop;
use crate::seqnum::SeqNum;
use crate::window::RecvWindow;

/// Bytes of receive buffer for each segment that may be kept, however short: about the host memory of a segment beside its
/// payload (linux charges an skb's truesize, at least 768).
const SEGMENT_CHARGE: usize = 512;

/// Bounds of the number of segments that one connection keeps, in order and out of order each.
const MAX_SEGMENTS: core::ops::RangeInclusive<usize> = 1024..=65_536;

/// The receiving half of a connection: RCV.NXT, RCV.WND, and payload out of order.
#[derive(Debug)]
pub(crate) struct Receiver<P> {
    rcv_nxt: SeqNum,
    /// RCV.NXT of the last ACK that was sent (Last.ACK.sent of RFC 7323, `rcv_wup` in linux).
    last_ack_sent: SeqNum,
    window: RecvWindow,
    reassembly: Reassembly<P>,
    max_segments: usize,
    kept: KeptPayload,
    /// [`Tuning::takes_beyond_window`](crate::tuning::Tuning::takes_beyond_window).
    takes_beyond: bool,
    /// Sequence number of the peer's FIN, once it was seen, in order or not.
    fin: Option<SeqNum>,
    fin_received: bool,
    /// The range that arrived twice, until it is reported (RFC 2883 4).
    dsack: Option<SeqRange>,
    dsacks_out: u64,
    sack: bool,
    /// TS.Recent; `None` if timestamps were not negotiated.
    ts_recent: Option<TsRecent>,
    pub(crate) ack: AckPolicy,
    echo: Echo,
}

/// Which arriving payload a receiver keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum KeptPayload {
    /// All payload that the window allows.
    #[default]
    All,
    /// Only payload that is next in order: memory is short.
    InOrder,
}

/// Effects of a segment's payload and FIN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Accepted {
    /// Bytes that became readable.
    pub(crate) delivered: usize,
    /// The peer's FIN was next in order, and was consumed.
    pub(crate) fin: bool,
    /// Reason why a part was not kept.
    pub(crate) drop: Option<SegmentDrop>,
}

impl Accepted {
    fn dropped(reason: SegmentDrop) -> Accepted {
        Accepted {
            drop: Some(reason),
            ..Accepted::default()
        }
    }
}

/// Initial state of a receiver.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReceiverStart {
    /// Sequence number after the peer's SYN.
    pub(crate) rcv_nxt: SeqNum,
    /// Right edge of the window that our SYN promised.
    pub(crate) right_edge: SeqNum,
    /// Bytes that may lie beyond RCV.NXT.
    pub(crate) space: u32,
    pub(crate) ts_recent: Option<TsRecent>,
}

impl ReceiverStart {
    /// Moves the right edge by the `len` bytes that the SYN brought: the SYN-ACK repeats the window behind them. They are in
    /// memory already, which the space does not count.
    pub(crate) fn extend(&mut self, len: usize) {
        self.right_edge += len;
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        self.space = self.space.saturating_add(len);
    }
}

impl<P: Payload> Receiver<P> {
    pub(crate) fn new(
        cx: &Context<'_>,
        negotiated: &Negotiated,
        start: ReceiverStart,
    ) -> Receiver<P> {
        let ReceiverStart {
            rcv_nxt,
            right_edge,
            space,
            ts_recent,
        } = start;
        let max_segments = cx.settings.rcv_buf_max as usize / SEGMENT_CHARGE;
        let max_segments = max_segments.clamp(*MAX_SEGMENTS.start(), *MAX_SEGMENTS.end());
        Receiver {
            rcv_nxt,
            last_ack_sent: rcv_nxt,
            window: RecvWindow::new(
                rcv_nxt,
                right_edge,
                space,
                cx.config.mss(cx.settings),
                negotiated.rcv_wscale,
            ),
            reassembly: Reassembly::new(max_segments),
            max_segments,
            kept: KeptPayload::All,
            takes_beyond: cx.shared().tuning.takes_beyond_window,
            fin: None,
            fin_received: false,
            dsack: None,
            dsacks_out: 0,
            sack: negotiated.sack,
            ts_recent,
            ack: AckPolicy::new(cx),
            echo: Echo::new(negotiated.ecn),
        }
    }

    pub(crate) fn rcv_nxt(&self) -> SeqNum {
        self.rcv_nxt
    }

    pub(crate) fn window(&self) -> &RecvWindow {
        &self.window
    }

    /// Takes the SYN-ACK that opens a connection for which a write waits.
    pub(crate) fn on_awaited_open(&mut self, now: Instant) {
        self.ack.on_awaited_open(self.outstanding(), now);
    }

    /// Returns the state of ECN's echo.
    pub(crate) fn echo(&self) -> Echo {
        self.echo
    }

    /// Returns the ACK that has to leave before the next one, and its window field.
    pub(crate) fn take_earlier_ack(&mut self) -> Option<(EarlierAck, u16)> {
        let earlier = self.echo.take_earlier()?;
        Some((earlier, self.window.field(earlier.ack)))
    }

    pub(crate) fn dsacks_out(&self) -> u64 {
        self.dsacks_out
    }

    pub(crate) fn ts_recent(&self) -> Option<TsRecent> {
        self.ts_recent
    }

    /// Returns the number of bytes held out of order.
    pub(crate) fn out_of_order(&self) -> usize {
        self.reassembly.len()
    }

    /// Sets which arriving payload is kept.
    pub(crate) fn set_kept_payload(&mut self, kept: KeptPayload) {
        self.kept = kept;
    }

    /// Removes the out-of-order payload with the highest sequence numbers.
    ///
    /// SACK may have reported it: a receiver may discard such payload (RFC 2018 8). Payload in order, which is
    /// acknowledged, is never removed, and later SACK blocks do not report the removed bytes.
    pub(crate) fn prune(&mut self) -> Option<P> {
        let payload = self.reassembly.pop_last()?;
        let held_to = self.reassembly.last_end().unwrap_or(self.rcv_nxt);
        // A first block beyond the ACK, without a second block around it, would report new data (RFC 2883 4).
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

    /// Withdraws the window if the payload at `seq` is next in order: there was no memory for it. Senders must handle a
    /// withdrawn promise (RFC 9293 3.8.6; linux `ICSK_ACK_NOMEM`); they probe the window instead of giving up.
    pub(crate) fn on_unplaced(&mut self, seq: SeqNum) {
        if seq.before_eq(self.rcv_nxt) {
            self.window.withdraw();
        }
        self.ack.request();
    }

    /// Ends a withdrawal: there is memory again, and an ACK advertises the promise.
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

    /// Returns whether there is something to report by SACK or D-SACK.
    pub(crate) fn has_sack(&self) -> bool {
        self.sack && (self.dsack.is_some() || !self.reassembly.is_empty())
    }

    /// Returns where the D-SACK of the next ACK begins.
    pub(crate) fn pending_dsack(&self) -> Option<SeqNum> {
        self.dsack.map(|(from, _)| from)
    }

    /// Returns how many bytes the peer may still send: promised, and neither received in order nor held.
    pub(crate) fn outstanding(&self) -> u32 {
        let promised = self.window.promised(self.rcv_nxt);
        promised.saturating_sub(u32::try_from(self.reassembly.len()).unwrap_or(u32::MAX))
    }

    /// Returns whether the peer has no window left, or has used all of it out of order.
    pub(crate) fn is_shut(&self) -> bool {
        self.window.field(self.rcv_nxt) == 0 || self.outstanding() == 0
    }

    /// Sets how many bytes may lie beyond RCV.NXT; an ACK becomes due if the window grows enough for an update.
    pub(crate) fn set_space(&mut self, bytes: u32, queue: &RecvQueue<P>) {
        self.window.set_space(self.rcv_nxt, bytes);
        if !self.fin_received
            && queue.segments() < self.max_segments
            && self.window.is_update_due(self.rcv_nxt)
        {
            self.ack.request();
        }
    }

    /// Checks that a segment of `[seq, end)` lies inside the window, or so close that its ACK field counts (RFC 9293 3.10.7.4, first
    /// check).
    ///
    /// Three cases are acceptable beyond RFC 9293, all as in linux `tcp_sequence`: a segment that was in order when the
    /// last ACK was sent; a segment that starts at the right edge, as ACKs of a peer do that has used its window up;
    /// and a probe of a closed window.
    pub(crate) fn check_position(&self, seq: SeqNum, end: SeqNum) -> Result<(), SegmentDrop> {
        if end.before(self.last_ack_sent) {
            Err(SegmentDrop::Duplicate)
        } else if seq.after(self.window.right_edge()) {
            Err(SegmentDrop::OutOfWindow)
        } else {
            Ok(())
        }
    }

    /// Notes that `[seq, end)` arrived again, for a D-SACK. Only the first such range is kept until it is reported.
    pub(crate) fn note_duplicate(&mut self, seq: SeqNum, end: SeqNum) {
        if self.sack && self.dsack.is_none() && seq.before(end) {
            self.dsack = Some((seq, end));
        }
    }

    /// Stores the timestamp of an acceptable segment (RFC 7323 4.3 (2)).
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

    /// Takes payload and FIN of an acceptable segment, and moves payload that is in order now to `queue`.
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
            // The sender's congestion window may be one packet: it waits for this ACK.
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

    /// Takes the payload of the peer's SYN (RFC 7413). No ACK becomes due: the SYN-ACK acknowledges it.
    pub(crate) fn accept_early(
        &mut self,
        mut segment: Segment<P>,
        queue: &mut RecvQueue<P>,
    ) -> Accepted {
        if segment.payload.is_empty() {
            return Accepted::default();
        }
        if !cut_to_window(&mut segment, self.rcv_nxt, self.window.right_edge()) {
            return Accepted::dropped(SegmentDrop::NoSpace);
        }
        Accepted {
            delivered: self.deliver(segment.payload, queue),
            ..Accepted::default()
        }
    }

    /// Notes the position of a FIN, and removes it from the segment. A FIN needs no memory, so it is accepted at the
    /// edge of a closed window (linux `tcp_data_queue`). Only the first FIN counts, and bytes behind it do not; a FIN
    /// before bytes that are held is ignored as forged.
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
        let takes_whole = self.takes_beyond && seq == self.rcv_nxt && queue.is_empty();
        let is_beyond = takes_whole && self.window.extend_to(end, self.rcv_nxt);
        // A FIN is only noted before the right edge.
        let edge = self.fin.unwrap_or(self.window.right_edge());
        if seq.before(self.rcv_nxt) {
            self.note_duplicate(seq, end.earliest(self.rcv_nxt));
        }
        if !cut_to_window(&mut segment, self.rcv_nxt, edge) {
            let drop = match self.fin {
                _ if end.before_eq(self.rcv_nxt) => SegmentDrop::Duplicate,
                Some(_) => SegmentDrop::AfterFin,
                None => SegmentDrop::NoSpace,
            };
            self.ack.request();
            return Accepted::dropped(drop);
        }
        if self.rcv_nxt != self.last_ack_sent {
            self.echo.before_data(segment.ecn, self.rcv_nxt);
        }
        if segment.seq != self.rcv_nxt {
            return self.accept_out_of_order(segment, now);
        }
        if queue.segments() >= self.max_segments {
            return self.refuse(&segment, SegmentDrop::TooManySegments);
        }
        let undisturbed = self.reassembly.is_empty() && seq == self.rcv_nxt;
        let arrival = match undisturbed {
            true if is_beyond => Arrival::Beyond,
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

    /// Delivers payload that starts at RCV.NXT, and held payload that is in order then. Where both overlap, the held bytes,
    /// which arrived first, are delivered.
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
            return Accepted::dropped(SegmentDrop::OfoNoMemory);
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
        Accepted::dropped(drop)
    }

    /// Consumes the FIN. Payload behind it is dropped.
    fn finish(&mut self, queue: &mut RecvQueue<P>, now: Instant) {
        if self.window.promised(self.rcv_nxt) == 0 {
            // The peer has sent beyond the window, and may repeat its FIN without a pause.
            self.ack.request();
        }
        self.rcv_nxt += 1;
        self.fin_received = true;
        self.reassembly.clear();
        // The peer sends nothing more, so a D-SACK would be of no use (linux `tcp_fin`).
        self.dsack = None;
        queue.set_eof();
        self.ack.on_arrival(Arrival::Fin, 0, now);
    }

    /// Returns a segment, sent now, with acknowledgement number, ECE, window field and options; the ACK counts as sent.
    pub(crate) fn announce(
        &mut self,
        queue: &RecvQueue<P>,
        clock: TimestampClock,
        blocks: usize,
        now: Instant,
    ) -> Segment<P> {
        // Too many unread segments stop the right edge, even if they have few bytes.
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
        Segment {
            ack: Some(self.rcv_nxt),
            ece: self.echo.is_due(),
            window,
            options: TcpOptions {
                sack,
                ..ack_options(self.ts_recent.map(TsRecent::value), clock.value(now))
            },
            ..Segment::default()
        }
    }

    /// Returns SACK blocks: the pending D-SACK, then the ranges held, the latest first (RFC 2018 4, RFC 2883 4).
    fn fill_sack(&mut self, sack: &mut SackBlocks, blocks: usize) {
        let dsack = self.dsack.take();
        self.dsacks_out += u64::from(dsack.is_some());
        // A FIN behind a range counts as held.
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

/// Cuts a segment of payload alone to `[rcv_nxt, edge)`; returns false if nothing of it lies inside. No byte is read or copied. PSH is
/// removed with the last byte.
#[must_use]
pub(crate) fn cut_to_window<P: Payload>(
    segment: &mut Segment<P>,
    rcv_nxt: SeqNum,
    edge: SeqNum,
) -> bool {
    debug_assert!(segment.control.is_empty(), "SYN and FIN were taken before");
    let end = segment.end();
    let (first, last) = (segment.seq.latest(rcv_nxt), end.earliest(edge));
    if first.after_eq(last) {
        return false;
    }
    segment.payload.trim_front(first.bytes_since(segment.seq));
    segment.seq = first;
    if last != end {
        segment.payload.truncate(last.bytes_since(first));
        segment.push = false;
    }
    true
}
