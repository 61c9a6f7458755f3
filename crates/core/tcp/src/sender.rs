//! The sending half of a connection: what may leave, when, and what must leave again.
//!
//! Inside, positions are stream offsets (`u64`, byte 0 follows the SYN, the FIN takes the offset behind the last
//! byte); only this file turns them into sequence numbers and back. SND.NXT never moves back: what must leave again
//! is marked in the [`Scoreboard`].
//!
//! - `ack.rs`: an acknowledgement comes in,
//! - `recovery.rs`: what it means for the losses and the window,
//! - `output.rs`: the next segment,
//! - `timers.rs`: the one timer that is armed at a time,
//! - `path.rs`: packets that are too large for the path and vanish without a word.

mod ack;
mod chrono;
mod output;
mod path;
mod recovery;
#[cfg(test)]
mod tests;
mod timers;

use core::num::NonZeroU32;
use core::time::Duration;
use std::sync::Arc;

use netmem::Payload;
use wire::{AccEcn, Ecn, Instant, SackBlocks};

use crate::accecn::Reports;
use crate::config::{Config, CongestionKind, ConnectionConfig, EcnMode, MIN_MSS, SuperPayload};
use crate::congestion::Congestion;
use crate::ecn::CwrAnswer;
use crate::error::TcpError;
use crate::info::Info;
use crate::options::{Negotiated, TimestampClock};
use crate::pacing::{Gain, Pacer};
use crate::rack::{DUP_THRESHOLD, Rack};
use crate::rtt::RttEstimator;
use crate::scoreboard::Scoreboard;
use crate::send_queue::SendQueue;
use crate::seqnum::SeqNum;
pub use chrono::{Busy, BusyTimes, Chrono};
use path::PathMss;
use recovery::Recovery;
use timers::Timers;

/// The part of the send buffer that must be free before a full queue counts as writable again
/// (linux `sk_stream_is_writeable`).
const WRITABLE_PART: usize = 3;

/// Largest window below which a packet may fill it, and not only half of it (linux `tcp_bound_to_half_wnd`).
const TINY_WINDOW: u32 = 536;

/// What the sender must know of an incoming segment with the ACK flag.
#[derive(Debug, Clone, Copy)]
pub struct IncomingAck<'a> {
    /// SEG.ACK.
    pub ack: SeqNum,
    /// SEG.SEQ, for the window update rule (SND.WL1).
    pub seq: SeqNum,
    /// SEG.WND, already scaled.
    pub window: u32,
    /// SACK blocks, D-SACK included.
    pub sack: &'a SackBlocks,
    /// TSecr, where timestamps were negotiated.
    pub ts_echo: Option<u32>,
    /// The segment takes sequence space (payload, SYN or FIN): it is no duplicate ACK then.
    pub has_data: bool,
    /// The ECE flag.
    pub ece: bool,
    /// The ACE field, where AccECN is used and it is a count.
    pub ace: Option<u8>,
    /// AccECN's option.
    pub accecn: Option<&'a AccEcn>,
    /// Its timestamp is newer than any before.
    pub ts_progress: bool,
}

/// How an acknowledgement number lies to what was sent (RFC 9293 3.10.7.4, RFC 5961 5.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckKind {
    /// SND.UNA < SEG.ACK =< SND.NXT: news.
    New,
    /// SEG.ACK = SND.UNA, or a little older: nothing new, windows and SACK blocks still count.
    Duplicate,
    /// Older than SND.UNA by more than the largest window seen: to be answered by a challenge ACK.
    TooOld,
    /// Acknowledges what was never sent: to be answered by an ACK and dropped.
    Future,
}

/// What an acknowledgement did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct AckOutcome {
    /// Where the number lies.
    pub kind: AckKind,
    /// Payload bytes that need not be kept any more. [`Sender::acked_offset`] tells which.
    pub newly_acked: usize,
    /// The send queue went from full to having room.
    pub writable: bool,
}

/// One stretch of the send queue that may leave now, in packets of [`Sender::mss`].
#[derive(Debug)]
pub struct DataSegment<P> {
    /// Number of the first byte.
    pub seq: SeqNum,
    /// A share of the queue; empty for a FIN alone and for a window probe.
    pub payload: P,
    /// The FIN goes behind the payload.
    pub fin: bool,
    /// The writer has nothing more at the moment.
    pub push: bool,
    /// A window probe or tail loss probe.
    pub probe: bool,
    /// The ECN field of its packets: what leaves again, and what carries no payload, is [`Ecn::NotEct`] (RFC 3168
    /// 6.1.4, 6.1.5).
    pub ecn: Ecn,
    /// The window was reduced since the last new data (RFC 3168 6.1.2).
    pub cwr: bool,
}

/// What a timer of the sender did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum TimerOutcome {
    /// No timer was due, or it changed nothing that must be sent.
    Nothing,
    /// [`Sender::poll_data`] has something to say.
    Retransmit,
    /// The peer does not answer any more.
    Abort(TcpError),
}

/// What the handshake settled, as far as the sender is concerned.
#[derive(Debug, Clone, Copy)]
pub struct Established {
    /// The negotiated options; [`Negotiated::snd_mss`] is what a packet may carry.
    pub negotiated: Negotiated,
    /// The peer's first window, scaled.
    pub window: u32,
    /// SEG.SEQ of the segment that brought it.
    pub seq: SeqNum,
    /// The clock whose values `ts_echo` returns.
    pub clock: TimestampClock,
    /// Round-trip time of the handshake, if the SYN went out only once (RFC 6298 3, Karn).
    pub handshake_rtt: Option<Duration>,
    /// The SYN or SYN-ACK was lost: RFC 6928 2 and RFC 6298 5.7 start slower then.
    pub handshake_timed_out: bool,
}

/// The connection's own options and limits, as far as they concern the sender.
#[derive(Debug, Clone)]
struct Limits {
    snd_buf_max: usize,
    super_payload: SuperPayload,
    user_timeout_ms: Option<NonZeroU32>,
    nodelay: bool,
    /// No super-segments.
    single_packets: bool,
    corked: bool,
}

/// Sums for [`Info`].
#[derive(Debug, Clone, Default)]
struct Counters {
    bytes_sent: u64,
    bytes_retrans: u64,
    total_retrans: u32,
    dsack_dups: u32,
    reord_seen: u32,
    ecn_reductions: u32,
    /// Packets delivered, and those of them by ACKs that echo a mark.
    delivered: u32,
    delivered_ce: u32,
    /// Packets; 0 stands for the default.
    reordering: u32,
    recoveries: u32,
    tail_probes: u16,
    total_rto: u16,
    undone: u16,
}

/// Owns the send queue, SND.UNA, SND.NXT, SND.WND and everything that decides what may leave.
#[derive(Debug)]
pub struct Sender<P> {
    queue: SendQueue<P>,
    board: Scoreboard,
    rtt: RttEstimator,
    rack: Rack,
    congestion: Congestion,
    pacer: Pacer,
    recovery: Recovery,
    timers: Timers,
    path: PathMss,
    cwr: CwrAnswer,
    /// What AccECN tells of our packets.
    reports: Option<Box<Reports>>,
    shared: Arc<Config>,
    limits: Limits,
    counters: Counters,
    chrono: Chrono,
    /// Number of stream offset 0: ISS + 1.
    first: SeqNum,
    snd_una: u64,
    snd_nxt: u64,
    snd_wnd: u32,
    /// MAX.SND.WND (RFC 5961 5.2, RFC 9293 3.8.6.2.1).
    max_snd_wnd: u32,
    /// SEG.SEQ of the last window update. SND.WL2 is not kept: an ACK that is accepted is never below it.
    snd_wl1: SeqNum,
    /// End of the last segment sent that was not full (Minshall's variant of Nagle's algorithm).
    small_end: u64,
    /// When data left last, or a pause was noticed.
    last_sent: Instant,
    /// When payload left last.
    last_data_sent: Instant,
    clock: TimestampClock,
    /// Payload bytes of a packet; 0 before the handshake.
    mss: u16,
    sack: bool,
    /// The stream ends behind what is queued.
    fin: bool,
    /// The writer announced more, and nothing came from the peer since: small segments wait. Linux forgets MSG_MORE with
    /// the next ACK, too (`tcp_data_snd_check`).
    expects_more: bool,
}

impl<P: Payload> Sender<P> {
    /// Returns a sender whose SYN takes `iss`; nothing is sent yet.
    pub fn new(config: &ConnectionConfig, iss: SeqNum) -> Self {
        Sender {
            queue: SendQueue::new(),
            board: Scoreboard::default(),
            rtt: RttEstimator::new(&config.shared.timers),
            rack: Rack::default(),
            congestion: Congestion::new(config.options.congestion),
            pacer: Pacer::new(config.shared.pacing),
            recovery: Recovery::default(),
            timers: Timers::default(),
            path: PathMss::new(config.shared.mtu_probing),
            cwr: CwrAnswer::default(),
            reports: None,
            shared: Arc::clone(&config.shared),
            limits: Limits {
                snd_buf_max: config.options.snd_buf_max,
                super_payload: config.super_payload(),
                user_timeout_ms: config.options.user_timeout.map(millis),
                nodelay: config.options.nodelay,
                single_packets: false,
                corked: config.options.cork,
            },
            counters: Counters::default(),
            chrono: Chrono::default(),
            first: iss + 1,
            snd_una: 0,
            snd_nxt: 0,
            snd_wnd: 0,
            max_snd_wnd: 0,
            snd_wl1: SeqNum::default(),
            small_end: 0,
            last_sent: Instant::ZERO,
            last_data_sent: Instant::ZERO,
            clock: TimestampClock::default(),
            mss: 0,
            sack: false,
            fin: false,
            expects_more: false,
        }
    }

    /// Takes over what the handshake settled: SND.UNA = ISS + 1.
    pub fn on_established(&mut self, established: &Established, now: Instant) {
        let negotiated = &established.negotiated;
        self.mss = negotiated.snd_mss.max(MIN_MSS);
        self.path.set_ceiling(self.mss);
        self.sack = negotiated.sack;
        self.cwr = CwrAnswer::new(negotiated.ecn == EcnMode::Classic);
        // The SYN.
        self.counters.delivered = 1;
        self.clock = established.clock;
        self.snd_wnd = established.window;
        self.max_snd_wnd = established.window;
        self.snd_wl1 = established.seq;
        self.last_sent = now;
        self.last_data_sent = now;
        if let Some(rtt) = established.handshake_rtt {
            self.rtt.on_sample(rtt);
            self.rtt.note_min(rtt, now);
        }
        let segments = if established.handshake_timed_out {
            self.rtt.on_lost_syn();
            1
        } else {
            self.shared.initial_cwnd
        };
        self.congestion
            .set_cwnd(u64::from(segments) * u64::from(self.mss));
        self.update_pacing();
    }

    /// Returns how many bytes [`Sender::push`] should be given; it takes more, but then the buffer overflows.
    pub fn room(&self) -> usize {
        self.limits.snd_buf_max.saturating_sub(self.queue.charged())
    }

    /// Queues payload; `more`: the writer will add to it at once (MSG_MORE, no PSH, no small segment yet).
    ///
    /// Returns the stream offset behind the payload: once [`Sender::acked_offset`] reaches it, the peer has it all.
    /// Empty payload without `more` only takes back an earlier `more`. Behind a FIN payload is dropped.
    pub fn push(&mut self, payload: P, more: bool) -> u64 {
        if self.fin {
            return self.queue.end();
        }
        self.expects_more = more;
        self.queue.push(payload, more)
    }

    /// Keeps what is pushed next out of packets with what was pushed before: host and device bytes do not mix, and
    /// MSG_EOR ends a record.
    pub fn push_boundary(&mut self) {
        self.queue.set_boundary();
    }

    /// Returns how many bytes are queued, sent or not.
    pub fn queued_len(&self) -> usize {
        self.queue.len()
    }

    /// Returns how many sequence numbers were sent and not acknowledged.
    pub fn in_flight(&self) -> usize {
        (self.snd_nxt - self.snd_una) as usize
    }

    /// Returns the stream offset behind the last byte that was pushed.
    pub fn pushed_offset(&self) -> u64 {
        self.queue.end()
    }

    /// Returns the stream offset behind the last byte that left at least once.
    pub fn sent_offset(&self) -> u64 {
        self.snd_nxt.min(self.queue.end())
    }

    /// Returns the stream offset up to which the peer acknowledged every byte; nothing below it is held any more.
    pub fn acked_offset(&self) -> u64 {
        self.snd_una.min(self.queue.end())
    }

    /// Ends the stream behind what is queued.
    pub fn queue_fin(&mut self) {
        self.fin = true;
    }

    /// Returns whether the FIN left at least once.
    pub fn fin_sent(&self) -> bool {
        self.fin && self.snd_nxt > self.queue.end()
    }

    /// Returns whether the FIN is acknowledged.
    pub fn fin_acked(&self) -> bool {
        self.fin && self.snd_una > self.queue.end()
    }

    /// Returns whether everything queued was sent and acknowledged, a FIN included.
    pub fn all_acked(&self) -> bool {
        self.snd_una == self.queue.end() + u64::from(self.fin)
    }

    /// Returns SND.UNA, the oldest number that is not acknowledged.
    pub fn snd_una(&self) -> SeqNum {
        self.seq_of(self.snd_una)
    }

    /// Returns SND.NXT, with which an ACK, a RST or a keepalive is numbered. It never moves back.
    pub fn snd_nxt(&self) -> SeqNum {
        self.seq_of(self.snd_nxt)
    }

    /// Returns SND.WND, the bytes that the peer lets us have in flight.
    pub fn snd_wnd(&self) -> u32 {
        self.snd_wnd
    }

    /// Returns the payload bytes of a full packet.
    ///
    /// A packet never takes more than half of the largest window that the peer ever offered, or tiny windows would
    /// stall it (RFC 9293 3.8.6.2.1, linux `tcp_bound_to_half_wnd`).
    pub fn mss(&self) -> u16 {
        if self.max_snd_wnd >= 2 * u32::from(self.mss) {
            return self.mss;
        }
        let bound = match self.max_snd_wnd {
            tiny @ ..=TINY_WINDOW => tiny,
            window => window / 2,
        };
        let bound = u16::try_from(bound).unwrap_or(u16::MAX);
        self.mss.min(bound.max(MIN_MSS))
    }

    /// Lets AccECN's reports be understood from now on.
    pub(crate) fn set_reports(&mut self, reports: Reports) {
        self.counters.delivered_ce = reports.ce_packets();
        self.reports = Some(Box::new(reports));
    }

    /// Returns whether AccECN's option came from the peer.
    pub(crate) fn sees_accecn_option(&self) -> bool {
        self.reports
            .as_ref()
            .is_some_and(|reports| reports.option_seen())
    }

    /// Lets only single packets leave, or super-segments.
    pub(crate) fn set_single_packets(&mut self, single: bool) {
        self.limits.single_packets = single;
    }

    /// Changes the congestion control; what it works on stays.
    pub fn set_congestion(&mut self, kind: CongestionKind) {
        self.congestion.change(kind);
    }

    /// Sends small segments at once, or gathers them while one is unacknowledged (RFC 9293 3.7.4).
    pub fn set_nodelay(&mut self, nodelay: bool) {
        self.limits.nodelay = nodelay;
    }

    /// Lets what waits leave at once, corked or not.
    pub fn flush(&mut self) {
        if self.mss > 0 && self.unsent() > 0 {
            self.timers.flush_small();
        }
    }

    /// Holds small segments back, or lets them go (TCP_CORK).
    pub fn set_cork(&mut self, corked: bool) {
        self.limits.corked = corked;
        self.expects_more &= corked;
    }

    /// Sets how many bytes may be queued; what is queued already stays (SO_SNDBUF).
    pub fn set_snd_buf(&mut self, bytes: usize) {
        self.limits.snd_buf_max = bytes;
    }

    /// Changes the time after which the connection is given up while nothing is acknowledged (RFC 5482).
    ///
    /// It also bounds the time that a closed window is probed; without it a peer that answers probes may keep its
    /// window closed for ever (RFC 9293 3.8.6.1).
    pub fn set_user_timeout(&mut self, timeout: Option<Duration>) {
        self.limits.user_timeout_ms = timeout.map(millis);
    }

    /// Adapts to a path that carries only packets with `mss` bytes of payload.
    ///
    /// What is larger and not acknowledged is cut anew and leaves again. The window stays: the amount of data in the
    /// network does not grow (linux `tcp_simple_retransmit`).
    pub fn on_mtu(&mut self, mss: u16, now: Instant) {
        let mss = mss.max(MIN_MSS);
        self.path.set_ceiling(mss);
        if self.path.is_reduced() && mss >= self.mss {
            // A smaller size was found without being told.
            return;
        }
        let shrinks = mss < self.mss;
        self.mss = mss;
        if shrinks {
            self.retransmit_larger_than(mss);
            self.schedule(now);
        }
    }

    /// Returns the largest payload of a packet that the peer and the network allow, as far as they said.
    pub(crate) fn allowed_mss(&self) -> u16 {
        self.path.ceiling()
    }

    /// Drops everything queued, for a connection that is aborted.
    pub fn clear(&mut self) {
        let fin_sent = self.fin_sent();
        self.queue.clear(self.sent_offset());
        self.fin = fin_sent;
        self.board.clear();
        self.timers = Timers::default();
        self.recovery = Recovery::default();
    }

    /// Fills in what the sender knows.
    pub fn info(&self, info: &mut Info) {
        let mss = u64::from(self.mss().max(1));
        let packets = |bytes: u64| u32::try_from(bytes.div_ceil(mss)).unwrap_or(u32::MAX);
        info.ca_state = self.recovery.ca_state();
        info.backoff = self.timers.backoff();
        info.last_data_sent = self.last_data_sent;
        info.chrono = self.chrono.clone();
        info.reordering = self.counters.reordering.max(DUP_THRESHOLD);
        info.delivered = self.counters.delivered;
        info.rto = self.rtt.rto();
        info.snd_mss = self.mss();
        info.unacked = packets(self.board.outstanding());
        info.sacked = packets(self.board.sacked() + self.recovery.reno_sacked());
        info.lost = packets(self.board.lost());
        info.retrans = packets(self.board.retrans());
        info.rtt = self.rtt.srtt().unwrap_or_default();
        info.rttvar = self.rtt.rttvar();
        info.min_rtt = self.rtt.min_rtt().unwrap_or_default();
        info.snd_ssthresh = self.congestion.ssthresh().map_or(u32::MAX, packets);
        info.snd_cwnd = packets(self.congestion.cwnd());
        info.snd_wnd = self.snd_wnd;
        info.total_retrans = u64::from(self.counters.total_retrans);
        info.total_rto = u64::from(self.counters.total_rto);
        info.tail_probes = u64::from(self.counters.tail_probes);
        info.recoveries = u64::from(self.counters.recoveries);
        info.undone = u64::from(self.counters.undone);
        info.retransmits = self.timers.retransmits();
        info.probes = self.timers.probes();
        info.pacing_rate = self.pacer.rate();
        info.bytes_acked = self.acked_offset();
        info.bytes_sent = self.counters.bytes_sent;
        info.bytes_retrans = self.counters.bytes_retrans;
        info.notsent_bytes = self.unsent();
        info.dsack_dups = u64::from(self.counters.dsack_dups);
        info.mtu_black_holes = u64::from(self.path.black_holes());
        info.reord_seen = u64::from(self.counters.reord_seen);
        info.delivered_ce = self.counters.delivered_ce;
        info.ecn_reductions = u64::from(self.counters.ecn_reductions);
        if let Some(reports) = &self.reports {
            let bytes = reports.bytes();
            (info.delivered_e1_bytes, info.delivered_e0_bytes) = (bytes.ect1, bytes.ect0);
            info.delivered_ce_bytes = bytes.ce;
        }
    }

    /// Returns the number of the byte at `offset`.
    fn seq_of(&self, offset: u64) -> SeqNum {
        // Numbers wrap at 2^32, offsets do not.
        self.first + (offset as u32) as usize
    }

    /// Returns the offset of a number near SND.UNA; below 0 for numbers before the stream.
    fn offset_of(&self, seq: SeqNum) -> i64 {
        self.snd_una.cast_signed() + i64::from(seq - self.snd_una())
    }

    /// Returns the payload bytes that never left.
    fn unsent(&self) -> u64 {
        self.queue.end().saturating_sub(self.snd_nxt)
    }

    /// Returns the offset behind the last byte that the peer's window admits.
    fn window_end(&self) -> u64 {
        self.snd_una + u64::from(self.snd_wnd)
    }

    /// Returns the offset that the FIN takes, if it was sent.
    fn sent_fin_offset(&self) -> Option<u64> {
        self.fin_sent().then(|| self.queue.end())
    }

    fn update_pacing(&mut self) {
        let gain = match self.congestion.in_slow_start() {
            true => Gain::SLOW_START,
            false => Gain::AVOIDANCE,
        };
        let (cwnd, srtt) = (self.congestion.cwnd(), self.rtt.srtt());
        self.pacer.on_window(cwnd, srtt, gain);
    }
}

/// Returns whole milliseconds, at least one: what `TCP_USER_TIMEOUT` counts in.
fn millis(timeout: Duration) -> NonZeroU32 {
    let millis = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
    NonZeroU32::new(millis).unwrap_or(NonZeroU32::MIN)
}
