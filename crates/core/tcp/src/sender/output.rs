//! What may leave now (linux `tcp_write_xmit`, `tcp_xmit_retransmit_queue`).

use core::time::Duration;

use netmem::Payload;
use wire::{Ecn, Instant};

use super::recovery::Phase;
use super::timers::Due;
use super::{Busy, DataSegment, Sender};
use crate::congestion::Limit;
use crate::policy::Flow;
use crate::rack::TailProbe;

/// Time since the last sending after which nothing is put off (linux `tcp_tso_should_defer`).
const DEFER_WITHIN: Duration = Duration::from_millis(1);

/// A range that is about to leave.
#[derive(Debug, Clone, Copy)]
struct Range {
    start: u64,
    len: u32,
    fin: bool,
}

/// How much the windows let out.
#[derive(Debug, Clone, Copy)]
struct Allowance {
    /// By the peer's window.
    window: u64,
    /// By the congestion window.
    congestion: u64,
    /// By pacing and by the size of a super-segment.
    burst: u64,
}

impl<P: Payload> Sender<P> {
    /// Returns what the windows, Nagle's algorithm and pacing let out now, retransmissions first, `None` when that
    /// is nothing more. What is returned counts as sent.
    pub fn poll_data(&mut self, now: Instant) -> Option<DataSegment<P>> {
        if self.mss == 0 {
            return None;
        }
        match self.timers.due() {
            None => {}
            Some(Due::TailProbe) => {
                self.timers.take_due();
                if let Some(segment) = self.tail_probe(now) {
                    return Some(segment);
                }
            }
            Some(Due::WindowProbe) => {
                self.timers.take_due();
                if let Some(segment) = self.window_probe(now) {
                    return Some(segment);
                }
            }
            // Taken where small segments are held back.
            Some(Due::Small | Due::Flush) => {}
        }
        if let Some(segment) = self.next_retransmission(now) {
            return Some(segment);
        }
        let segment = if self.awaits_retransmission() {
            None
        } else {
            self.next_new(now)
        };
        self.timers.take_due();
        if segment.is_none() {
            self.note_held_back(now);
            self.note_busy(now);
        }
        segment
    }

    /// Notes what the connection waits for, now that nothing more may leave.
    fn note_busy(&mut self, now: Instant) {
        let is_full = self.room() == 0;
        let has_unsent = self.unsent() > 0;
        let mss = u64::from(self.mss());
        let by_window = self.window_end().saturating_sub(self.snd_nxt) < self.unsent().min(mss);
        let busy = match () {
            () if self.all_acked() => None,
            () if has_unsent && by_window => Some(Busy::PeerWindow),
            () if !has_unsent && is_full => Some(Busy::SendBuffer),
            () => Some(Busy::Network),
        };
        self.chrono.switch(busy, now);
    }

    /// Makes sure that something wakes up what waits.
    fn note_held_back(&mut self, now: Instant) {
        let waits = self.has_unsent();
        if waits {
            self.arm_held_back(now);
        }
        let release = self
            .pacer
            .release(now)
            .filter(|_| waits || self.board.lost() > 0);
        self.timers.set_paced_until(release);
    }

    fn has_unsent(&self) -> bool {
        self.unsent() > 0 || (self.fin && !self.fin_sent())
    }

    fn allowance(&self, now: Instant) -> Allowance {
        let mss = u64::from(self.mss());
        let pipe = self.pipe();
        let room = self.congestion.cwnd().saturating_sub(pipe);
        let packets = self.packets_at_once();
        Allowance {
            window: self.window_end().saturating_sub(self.snd_nxt),
            // A segment may always leave into an empty pipe.
            congestion: if pipe == 0 { room.max(mss) } else { room },
            burst: self
                .limits
                .super_payload
                .fit(packets * mss, mss)
                .min(self.pacer.allowance(self.mss(), now)),
        }
    }

    /// Returns how many packets one segment may have.
    fn packets_at_once(&self) -> u64 {
        if self.limits.single_packets {
            return 1;
        }
        self.shared.policy.packets_at_once(&Flow {
            mss: self.mss().into(),
            longest: self.limits.super_payload.longest.into(),
            cwnd: self.congestion.cwnd(),
            ssthresh: self.congestion.ssthresh(),
            srtt: self.rtt.srtt(),
            min_rtt: self.rtt.min_rtt(),
        })
    }

    /// Returns the next range to be sent again.
    fn next_retransmission(&mut self, now: Instant) -> Option<DataSegment<P>> {
        if self.board.lost() == 0 || self.recovery.prefers_new_data() {
            return None;
        }
        let mss = u64::from(self.mss());
        let allowance = self.allowance(now);
        let room = allowance.congestion.min(allowance.burst);
        let most = (room / mss).max(1) * mss;
        let (start, len) = self
            .board
            .next_lost(u32::try_from(most).unwrap_or(u32::MAX))?;
        if u64::from(len) > room {
            self.note_flight(Limit::Window);
            return None;
        }
        let len = self.within_window(start, len)?;
        Some(self.repeat((start, len), now))
    }

    /// Returns whether something lost must leave before anything new (RFC 6675 4 NextSeg).
    fn awaits_retransmission(&mut self) -> bool {
        let lost = self.board.lost() > 0 && !self.recovery.prefers_new_data();
        lost && self.board.next_lost(1).is_some()
    }

    /// Cuts a retransmission to the peer's window, which may have shrunk. The first packet may always leave: it is
    /// the probe of a window that was closed over data in flight (RFC 9293 3.8.6.2.1).
    fn within_window(&self, start: u64, len: u32) -> Option<u32> {
        let admitted = self.window_end().saturating_sub(start);
        match u32::try_from(admitted).unwrap_or(u32::MAX) {
            0 if start == self.snd_una => Some(len.min(u32::from(self.mss()))),
            0 => None,
            admitted => Some(len.min(admitted)),
        }
    }

    /// Returns the range, cut at a boundary, with the FIN if it reaches so far.
    fn data_range(&self, start: u64, len: u32) -> Range {
        let end = self.queue.end();
        let data = end.saturating_sub(start).min(u64::from(len)) as u32;
        let together = self.queue.until_boundary(start, data as usize) as u32;
        Range {
            start,
            len: together,
            fin: together == data && start + u64::from(len) > end,
        }
    }

    /// Returns new data, or the FIN.
    fn next_new(&mut self, now: Instant) -> Option<DataSegment<P>> {
        if !self.has_unsent() {
            return None;
        }
        self.restart_after_idle(now);
        let allowance = self.allowance(now);
        let range = self.new_range(&allowance, now);
        if range.is_none() {
            let window = allowance.congestion < self.unsent().min(allowance.window);
            self.note_flight(if window { Limit::Window } else { Limit::Other });
            if self.recovery.prefers_new_data() && self.snd_nxt == self.recovery.point() {
                // F-RTO found nothing to send: back to retransmissions (RFC 5682 step 2b).
                self.recovery.stop_frto();
                return self.next_retransmission(now);
            }
        }
        let range = range?;
        let mut segment = self.emit_new(range);
        segment.push |= self.timers.due() == Some(Due::Small);
        self.on_new_sent(range, now);
        Some(segment)
    }

    /// Decides how much new data leaves.
    fn new_range(&self, allowance: &Allowance, now: Instant) -> Option<Range> {
        let (unsent, mss) = (self.unsent(), u64::from(self.mss()));
        let most = allowance
            .window
            .min(allowance.congestion)
            .min(allowance.burst);
        let len = self
            .queue
            .until_boundary(self.snd_nxt, unsent.min(most) as usize) as u64;
        let len = self.limits.super_payload.fit(len, mss);
        let fin = self.fin && len == unsent && allowance.window > len && allowance.burst > len;
        let together = len == unsent || self.ends_at_boundary(len);
        let len =
            if len.is_multiple_of(mss) || fin || (together && self.may_send_small(len, unsent)) {
                len
            } else {
                self.limits.super_payload.fit(len / mss * mss, mss)
            };
        if len == 0 && !fin {
            return self.overdue_range(allowance);
        }
        if !together && self.should_defer(len, allowance, now) {
            return None;
        }
        Some(Range {
            start: self.snd_nxt,
            len: len as u32,
            fin,
        })
    }

    fn ends_at_boundary(&self, len: u64) -> bool {
        len > 0 && self.queue.until_boundary(self.snd_nxt, len as usize + 1) as u64 == len
    }

    /// Returns whether a segment that is not full may leave (linux `tcp_nagle_test`).
    ///
    /// Not while the writer announces more; with Nagle's algorithm not while another small one is unacknowledged
    /// (Minshall's variant: full segments in flight hold nothing back).
    fn may_send_small(&self, len: u64, unsent: u64) -> bool {
        if len < unsent {
            // A boundary follows: nothing can be added.
            return true;
        }
        let small_in_flight = self.small_end > self.snd_una;
        let is_held = self.expects_more || self.limits.corked;
        !is_held && (self.limits.nodelay || !small_in_flight)
    }

    /// Returns a small segment whose waiting is over (RFC 9293 3.8.6.2.1 override).
    fn overdue_range(&self, allowance: &Allowance) -> Option<Range> {
        if !matches!(self.timers.due(), Some(Due::Small | Due::Flush)) {
            return None;
        }
        let most = allowance
            .window
            .min(allowance.congestion)
            .min(u64::from(self.mss()));
        let len =
            self.queue
                .until_boundary(self.snd_nxt, self.unsent().min(most) as usize) as u32;
        (len > 0).then_some(Range {
            start: self.snd_nxt,
            len,
            fin: false,
        })
    }

    /// Returns whether to wait for the next ACK, which lets out a longer super-segment
    /// (linux `tcp_tso_should_defer`).
    fn should_defer(&self, len: u64, allowance: &Allowance, now: Instant) -> bool {
        if !matches!(self.recovery.phase(), Phase::Open | Phase::Cwr) || len >= allowance.burst {
            return false;
        }
        let window = u64::from(self.snd_wnd).min(self.congestion.cwnd());
        let divisor = u64::from(self.shared.tso_win_divisor);
        if divisor == 0
            || len >= window / divisor
            || now.saturating_since(self.last_sent) > DEFER_WITHIN
        {
            return false;
        }
        let (Some(head), Some(srtt)) = (self.board.head_sent_at(), self.rtt.srtt()) else {
            return false;
        };
        // Only if the ACK is close.
        now.saturating_since(head) >= srtt / 2
    }

    /// Sends something for the peer to acknowledge when an ACK is overdue (RFC 8985 7.3): new data if there is some.
    fn tail_probe(&mut self, now: Instant) -> Option<DataSegment<P>> {
        if self.board.outstanding() == 0 || self.recovery.phase() == Phase::Loss {
            return None;
        }
        let in_recovery = self.recovery.phase() == Phase::Recovery;
        let (mut segment, new) = if let Some(missing) = self.missing_probe(in_recovery) {
            (self.repeat(missing, now), false)
        } else if let Some(segment) = self.probe_with_new(now) {
            (segment, true)
        } else {
            let known = match in_recovery {
                // The last one may have arrived, the first one has not.
                true => self.board.first_packet(),
                false => self.board.last_packet(self.sent_fin_offset()),
            };
            (self.repeat(known?, now), false)
        };
        self.counters.tail_probes = self.counters.tail_probes.saturating_add(1);
        if in_recovery {
            // The loss is known and answered already: there is nothing to find out by the probe's own fate.
            self.recovery.note_probe();
        } else {
            self.recovery.begin_tail_probe(TailProbe {
                end: self.snd_nxt,
                retransmission: !new,
            });
        }
        self.schedule(now);
        segment.probe = true;
        Some(segment)
    }

    /// Sends a packet of new data, whatever the congestion window says.
    fn probe_with_new(&mut self, now: Instant) -> Option<DataSegment<P>> {
        let window = self.window_end().saturating_sub(self.snd_nxt);
        let len = self.unsent().min(window).min(u64::from(self.mss())) as usize;
        let len = self.queue.until_boundary(self.snd_nxt, len) as u32;
        (len > 0).then(|| {
            let range = Range {
                start: self.snd_nxt,
                len,
                fin: false,
            };
            let segment = self.emit_new(range);
            self.on_new_sent(range, now);
            segment
        })
    }

    /// Returns a packet that is known to be missing and waits for the congestion window: it asks as well.
    fn missing_probe(&mut self, in_recovery: bool) -> Option<(u64, u32)> {
        if !in_recovery {
            return None;
        }
        let (start, len) = self.board.next_lost(u32::from(self.mss()))?;
        Some((start, self.within_window(start, len)?))
    }

    /// Sends a range again.
    fn repeat(&mut self, (start, len): (u64, u32), now: Instant) -> DataSegment<P> {
        let range = self.data_range(start, len);
        let segment = self.emit(range);
        self.on_retransmitted(range, now);
        segment
    }

    /// Asks for the window with a number that the peer has seen: it must answer, and may drop what comes
    /// (linux `tcp_xmit_probe_skb`).
    fn window_probe(&mut self, now: Instant) -> Option<DataSegment<P>> {
        if self.board.outstanding() > 0 || !self.has_unsent() || self.window_end() > self.snd_nxt {
            return None;
        }
        self.arm_held_back(now);
        Some(DataSegment {
            seq: self.snd_una() - 1usize,
            payload: P::default(),
            fin: false,
            push: false,
            probe: true,
            ecn: Ecn::NotEct,
            cwr: false,
        })
    }

    fn emit(&self, range: Range) -> DataSegment<P> {
        let shared = match range.len {
            0 => crate::send_queue::Shared::default(),
            len => self.queue.share(range.start, len as usize),
        };
        DataSegment {
            seq: self.seq_of(range.start),
            payload: shared.payload,
            fin: range.fin,
            push: shared.push,
            probe: false,
            ecn: Ecn::NotEct,
            cwr: false,
        }
    }

    /// Emits what leaves for the first time: with payload it may be marked, and says that the window was reduced
    /// (linux `tcp_ecn_send`).
    fn emit_new(&mut self, range: Range) -> DataSegment<P> {
        let mut segment = self.emit(range);
        if range.len > 0 {
            (segment.ecn, segment.cwr) = self.cwr.on_new_data();
        }
        segment
    }

    fn on_new_sent(&mut self, range: Range, now: Instant) {
        let first = self.board.outstanding() == 0;
        let mss = self.mss();
        if range.len > 0 {
            self.board.on_sent(self.snd_nxt, range.len, mss, now);
            self.snd_nxt += u64::from(range.len);
        }
        if !range.len.is_multiple_of(u32::from(mss)) {
            self.small_end = self.snd_nxt;
        }
        if range.fin {
            self.board.on_sent(self.snd_nxt, 1, mss, now);
            self.snd_nxt += 1;
        }
        self.recovery.on_sent(u64::from(range.len));
        if first {
            self.timers.on_first_sent(now);
        }
        self.on_sent(range, now);
        self.note_flight(Limit::Other);
        self.schedule(now);
    }

    fn on_retransmitted(&mut self, range: Range, now: Instant) {
        let len = range.len + u32::from(range.fin);
        let mss = self.mss();
        self.board.on_retransmitted(range.start, len, mss, now);
        self.recovery.on_retransmitted(u64::from(len), now);
        if range.start == self.snd_una && !self.recovery.is_impatient() {
            self.timers.on_head_retransmitted(now);
        }
        self.counters.bytes_retrans += u64::from(range.len);
        let packets = len.div_ceil(u32::from(mss));
        self.counters.total_retrans = self.counters.total_retrans.saturating_add(packets);
        self.on_sent(range, now);
        self.schedule(now);
    }

    fn on_sent(&mut self, range: Range, now: Instant) {
        self.last_sent = now;
        self.last_data_sent = now;
        self.counters.bytes_sent += u64::from(range.len);
        self.pacer.on_sent(u64::from(range.len), self.mss(), now);
    }

    /// Reports to congestion control how much of its window is used.
    fn note_flight(&mut self, limit: Limit) {
        let flight = self.board.outstanding();
        let full = self.pipe() + u64::from(self.mss()) > self.congestion.cwnd();
        let limit = if full { Limit::Window } else { limit };
        self.congestion
            .note_flight(flight, limit, (self.snd_una, self.snd_nxt));
    }

    /// Forgets the window that a pause has made stale (RFC 5681 4.1).
    fn restart_after_idle(&mut self, now: Instant) {
        let is_shut = self.window_end() <= self.snd_nxt;
        if self.board.outstanding() > 0 || is_shut || !self.shared.slow_start_after_idle {
            return;
        }
        let idle = now.saturating_since(self.last_sent);
        let rto = self.rtt.base_rto();
        if idle > rto {
            let restart = u64::from(self.shared.initial_cwnd) * u64::from(self.mss());
            self.congestion.on_idle(idle, rto, restart, now);
            self.last_sent = now;
            self.update_pacing();
        }
    }
}
