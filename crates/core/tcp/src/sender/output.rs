//! What may leave now (linux `tcp_write_xmit`, `tcp_xmit_retransmit_queue`).

use core::time::Duration;

use netmem::Payload;
use wire::Instant;

use super::packets::Bundling;
use super::recovery::Phase;
use super::send_queue::SendRange;
use super::timers::DueSend;
use super::{DataSegment, Sender};
use crate::chrono::Busy;
use crate::config::Config;
use crate::congestion::FlightLimit;
use crate::context::Context;
use crate::rack::TailProbe;
use crate::tuning::FlowState;

/// Time since the last sending from which on nothing is put off (linux `tcp_tso_should_defer`).
const DEFER_WITHIN: Duration = Duration::from_millis(1);

/// How much the windows let out.
#[derive(Debug, Clone, Copy)]
struct Allowance {
    /// By the peer's window.
    window: u64,
    /// By the congestion window.
    congestion: u64,
    /// By pacing and by the size of a super-segment: whole packets, so that as many are all that may leave, and wait for no more.
    burst: u64,
}

impl<P: Payload> Sender<P> {
    /// Returns what the windows, Nagle's algorithm and pacing let out now, retransmissions first, `None` when that
    /// is nothing more. What is returned counts as sent.
    pub fn poll_data(&mut self, cx: &Context<'_>) -> Option<DataSegment<P>> {
        if !self.packets.is_open() {
            return None;
        }
        if let Some(probe) = self.due_probe(cx) {
            return Some(probe);
        }
        if let Some(segment) = self.next_retransmission(cx) {
            return Some(segment);
        }
        let segment = if self.awaits_retransmission() {
            None
        } else {
            self.next_new(cx)
        };
        self.timers.clear_due();
        if segment.is_none() {
            self.note_held_back(cx);
            self.note_busy(cx);
        }
        segment
    }

    /// Returns the probe that a timer asked for.
    fn due_probe(&mut self, cx: &Context<'_>) -> Option<DataSegment<P>> {
        match self.timers.due()? {
            DueSend::TailProbe => {
                self.timers.clear_due();
                self.tail_probe(cx)
            }
            DueSend::WindowProbe => {
                self.timers.clear_due();
                self.window_probe(cx)
            }
            // Taken where small segments are held back.
            DueSend::Small | DueSend::Flush => None,
        }
    }

    /// Notes what the connection waits for, now that nothing more may leave.
    fn note_busy(&mut self, cx: &Context<'_>) {
        let (mss, unsent) = (u64::from(self.mss()), self.unsent());
        let by_window = unsent > 0 && self.space.usable() < unsent.min(mss);
        let waits =
            self.counters.chrono.writer_waits && !self.queue.is_writable(cx.settings.snd_buf_max);
        let by_buffer = unsent == 0 && waits;
        // Where the congestion window is used up, too, the network counts (linux `tcp_write_xmit`, `tcp_cwnd_validate`).
        let by_network = |sender: &Self| sender.allowance(cx).congestion < mss;
        let busy = match () {
            () if self.all_acked() => None,
            () if by_window && !by_network(self) => Some(Busy::PeerWindow),
            () if by_buffer && !by_network(self) => Some(Busy::SendBuffer),
            () => Some(Busy::Network),
        };
        self.counters.chrono.switch(busy, cx.now);
    }

    /// Makes sure that something wakes up what waits.
    fn note_held_back(&mut self, cx: &Context<'_>) {
        let waits = self.has_unsent();
        if waits {
            self.arm_held_back(cx);
        } else if self.flight.board.lost() == 0 {
            self.rate
                .congestion
                .on_application_limited(self.flight.pipe());
        }
        let waits = waits || self.flight.board.lost() > 0;
        let release = self.rate.pacer.await_release(waits, cx.now);
        let release = release.or_else(|| self.end_of_deferral(cx));
        self.timers.set_held_until(release);
    }

    fn has_unsent(&self) -> bool {
        self.queue.has_unsent(self.space.nxt())
    }

    fn allowance(&self, cx: &Context<'_>) -> Allowance {
        let mss = u64::from(self.mss());
        let pipe = self.flight.pipe();
        let room = self.rate.congestion.cwnd().saturating_sub(pipe);
        let packets = self.packets_at_once(cx.shared());
        let paced = self.rate.pacer.allowance(self.mss(), cx.now);
        Allowance {
            window: self.space.usable(),
            // A segment may always leave into an empty pipe.
            congestion: if pipe == 0 { room.max(mss) } else { room },
            burst: self
                .packets
                .super_payload
                .fit(packets * mss, mss)
                .min(paced / mss * mss),
        }
    }

    /// Returns how many packets one segment may have.
    pub(super) fn packets_at_once(&self, shared: &Config) -> u64 {
        if self.packets.bundling == Bundling::SinglePackets {
            return 1;
        }
        let rtt = &self.flight.rtt;
        shared.tuning.packets_at_once(&FlowState {
            mss: self.mss().into(),
            longest: self.packets.super_payload.longest.into(),
            max_wnd: self.space.max_wnd().into(),
            cwnd: self.rate.congestion.cwnd(),
            ssthresh: self.rate.congestion.ssthresh(),
            srtt: rtt.srtt(),
            min_rtt: rtt.min_rtt(),
        })
    }

    /// Returns the next range to be sent again.
    fn next_retransmission(&mut self, cx: &Context<'_>) -> Option<DataSegment<P>> {
        if self.flight.board.lost() == 0 || self.recovery.prefers_new_data() {
            return None;
        }
        let mss = u64::from(self.mss());
        let allowance = self.allowance(cx);
        let room = allowance.congestion.min(allowance.burst);
        let most = (room / mss).max(1) * mss;
        let (start, len) = self
            .flight
            .board
            .next_lost(u32::try_from(most).unwrap_or(u32::MAX))?;
        if u64::from(len) > room {
            self.note_flight(FlightLimit::Window);
            return None;
        }
        let len = self.within_window(start, len)?;
        Some(self.repeat((start, len), cx))
    }

    /// Returns whether something lost must leave before anything new (RFC 6675 4 NextSeg).
    fn awaits_retransmission(&mut self) -> bool {
        let lost = self.flight.board.lost() > 0 && !self.recovery.prefers_new_data();
        lost && self.flight.board.next_lost(1).is_some()
    }

    /// Cuts a retransmission to the peer's window, which may have shrunk. The first packet may always leave: it is
    /// the probe of a window that was closed over data in flight (RFC 9293 3.8.6.2.1).
    fn within_window(&self, start: u64, len: u32) -> Option<u32> {
        let admitted = self.space.window_end().saturating_sub(start);
        match u32::try_from(admitted).unwrap_or(u32::MAX) {
            0 if start == self.space.una() => Some(len.min(u32::from(self.mss()))),
            0 => None,
            admitted => Some(len.min(admitted)),
        }
    }

    /// Returns new data, or the FIN.
    fn next_new(&mut self, cx: &Context<'_>) -> Option<DataSegment<P>> {
        if !self.has_unsent() {
            return None;
        }
        self.restart_after_idle(cx);
        let allowance = self.allowance(cx);
        let range = self.new_range(&allowance, cx);
        if range.is_none() {
            let window = allowance.congestion < self.unsent().min(allowance.window);
            self.note_flight(if window {
                FlightLimit::Window
            } else {
                FlightLimit::Other
            });
            if self.recovery.stop_frto_without_data(self.space.nxt()) {
                return self.next_retransmission(cx);
            }
        }
        let range = range?;
        let mut segment = self.emit(range);
        segment.push |= self.timers.due() == Some(DueSend::Small);
        self.on_new_sent(&mut segment, range, cx);
        Some(segment)
    }

    /// Decides how much new data leaves.
    fn new_range(&self, allowance: &Allowance, cx: &Context<'_>) -> Option<SendRange> {
        let (nxt, mss) = (self.space.nxt(), u64::from(self.mss()));
        let unsent = self.queue.unsent(nxt);
        let most = allowance
            .window
            .min(allowance.congestion)
            .min(allowance.burst);
        let len = self.queue.until_boundary(nxt, unsent.min(most));
        let len = self.packets.super_payload.fit(len, mss);
        let has_room = allowance.window > len && allowance.burst > len;
        let fin = has_room && self.queue.fin_follows(len, nxt);
        let is_complete = self.queue.is_complete(nxt, len);
        let una = self.space.una();
        let may_be_small = || is_complete && self.queue.may_send_small(cx.settings, nxt, len, una);
        let len = if len.is_multiple_of(mss) || fin || may_be_small() {
            len
        } else {
            self.packets.super_payload.fit(len / mss * mss, mss)
        };
        if len == 0 && !fin {
            return self.overdue_range(allowance);
        }
        if !is_complete && self.should_defer(len, allowance, cx) {
            return None;
        }
        Some(SendRange {
            start: nxt,
            len: len as u32,
            fin,
        })
    }

    /// Returns whether what is unsent does not fill a super-segment, and may wait for further writes while the peer is busy: a
    /// whole super-segment is unacknowledged (linux `tcp_should_autocork`, where one that the NIC has not sent counts).
    pub(crate) fn may_gather(&self, cx: &Context<'_>) -> bool {
        let (unsent, mss) = (self.unsent(), u64::from(self.mss()));
        if unsent == 0 || !self.packets.is_open() {
            return false;
        }
        let longest = self
            .packets
            .super_payload
            .fit(self.packets_at_once(cx.shared()) * mss, mss);
        let is_idle = self.flight.board.outstanding() < longest;
        let has_more = self.timers.due().is_some() || self.flight.board.lost() > 0;
        unsent < longest && !is_idle && !has_more && self.queue.may_gather(cx.settings, longest)
    }

    /// Returns a small segment whose waiting is over (RFC 9293 3.8.6.2.1 override).
    fn overdue_range(&self, allowance: &Allowance) -> Option<SendRange> {
        if !matches!(self.timers.due(), Some(DueSend::Small | DueSend::Flush)) {
            return None;
        }
        self.packet_of_new(allowance.window.min(allowance.congestion))
    }

    /// Returns a packet of new data with at most `most` bytes, full or not.
    fn packet_of_new(&self, most: u64) -> Option<SendRange> {
        let start = self.space.nxt();
        let len = self.unsent().min(most).min(self.mss().into());
        let len = self.queue.until_boundary(start, len) as u32;
        (len > 0).then_some(SendRange {
            start,
            len,
            fin: false,
        })
    }

    /// Returns whether to wait for the next ACK, which lets out a longer super-segment
    /// (linux `tcp_tso_should_defer`).
    fn should_defer(&self, len: u64, allowance: &Allowance, cx: &Context<'_>) -> bool {
        let now = cx.now;
        if !matches!(self.recovery.phase(), Phase::Open | Phase::Cwr) || len >= allowance.burst {
            return false;
        }
        let window = u64::from(self.space.wnd()).min(self.rate.congestion.cwnd());
        let divisor = u64::from(cx.shared().tso_win_divisor);
        if divisor == 0
            || len >= window / divisor
            || now.saturating_since(self.flight.last_sent) >= DEFER_WITHIN
        {
            return false;
        }
        let head = self.flight.board.head_sent_at();
        let (Some(head), Some(srtt)) = (head, self.flight.rtt.srtt()) else {
            return false;
        };
        // Only if the ACK is close.
        now.saturating_since(head) >= srtt / 2
    }

    /// Returns when data that the windows let out, and that waits for the next ACK, leaves without it; `None` where the next ACK comes
    /// sooner.
    fn end_of_deferral(&self, cx: &Context<'_>) -> Option<Instant> {
        let is_far = self
            .flight
            .rtt
            .srtt()
            .is_some_and(|srtt| srtt > DEFER_WITHIN);
        if !is_far || !cx.shared().tuning.defers_in_time {
            return None;
        }
        let room = self
            .rate
            .congestion
            .cwnd()
            .saturating_sub(self.flight.pipe());
        let most = room.min(self.space.usable()).min(self.unsent());
        let end = self.flight.last_sent + DEFER_WITHIN;
        (most >= u64::from(self.mss()) && end > cx.now).then_some(end)
    }

    /// Sends something for the peer to acknowledge when an ACK is overdue (RFC 8985 7.3): new data if there is some.
    fn tail_probe(&mut self, cx: &Context<'_>) -> Option<DataSegment<P>> {
        let phase = self.recovery.phase();
        if self.flight.board.outstanding() == 0 || phase == Phase::Loss {
            return None;
        }
        let mut probe = TailProbe {
            end: 0,
            retransmission: true,
        };
        let mut segment = if let Some(missing) = self.missing_probe() {
            self.repeat(missing, cx)
        } else if let Some(range) = self.packet_of_new(self.space.usable()) {
            // Whatever the congestion window says.
            probe.retransmission = false;
            let mut segment = self.emit(range);
            self.on_new_sent(&mut segment, range, cx);
            segment
        } else {
            let board = &self.flight.board;
            let known = match phase {
                // The last one may have arrived, the first one has not.
                Phase::Recovery => board.first_packet(),
                _ => board.last_packet(self.sent_fin_offset()),
            };
            self.repeat(known?, cx)
        };
        self.counters.tail_probes = self.counters.tail_probes.saturating_add(1);
        probe.end = self.space.nxt();
        self.recovery.on_probe(probe);
        self.schedule(cx);
        segment.probe = true;
        Some(segment)
    }

    /// Returns a packet that is known to be missing and waits for the congestion window: it asks as well.
    fn missing_probe(&mut self) -> Option<(u64, u32)> {
        if self.recovery.phase() != Phase::Recovery {
            return None;
        }
        let (start, len) = self.flight.board.next_lost(u32::from(self.mss()))?;
        Some((start, self.within_window(start, len)?))
    }

    /// Sends a range again.
    fn repeat(&mut self, (start, len): (u64, u32), cx: &Context<'_>) -> DataSegment<P> {
        let range = self.queue.range_at(start, len);
        let segment = self.emit(range);
        self.on_retransmitted(range, cx);
        segment
    }

    /// Asks for the window with a number that the peer has seen: it must answer, and may drop what comes
    /// (linux `tcp_xmit_probe_skb`).
    fn window_probe(&mut self, cx: &Context<'_>) -> Option<DataSegment<P>> {
        let is_idle = self.flight.board.outstanding() == 0;
        if !is_idle || !self.has_unsent() || self.space.usable() > 0 {
            return None;
        }
        self.arm_held_back(cx);
        Some(DataSegment {
            seq: self.snd_una() - 1usize,
            payload: P::default(),
            fin: false,
            push: false,
            probe: true,
            ecn: self.rate.cwr.codepoint(),
            cwr: false,
        })
    }

    fn emit(&self, range: SendRange) -> DataSegment<P> {
        let shared = self.queue.share(range);
        DataSegment {
            seq: self.space.seq_of(range.start),
            payload: shared.payload,
            fin: range.fin,
            push: shared.push,
            probe: false,
            ecn: self.rate.cwr.codepoint(),
            cwr: false,
        }
    }

    /// Counts what leaves for the first time: with payload it may be marked, and says that the window was reduced (linux
    /// `tcp_ecn_send`).
    fn on_new_sent(&mut self, segment: &mut DataSegment<P>, range: SendRange, cx: &Context<'_>) {
        let now = cx.now;
        if range.len > 0 {
            (segment.ecn, segment.cwr) = self.rate.cwr.on_new_data();
        }
        let is_first = self.flight.board.outstanding() == 0;
        let mss = self.mss();
        self.flight.on_sent(range, mss, now);
        self.space.advance_nxt(range.len);
        if !range.len.is_multiple_of(u32::from(mss)) {
            self.queue.note_small(self.space.nxt());
        }
        self.space.advance_nxt(range.fin.into());
        self.recovery.on_sent(u64::from(range.len));
        if is_first {
            self.timers.on_first_sent(now);
        }
        self.on_sent(range, now);
        self.note_flight(FlightLimit::Other);
        self.schedule(cx);
    }

    fn on_retransmitted(&mut self, range: SendRange, cx: &Context<'_>) {
        let now = cx.now;
        let len = range.len + u32::from(range.fin);
        let mss = self.mss();
        self.flight
            .board
            .on_retransmitted(range.start, len, mss, now);
        self.recovery.on_retransmitted(u64::from(len), now);
        if range.start == self.space.una() && !self.recovery.is_impatient() {
            self.timers.restart(now);
        }
        self.counters.bytes_retrans += u64::from(range.len);
        let packets = len.div_ceil(u32::from(mss));
        self.counters.total_retrans = self.counters.total_retrans.saturating_add(packets);
        self.on_sent(range, now);
        self.schedule(cx);
    }

    fn on_sent(&mut self, range: SendRange, now: Instant) {
        self.flight.last_sent = now;
        self.counters.last_data_sent = now;
        self.counters.bytes_sent += u64::from(range.len);
        let in_flight = self.flight.pipe();
        self.rate
            .on_sent(u64::from(range.len), in_flight, self.mss(), now);
    }

    /// Reports to congestion control how much of its window is used.
    fn note_flight(&mut self, limit: FlightLimit) {
        let flight = self.flight.board.outstanding();
        let full = self.flight.pipe() + u64::from(self.mss()) > self.rate.congestion.cwnd();
        let limit = if full { FlightLimit::Window } else { limit };
        let span = (self.space.una(), self.space.nxt());
        self.rate.congestion.note_flight(flight, limit, span);
    }

    /// Forgets the window that a pause has made stale (RFC 5681 4.1).
    fn restart_after_idle(&mut self, cx: &Context<'_>) {
        let now = cx.now;
        let is_shut = self.space.usable() == 0;
        if self.flight.board.outstanding() > 0 || is_shut || !cx.shared().slow_start_after_idle {
            return;
        }
        let idle = now.saturating_since(self.flight.last_sent);
        let rto = self.flight.rtt.base_rto();
        if idle > rto {
            let restart = u64::from(cx.shared().initial_cwnd) * u64::from(self.mss());
            self.rate.congestion.on_idle(idle, rto, restart, now);
            self.flight.last_sent = now;
            self.rate.update_pacing(self.flight.rtt.srtt());
        }
    }
}
