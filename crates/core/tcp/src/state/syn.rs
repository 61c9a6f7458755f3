//! SYN-SENT and SYN-RECEIVED, of active and passive opens (RFC 9293 3.5, 3.10.7.3).

use core::time::Duration;

use netmem::Payload;
use wire::Instant;

use crate::config::connection::ConnectionConfig;
use crate::config::{EcnMode, MAX_UNSCALED_WINDOW};
use crate::context::Context;
use crate::ecn;
use crate::ecn::accecn::negotiation;
use crate::ecn::agreed::Agreed;
use crate::error::TcpError;
use crate::options::{
    Negotiated, TimestampClock, TsRecent, ack_options, syn_ack_options, syn_options,
};
use crate::receiver::ReceiverStart;
use crate::segment::{Control, Segment};
use crate::segment_drop::SegmentDrop;
use crate::seqnum::SeqNum;
use crate::settings::Settings;
use crate::timers::HandshakeTimer;

/// SYN-SENT: our SYN is sent.
#[derive(Debug)]
pub(crate) struct SynSent {
    iss: SeqNum,
    timer: HandshakeTimer,
    clock: TimestampClock,
    offer: SpaceOffer,
    /// Bytes of payload that our SYN had (RFC 7413).
    early: u16,
}

/// Receive space of a handshake: what the caller grants now, and what our SYN has promised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SpaceOffer {
    pub(crate) space: u32,
    /// The window field of our SYN, which is never scaled (RFC 7323 2.2).
    pub(crate) syn_window: u16,
}

impl SpaceOffer {
    /// Returns the offer of `space` bytes, or of the whole receive buffer, if that is smaller.
    ///
    /// If the first window were larger than the buffer, silly window avoidance would take it as the measure: with a buffer of
    /// less than a segment, no later gain would be large enough, and the window would stay closed (RFC 9293 3.8.6.2.2).
    pub(crate) fn new(space: u32, settings: &Settings, config: &ConnectionConfig) -> SpaceOffer {
        let (tuning, buffer) = (&config.shared.tuning, settings.rcv_buf_max);
        let space = space.min(buffer);
        let window = tuning.first_window(space, buffer, config.mss(settings));
        SpaceOffer {
            space,
            syn_window: window.min(MAX_UNSCALED_WINDOW) as u16,
        }
    }
}

/// SYN-RECEIVED: the peer's SYN is received, the ACK of ours is missing.
#[derive(Debug, Clone)]
pub(crate) struct SynReceived {
    iss: SeqNum,
    irs: SeqNum,
    timer: HandshakeTimer,
    clock: TimestampClock,
    offer: SpaceOffer,
    negotiated: Negotiated,
    agreed: Agreed,
    /// ECN as agreed so far; the last ACK shows whether the path changes codepoints.
    validates_ecn: bool,
    ts_recent: Option<TsRecent>,
    /// What the user has closed before the connection opened.
    pub(crate) closing: EarlyClose,
    /// The handshake is done, and the listener waits for data.
    deferred: bool,
    /// Bytes of payload that our SYN had, in a simultaneous open.
    early: u16,
    /// An ACK without SYN is due.
    ack_due: bool,
}

/// What the user closed during the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum EarlyClose {
    #[default]
    No,
    /// A FIN follows the handshake.
    Write,
    /// A FIN follows the handshake, and data from the peer is refused.
    Both,
}

/// Result of a handshake.
#[derive(Debug, Clone)]
pub(crate) struct Handshake {
    pub(crate) iss: SeqNum,
    pub(crate) negotiated: Negotiated,
    pub(crate) agreed: Agreed,
    /// The peer opened: its ACK of our SYN-ACK ends the handshake, and the flags of that ACK do not count marks.
    pub(crate) opened_by_peer: bool,
    pub(crate) clock: TimestampClock,
    /// The peer's first window, scaled, and the segment that brought it.
    pub(crate) window: u32,
    pub(crate) window_seq: SeqNum,
    pub(crate) receiver: ReceiverStart,
    pub(crate) rtt: Option<Duration>,
    pub(crate) timed_out: bool,
    /// Bytes of our SYN's payload.
    pub(crate) early_sent: u32,
    /// How many of them are acknowledged.
    pub(crate) early_acked: u32,
}

/// Effect of a segment on a handshake.
#[derive(Debug)]
pub(crate) enum SynVerdict {
    Drop(SegmentDrop),
    /// The segment is dropped, and the next `poll_send` answers it: our SYN-ACK again, or an ACK.
    Answer(SegmentDrop),
    /// The segment is dropped, and [`Segment::reset_for`] answers it; the handshake goes on.
    Reset(SegmentDrop),
    /// The peer refuses the connection.
    Refused,
    /// Both sides opened at once.
    Simultaneous(SynReceived),
    Established(Handshake),
}

impl SynSent {
    pub(crate) fn new(iss: SeqNum, cx: &Context<'_>) -> SynSent {
        SynSent {
            iss,
            timer: HandshakeTimer::new(cx.shared().timers.syn_linear_timeouts, cx.now),
            clock: TimestampClock::new(cx.config.timestamp_offset),
            offer: SpaceOffer::new(cx.settings.rcv_space_initial, cx.settings, cx.config),
            early: 0,
        }
    }

    /// Checks a segment as RFC 9293 3.10.7.3: ACK, RST, SYN, in this order.
    pub(crate) fn on_segment<P: Payload>(
        &mut self,
        segment: &Segment<P>,
        cx: &Context<'_>,
    ) -> SynVerdict {
        let now = cx.now;
        let early_acked = early_acked(segment.ack, self.iss, self.early);
        let is_acked = early_acked.is_some() && self.timer.is_sent();
        if segment.ack.is_some() && !is_acked {
            return match segment.control {
                Control::Rst => SynVerdict::Drop(SegmentDrop::BlindRst),
                _ => SynVerdict::Reset(SegmentDrop::FutureAck),
            };
        }
        if self.is_echo_forged(segment, cx) {
            return SynVerdict::Reset(SegmentDrop::Paws);
        }
        match segment.control {
            Control::Rst if is_acked => SynVerdict::Refused,
            Control::Rst => SynVerdict::Drop(SegmentDrop::BlindRst),
            Control::None | Control::Fin => SynVerdict::Drop(SegmentDrop::NoSyn),
            Control::Syn => {
                let mut both = SynReceived::new((self.iss, self.clock), segment, self.offer, cx);
                let kind = cx.settings.congestion;
                both.agreed = ecn::answered(&cx.shared().ecn, kind, segment);
                both.early = self.early;
                match is_acked {
                    true => SynVerdict::Established(Handshake {
                        rtt: self.timer.rtt(now),
                        timed_out: self.timer.timed_out(),
                        early_acked: early_acked.unwrap_or(0),
                        // The window of a SYN is never scaled (RFC 7323 2.2).
                        ..both.handshake(u32::from(segment.window), segment.seq, now)
                    }),
                    false => SynVerdict::Simultaneous(both),
                }
            }
        }
    }

    /// Returns whether a SYN-ACK echoes a timestamp that none of our SYNs had (linux `tcp_rcv_synsent_state_process`).
    fn is_echo_forged<P: Payload>(&self, segment: &Segment<P>, cx: &Context<'_>) -> bool {
        let (Control::Syn, Some(_), Some(ts)) =
            (segment.control, segment.ack, segment.options.timestamps)
        else {
            return false;
        };
        let since_first = |value: u32| value.wrapping_sub(self.clock.value(self.timer.opened()));
        cx.shared().timestamps
            && ts.echo != 0
            && since_first(ts.echo) > since_first(self.clock.value(cx.now))
    }

    pub(crate) fn poll_send<P: Payload>(&mut self, cx: &Context<'_>) -> Option<Segment<P>> {
        let now = cx.now;
        let (kind, retries) = (cx.settings.congestion, self.timer.retries());
        let asks = ecn::asks(&cx.shared().ecn, kind, retries);
        self.timer.poll_send(&cx.shared().timers, now).then(|| {
            let mut syn = Segment {
                seq: self.iss,
                control: Control::Syn,
                window: self.offer.syn_window,
                options: syn_options(cx, self.clock.value(now)),
                ..Segment::default()
            };
            ecn::ask(&mut syn, asks);
            syn
        })
    }

    pub(crate) fn on_timer(&mut self, cx: &Context<'_>) -> Result<(), TcpError> {
        let (timers, retries) = (&cx.shared().timers, cx.settings.syn_retries);
        self.timer
            .on_timer(timers, retries, cx.settings.user_timeout, cx.now)
    }

    pub(crate) fn next_timer(&self) -> Option<Instant> {
        self.timer.next_timer()
    }

    pub(crate) fn iss(&self) -> SeqNum {
        self.iss
    }

    /// Returns how often the SYN was repeated.
    pub(crate) fn retries(&self) -> u8 {
        self.timer.retries()
    }

    /// Makes the SYN due again.
    pub(crate) fn repeat(&mut self) {
        self.timer.request();
    }

    /// Notes that a SYN has `len` bytes of payload; repetitions have none.
    pub(crate) fn note_early(&mut self, len: u16) {
        self.early = self.early.max(len);
    }

    pub(crate) fn offer(&self) -> SpaceOffer {
        self.offer
    }

    /// Sets the receive space; the promise of a SYN that was sent stays.
    pub(crate) fn set_space(&mut self, bytes: u32, settings: &Settings, config: &ConnectionConfig) {
        match self.timer.is_sent() {
            true => self.offer.space = bytes,
            false => self.offer = SpaceOffer::new(bytes, settings, config),
        }
    }
}

/// Returns how many bytes of our SYN's payload `ack` acknowledges; `None` if it does not acknowledge the SYN `iss`, or more
/// than it had.
fn early_acked(ack: Option<SeqNum>, iss: SeqNum, early: u16) -> Option<u32> {
    let acked = u32::try_from(ack? - (iss + 1)).ok()?;
    (acked <= u32::from(early)).then_some(acked)
}

impl SynReceived {
    /// Returns the state of a passive open after the peer's SYN `syn`; `ours` are our ISS and timestamp clock.
    pub(crate) fn new<P: Payload>(
        ours: (SeqNum, TimestampClock),
        syn: &Segment<P>,
        offer: SpaceOffer,
        cx: &Context<'_>,
    ) -> SynReceived {
        let ecn = &cx.shared().ecn;
        let negotiated = Negotiated::new(cx, &syn.options);
        let timestamps = syn.options.timestamps.filter(|_| negotiated.timestamps);
        SynReceived {
            iss: ours.0,
            irs: syn.seq,
            timer: HandshakeTimer::new(0, cx.now),
            clock: ours.1,
            offer,
            negotiated,
            agreed: ecn::granted(ecn, cx.settings.congestion, syn),
            validates_ecn: ecn.fallback,
            ts_recent: timestamps.map(|ts| TsRecent::new(ts.value, cx.now)),
            closing: EarlyClose::No,
            deferred: false,
            early: 0,
            ack_due: false,
        }
    }

    /// Returns whether a segment that completes the handshake does not open the connection because it has no data, and
    /// remembers the segment (linux `tcp_check_req`).
    pub(crate) fn defers<P: Payload>(&mut self, segment: &Segment<P>, settings: &Settings) -> bool {
        let is_bare = segment.payload.is_empty() && segment.control == Control::None;
        let defers = is_bare && self.timer.retries() < settings.defer_accept;
        self.deferred |= defers;
        defers
    }

    /// Checks a segment: sequence number, RST, SYN, ACK (RFC 9293 3.10.7.4).
    ///
    /// A repeated SYN of the peer is answered with our SYN-ACK, any other unacceptable segment with an ACK
    /// (linux `tcp_check_req`).
    pub(crate) fn on_segment<P: Payload>(
        &mut self,
        segment: &Segment<P>,
        now: Instant,
    ) -> SynVerdict {
        let rcv_nxt = self.irs + 1;
        let is_exact = segment.seq == rcv_nxt;
        let is_inside = segment.seq.after_eq(rcv_nxt) && segment.seq.before_eq(self.right_edge());
        if segment.control == Control::Rst {
            return match (is_exact, is_inside) {
                (true, _) => SynVerdict::Refused,
                (false, true) => self.acknowledge(SegmentDrop::InexactRst),
                (false, false) => SynVerdict::Drop(SegmentDrop::BlindRst),
            };
        }
        // A segment without a timestamp is accepted, as in ESTABLISHED.
        if let (Some(recent), Some(ts)) = (self.ts_recent, segment.options.timestamps)
            && recent.rejects(ts.value, now)
        {
            return self.acknowledge(SegmentDrop::Paws);
        }
        // The peer's SYN-ACK of a simultaneous open begins before RCV.NXT and completes the handshake
        // (RFC 9293 3.5).
        let is_their_syn = segment.control == Control::Syn && segment.seq == self.irs;
        let acked = early_acked(segment.ack, self.iss, self.early);
        match segment.ack {
            _ if segment.control == Control::Syn && !is_their_syn => {
                self.acknowledge(SegmentDrop::UnexpectedSyn)
            }
            None if is_their_syn => {
                self.repeat(segment);
                SynVerdict::Answer(SegmentDrop::Duplicate)
            }
            None => SynVerdict::Drop(SegmentDrop::NoAck),
            _ if !is_inside && !is_their_syn => self.acknowledge(SegmentDrop::OutOfWindow),
            Some(_) if acked.is_none() => SynVerdict::Reset(SegmentDrop::FutureAck),
            Some(_) => {
                let scale = if is_their_syn {
                    0
                } else {
                    self.negotiated.snd_wscale
                };
                let window = u32::from(segment.window) << scale;
                let mut handshake = self.handshake(window, segment.seq, now);
                handshake.early_acked = acked.unwrap_or(0);
                if !is_their_syn {
                    handshake.agreed = self.agreed.after_third_ack(segment, self.validates_ecn);
                    handshake.opened_by_peer = true;
                }
                SynVerdict::Established(handshake)
            }
        }
    }

    /// Returns the result of the handshake.
    pub(crate) fn handshake(&self, window: u32, window_seq: SeqNum, now: Instant) -> Handshake {
        Handshake {
            iss: self.iss,
            negotiated: self.negotiated,
            agreed: self.agreed,
            opened_by_peer: false,
            clock: self.clock,
            window,
            window_seq,
            receiver: ReceiverStart {
                rcv_nxt: self.irs + 1,
                right_edge: self.right_edge(),
                space: self.offer.space,
                ts_recent: self.ts_recent,
            },
            rtt: self.timer.rtt(now),
            timed_out: self.timer.timed_out(),
            early_sent: self.early.into(),
            early_acked: 0,
        }
    }

    /// Returns the receive space, and what our SYN-ACK has promised of it.
    fn right_edge(&self) -> SeqNum {
        self.irs + 1 + usize::from(self.offer.syn_window)
    }

    pub(crate) fn poll_send<P: Payload>(&mut self, cx: &Context<'_>) -> Option<Segment<P>> {
        if core::mem::take(&mut self.ack_due) {
            return Some(self.bare_ack(cx.now));
        }
        let is_due = self.timer.poll_send(&cx.shared().timers, cx.now);
        // While the listener waits for data, the SYN-ACK is repeated only once, before the end (linux `syn_ack_recalc`).
        let is_silent = self.deferred && self.timer.retries() + 1 < cx.settings.defer_accept;
        (is_due && !is_silent).then(|| self.syn_ack(cx))
    }

    pub(crate) fn has_accecn(&self) -> bool {
        self.agreed.mode == EcnMode::Accurate
    }

    /// Returns the round-trip time of the handshake, if the SYN-ACK was sent only once.
    pub(crate) fn rtt(&self, now: Instant) -> Option<Duration> {
        self.timer.rtt(now)
    }

    /// Returns an ACK without SYN.
    fn bare_ack<P: Payload>(&self, now: Instant) -> Segment<P> {
        Segment {
            seq: self.iss + 1,
            ack: Some(self.irs + 1),
            window: self.offer.syn_window >> self.negotiated.rcv_wscale,
            options: ack_options(self.ts_recent.map(TsRecent::value), self.clock.value(now)),
            ..Segment::default()
        }
    }

    fn syn_ack<P: Payload>(&self, cx: &Context<'_>) -> Segment<P> {
        let mut options = syn_ack_options(
            cx,
            &self.negotiated,
            self.ts_recent,
            self.clock.value(cx.now),
        );
        if self.agreed.mode == EcnMode::Accurate
            && cx.shared().ecn.accecn_option
            && !self.timer.is_repeat()
        {
            // The option may be the reason why a SYN-ACK is lost (RFC 9768 3.2.3.2.2).
            options.accecn = Some(negotiation::first_option(&self.agreed));
        }
        let mut syn_ack = Segment {
            seq: self.iss,
            ack: Some(self.irs + 1),
            control: Control::Syn,
            window: self.offer.syn_window,
            options,
            ..Segment::default()
        };
        ecn::grant(&mut syn_ack, &self.agreed, self.timer.retries());
        syn_ack
    }

    /// Makes an ACK due.
    fn acknowledge(&mut self, reason: SegmentDrop) -> SynVerdict {
        self.ack_due = true;
        SynVerdict::Answer(reason)
    }

    /// Makes our SYN-ACK due again: the peer repeated its SYN, or sent an unacceptable segment.
    pub(crate) fn repeat<P>(&mut self, segment: &Segment<P>) {
        if segment.control == Control::Syn {
            self.agreed.on_repeated_syn(segment);
        }
        self.timer.request();
    }

    pub(crate) fn on_timer(&mut self, cx: &Context<'_>) -> Result<(), TcpError> {
        let timers = &cx.shared().timers;
        // A peer that has completed the handshake gets the whole time of TCP_DEFER_ACCEPT.
        let retries = match self.deferred {
            true => timers.syn_ack_retries.max(cx.settings.defer_accept),
            false => timers.syn_ack_retries,
        };
        self.timer
            .on_timer(timers, retries, cx.settings.user_timeout, cx.now)
    }

    pub(crate) fn next_timer(&self) -> Option<Instant> {
        self.timer.next_timer()
    }

    pub(crate) fn iss(&self) -> SeqNum {
        self.iss
    }

    pub(crate) fn irs(&self) -> SeqNum {
        self.irs
    }

    pub(crate) fn offer(&self) -> SpaceOffer {
        self.offer
    }

    /// Sets the receive space; the promise of our SYN stays.
    pub(crate) fn set_space(&mut self, bytes: u32) {
        self.offer.space = bytes;
    }
}
