//! The sending half of a connection: which bytes may be sent now, and which must be sent again.
//!
//! State, in groups by what may change them:
//! - [`SendSpace`] (`space.rs`): SND.UNA, SND.NXT, SND.WND: ACKs and sending,
//! - [`SendQueue`] (`send_queue.rs`): what is queued, and what the writer has said of it: the writer's calls,
//! - [`PacketSize`] (`packets.rs`, `path.rs`): sizes of packets: the path, the NIC, timeouts of large packets,
//! - [`Flight`] (`flight.rs`): scoreboard, round-trip time, RACK: sending and ACKs,
//! - [`Recovery`] (`recovery.rs`, `prr.rs`): the state of loss recovery: what ACKs and timeouts show,
//! - [`Rate`] (`rate.rs`): congestion window and pacing: the decisions of `Recovery`,
//! - [`SendTimers`] (`timers.rs`): the one timer that is armed at a time: all events.
//!
//! `Recovery` and `SendTimers` decide, and get nothing else to change. The events:
//! - `ack.rs`: an acknowledgement comes in,
//! - `repair.rs`: carries out the decisions about losses and the window,
//! - `output.rs`: the next segment,
//! - `timeout.rs`: carries out the decisions of the timers.
//!
//! SND.NXT never moves back: ranges to be sent again are marked in the [`Scoreboard`](crate::scoreboard::Scoreboard).

mod ack;
mod admission;
mod counters;
mod event;
mod flight;
mod incoming;
mod output;
mod packets;
mod path;
mod prr;
mod rate;
mod recovery;
mod repair;
mod send_queue;
mod skbs;
mod space;
#[cfg(test)]
mod tests;
mod timeout;
mod timers;

use core::time::Duration;
use netmem::Payload;
use wire::{Ecn, Instant};

use crate::config::ORPHAN_TIMEOUT;
use crate::config::connection::ConnectionConfig;
use crate::context::Context;
use crate::ecn::accecn::Reports;
use crate::info::Info;
use crate::options::{Negotiated, TimestampClock};
use crate::rtt::RttEstimator;
use crate::seqnum::SeqNum;
use crate::settings::Settings;
use counters::Counters;
use flight::Flight;
pub use incoming::{AckKind, IncomingAck};
pub(crate) use packets::Bundling;
use packets::PacketSize;
use path::PathMss;
use rate::Rate;
use recovery::Recovery;
use send_queue::SendQueue;
use space::SendSpace;
use timers::SendTimers;

/// A part of the send queue that may leave now, in packets of [`Sender::mss`].
#[derive(Debug)]
pub struct DataSegment<P> {
    /// Number of the first byte.
    pub seq: SeqNum,
    /// A second owner of the queue's bytes; empty for a FIN alone and for a window probe.
    pub payload: P,
    /// The FIN goes behind the payload.
    pub fin: bool,
    /// PSH: the writer has nothing more at the moment.
    pub push: bool,
    /// A window probe or tail loss probe.
    pub probe: bool,
    /// The ECN field of its packets; with RFC 3168, [`Ecn::NotEct`] for retransmissions and packets without payload (6.1.4,
    /// 6.1.5).
    pub ecn: Ecn,
    /// CWR: the window was reduced since the last new data (RFC 3168 6.1.2).
    pub cwr: bool,
}

/// Results of the handshake that concern the sender.
#[derive(Debug, Clone, Copy)]
pub struct Established {
    /// The negotiated options; [`Negotiated::snd_mss`] limits the payload of a packet.
    pub negotiated: Negotiated,
    /// The peer's first window, scaled.
    pub window: u32,
    /// SEG.SEQ of the segment that brought it.
    pub seq: SeqNum,
    /// The clock of our timestamps, which [`IncomingAck::ts_echo`] echoes.
    pub clock: TimestampClock,
    /// Round-trip time of the handshake, if the SYN was sent only once (RFC 6298 3, Karn).
    pub handshake_rtt: Option<Duration>,
    /// The SYN or SYN-ACK was lost: RFC 6928 2 and RFC 6298 5.7 start slower then.
    pub handshake_timed_out: bool,
}

/// The sending half of a connection: send queue, SND.UNA, SND.NXT, SND.WND, loss recovery, congestion control and timers.
#[derive(Debug)]
pub struct Sender<P> {
    space: SendSpace,
    pub(crate) queue: SendQueue<P>,
    packets: PacketSize,
    flight: Flight,
    recovery: Recovery,
    rate: Rate,
    timers: SendTimers,
    /// AccECN's reports about our packets.
    reports: Option<Box<Reports>>,
    counters: Counters,
    /// No program is left: the time without progress is limited.
    is_orphan: bool,
}

impl<P: Payload> Sender<P> {
    /// Returns a sender whose SYN takes `iss`; nothing is sent yet.
    pub fn new(config: &ConnectionConfig, settings: &Settings, iss: SeqNum) -> Self {
        let shared = &config.shared;
        let path = PathMss::new(shared.mtu_probing);
        let mut queue = SendQueue::default();
        if shared.tuning.fills_super_segments {
            queue.note_pushes();
        }
        Sender {
            space: SendSpace::new(iss),
            queue,
            packets: PacketSize::new(config.super_payload(), path),
            flight: Flight::new(RttEstimator::new(&shared.timers)),
            recovery: Recovery::default(),
            rate: Rate::new(settings.congestion, shared.pacing, iss.0.into()),
            timers: SendTimers::default(),
            reports: None,
            counters: Counters::default(),
            is_orphan: false,
        }
    }

    /// Takes the results of the handshake: SND.UNA = ISS + 1.
    pub fn on_established(&mut self, established: &Established, cx: &Context<'_>) {
        let now = cx.now;
        let negotiated = &established.negotiated;
        self.packets.open(negotiated.snd_mss);
        self.flight.open(negotiated.sack, established.clock);
        if cx.shared().tuning.repeats_super_segments_apart {
            self.flight.board.keep_apart();
        }
        self.space.open(established.window, established.seq);
        // The SYN.
        self.counters.delivered = 1;
        self.flight.last_sent = now;
        self.counters.last_data_sent = now;
        if let Some(rtt) = established.handshake_rtt {
            self.flight.on_handshake_rtt(rtt, now);
        }
        let segments = if established.handshake_timed_out {
            self.flight.rtt.on_lost_syn();
            1
        } else {
            cx.shared().initial_cwnd
        };
        let cwnd = u64::from(segments) * u64::from(self.packets.mss);
        let srtt = self.flight.rtt.srtt();
        self.rate.open(cwnd, srtt, negotiated.ecn);
        self.rate.update_pacing(srtt);
    }

    /// Returns a second owner of the first queued bytes, at most `most`, for a SYN (RFC 7413). They do not count as sent.
    pub(crate) fn early_payload(&self, most: u16) -> P {
        self.queue
            .share(self.queue.range_at(0, most.into()))
            .payload
    }

    /// Notes that the SYN had the first `sent` queued bytes, and the SYN-ACK acknowledged `acked` of them. The others were
    /// dropped on the way, or refused: they are sent again, and the congestion window stays (linux
    /// `tcp_rcv_fastopen_synack`).
    pub(crate) fn on_early_sent(&mut self, sent: u32, acked: u32, now: Instant) {
        self.space.advance_nxt(acked);
        let una = self.space.nxt();
        let _ = self.space.advance_una(una);
        self.queue.release(una);
        self.counters.bytes_sent += u64::from(sent);
        let lost = self.queue.range_at(una, sent.saturating_sub(acked));
        if lost.len > 0 {
            self.flight.on_sent(lost, self.mss(), now);
            self.space.advance_nxt(lost.len);
            self.flight.board.mark_lost_where(|_, _| true);
            self.recovery.repeat_without_reduction(self.space.nxt());
        }
    }

    /// Takes the ACK of a SYN-ACK after which payload may have been sent already (RFC 7413).
    pub(crate) fn on_late_handshake(&mut self, rtt: Option<Duration>, now: Instant) {
        match rtt {
            Some(rtt) => self.flight.on_handshake_rtt(rtt, now),
            None => self.flight.rtt.on_lost_syn(),
        }
        self.rate.update_pacing(self.flight.rtt.srtt());
        // What was sent since has waited for this ACK: its timer starts now (linux `tcp_rcv_synrecv_state_fastopen`).
        self.timers.restart(now);
    }

    /// Returns the retransmission timeouts in a row.
    pub(crate) fn retransmits(&self) -> u8 {
        self.timers.attempts.retransmits
    }

    /// Returns how many sequence numbers are sent and not acknowledged.
    pub fn in_flight(&self) -> usize {
        (self.space.nxt() - self.space.una()) as usize
    }

    /// Returns the stream offset behind the last byte that was sent at least once.
    pub fn sent_offset(&self) -> u64 {
        self.space.nxt().min(self.queue.end())
    }

    /// Returns the stream offset up to which every byte is acknowledged; the bytes below it are released.
    pub fn acked_offset(&self) -> u64 {
        self.space.una().min(self.queue.end())
    }

    /// Returns whether the FIN was sent at least once.
    pub fn fin_sent(&self) -> bool {
        self.queue.has_fin_before(self.space.nxt())
    }

    /// Returns whether the FIN is acknowledged.
    pub fn fin_acked(&self) -> bool {
        self.queue.has_fin_before(self.space.una())
    }

    /// Returns whether everything queued was sent and acknowledged, a FIN included.
    pub fn all_acked(&self) -> bool {
        self.space.una() == self.queue.stream_end()
    }

    /// Returns SND.UNA, the oldest sequence number that is not acknowledged.
    pub fn snd_una(&self) -> SeqNum {
        self.space.seq_of(self.space.una())
    }

    /// Returns SND.NXT, the sequence number of ACKs and RSTs. It never moves back.
    pub fn snd_nxt(&self) -> SeqNum {
        self.space.seq_of(self.space.nxt())
    }

    /// Returns the payload bytes of a full packet.
    pub fn mss(&self) -> u16 {
        self.packets.mss(self.space.max_wnd())
    }

    /// Begins to interpret AccECN's fields of incoming ACKs.
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

    /// Chooses whether packets leave as super-segments or one by one.
    pub(crate) fn set_bundling(&mut self, bundling: Bundling) {
        self.packets.bundling = bundling;
    }

    /// Sends small segments that are held back, once, corked or not.
    pub fn flush(&mut self) {
        if self.packets.is_open() && self.unsent() > 0 {
            self.timers.flush_small();
        }
    }

    /// Takes changes of the settings that have an effect at once: another congestion control, whose window stays, and
    /// TCP_CORK, which is off again.
    pub fn on_settings(&mut self, settings: &Settings) {
        let seed = self.space.seq_of(0).0.into();
        self.rate
            .change(settings.congestion, seed, self.flight.rtt.srtt());
        if !settings.cork {
            self.queue.forget_more();
        }
    }

    /// Limits the time without progress: no program is left that could give up.
    pub(crate) fn orphan(&mut self) {
        self.is_orphan = true;
    }

    /// Returns how long the connection waits while nothing is acknowledged (RFC 5482).
    ///
    /// This also limits how long a closed window is probed. Without it, a peer that answers probes may keep its window
    /// closed for ever (RFC 9293 3.8.6.1).
    fn user_timeout(&self, settings: &Settings) -> Option<Duration> {
        match (self.is_orphan, settings.user_timeout) {
            (false, timeout) => timeout,
            (true, timeout) => Some(timeout.map_or(ORPHAN_TIMEOUT, |it| it.min(ORPHAN_TIMEOUT))),
        }
    }

    /// Adapts to a path that carries only packets with `mss` bytes of payload.
    ///
    /// Larger packets that are not acknowledged are sent again in smaller ones. The congestion window stays: the amount of
    /// data in the network does not grow (linux `tcp_simple_retransmit`).
    pub fn on_mtu(&mut self, mss: u16, cx: &Context<'_>) {
        if let Some(smaller) = self.packets.on_mtu(mss) {
            self.retransmit_larger_than(smaller);
            self.schedule(cx);
        }
    }

    /// Returns the largest payload of a packet that the peer and the network allow, as far as they said.
    pub(crate) fn allowed_mss(&self) -> u16 {
        self.packets.path.ceiling()
    }

    /// Fills in the facts that the sender knows.
    pub fn info(&self, info: &mut Info) {
        let mss = u64::from(self.mss().max(1));
        let packets = |bytes: u64| u32::try_from(bytes.div_ceil(mss)).unwrap_or(u32::MAX);
        let (board, rtt) = (&self.flight.board, &self.flight.rtt);
        self.counters.info(info);
        info.ca_state = self.recovery.phase().into();
        info.backoff = self.timers.backoff();
        info.retransmits = self.timers.attempts.retransmits;
        info.probes = self.timers.attempts.probes;
        info.snd_mss = self.mss();
        info.snd_wnd = self.space.wnd();
        info.unacked = packets(board.outstanding());
        info.sacked = packets(self.flight.out_of_order());
        info.lost = packets(board.lost());
        info.retrans = packets(board.retrans());
        info.rto = rtt.rto();
        info.rtt = rtt.srtt().unwrap_or_default();
        info.rttvar = rtt.rttvar();
        info.min_rtt = rtt.min_rtt().unwrap_or_default();
        info.snd_ssthresh = self.rate.congestion.ssthresh().map_or(u32::MAX, packets);
        info.snd_cwnd = packets(self.rate.congestion.cwnd());
        info.pacing_rate = self.rate.pacer.rate();
        info.bytes_acked = self.acked_offset();
        info.notsent_bytes = self.unsent();
        info.mtu_black_holes = u64::from(self.packets.path.black_holes());
        if let Some(reports) = &self.reports {
            let bytes = reports.bytes();
            (info.delivered_e1_bytes, info.delivered_e0_bytes) = (bytes.ect1, bytes.ect0);
            info.delivered_ce_bytes = bytes.ce;
        }
    }

    /// Returns the payload bytes that were never sent.
    pub(crate) fn unsent(&self) -> u64 {
        self.queue.unsent(self.space.nxt())
    }

    /// Returns the offset that the FIN takes, if it was sent.
    fn sent_fin_offset(&self) -> Option<u64> {
        self.fin_sent().then(|| self.queue.end())
    }
}
