//! ESTABLISHED and the states that close a connection: checks of segments in the order of RFC 9293 3.10.7.4.
//! `output.rs` has the segments that are sent.

mod marks;
mod output;

use netmem::Payload;
use wire::Instant;

use crate::config::EcnMode;
use crate::context::Context;
use crate::disposition::{Disposition, Next};
use crate::ecn::accecn::Accurate;
use crate::error::TcpError;
use crate::info::Info;
use crate::options::{Negotiated, TimestampClock};
use crate::receiver::{Accepted, Receiver};
use crate::recv_queue::RecvQueue;
use crate::segment::{Control, Segment};
use crate::segment_drop::SegmentDrop;
use crate::sender::{AckKind, Established, IncomingAck, Sender};
use crate::seqnum::SeqNum;
use crate::state::closing::TimeWaitFields;
use crate::state::opening::Opening;
use crate::state::syn::Handshake;
use crate::state_kind::StateKind;
use crate::timers::{KeepaliveTimer, ReplyLimit};

/// A connection whose two SYNs are acknowledged.
#[derive(Debug)]
pub(crate) struct Synchronized<P> {
    kind: StateKind,
    pub(crate) sender: Sender<P>,
    pub(crate) receiver: Receiver<P>,
    pub(crate) negotiated: Negotiated,
    clock: TimestampClock,
    pub(crate) keepalive: KeepaliveTimer,
    replies: ReplyLimit,
    /// With AccECN only.
    pub(crate) accurate: Option<Box<Accurate>>,
    reading: Reading,
    /// When a closed connection stops waiting for the peer's FIN.
    linger: Option<Instant>,
    pub(crate) counters: SegmentCounters,
    /// When payload last arrived.
    last_data_recv: Instant,
    /// The rest of the handshake, if the peer's SYN opened the connection (RFC 7413).
    opening: Option<Box<Opening>>,
}

/// Whether the user reads payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reading {
    On,
    /// It was shut down; what arrives can still be read.
    ShutDown,
    /// The user has closed: payload is not read any more.
    Gone,
}

/// Counters of incoming segments for [`Info`].
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct SegmentCounters {
    bytes_received: u64,
    data_segs_in: u64,
    out_of_order_in: u64,
    challenge_acks: u64,
    paws_rejected: u64,
}

/// Result of a segment's processing.
type SegmentVerdict = (Disposition, Next);

impl<P: Payload> Synchronized<P> {
    /// Returns the connection after a handshake: ESTABLISHED. `sender` has the payload of our SYN, if Fast Open was used.
    pub(crate) fn new(
        handshake: &Handshake,
        sender: Option<Sender<P>>,
        cx: &Context<'_>,
    ) -> Synchronized<P> {
        let Context {
            settings,
            config,
            now,
        } = *cx;
        let Handshake {
            iss,
            negotiated,
            agreed,
            opened_by_peer,
            clock,
            window,
            window_seq,
            receiver,
            rtt,
            timed_out,
            early_sent,
            early_acked,
        } = *handshake;
        let negotiated = negotiated.with_ecn(agreed.mode, &config.shared.ecn);
        let mut sender = sender.unwrap_or_else(|| Sender::new(config, settings, iss));
        let established = Established {
            negotiated,
            window,
            seq: window_seq,
            clock,
            handshake_rtt: rtt,
            handshake_timed_out: timed_out,
        };
        sender.on_established(&established, cx);
        if early_sent > 0 {
            sender.on_early_sent(early_sent, early_acked, now);
        }
        let accurate = Accurate::begin(&agreed, opened_by_peer).map(|(accurate, reports)| {
            sender.set_reports(reports);
            accurate
        });
        let mut opened = Synchronized {
            kind: StateKind::Established,
            sender,
            receiver: Receiver::new(cx, &negotiated, receiver),
            negotiated,
            clock,
            keepalive: KeepaliveTimer::new(settings.keepalive, now),
            replies: ReplyLimit::new(config.shared.acks.invalid_interval),
            accurate,
            reading: Reading::On,
            linger: None,
            counters: SegmentCounters::default(),
            last_data_recv: now,
            opening: None,
        };
        if let Some(mss) = config.path_mss {
            opened.on_mtu(mss, cx);
        }
        opened
    }

    pub(crate) fn kind(&self) -> StateKind {
        self.kind
    }

    /// Processes a segment. A check that ends the processing returns its result as an error.
    pub(crate) fn on_segment(
        &mut self,
        segment: Segment<P>,
        queue: &mut RecvQueue<P>,
        cx: &Context<'_>,
    ) -> Result<SegmentVerdict, SegmentVerdict> {
        if self.opening.is_some() {
            self.check_repeated_syn(&segment)?;
        }
        self.check_timestamp(&segment, cx.now)?;
        self.check_sequence(&segment, cx.now)?;
        match segment.control {
            Control::None | Control::Fin => {}
            Control::Rst => return Err(self.on_rst(segment.seq, cx.now)),
            Control::Syn => return Err(self.on_syn(&segment, cx.now)),
        }
        let Some(ack) = segment.ack else {
            return Err(drop_silently(SegmentDrop::NoAck));
        };
        self.count_codepoint(&segment);
        self.take_ack(ack, &segment, cx)?;
        if self.opening.is_some() {
            self.end_opening(cx.now);
        }
        self.keepalive.on_heard(cx.settings.keepalive, cx.now);
        self.receiver
            .note_timestamp(segment.seq, segment.options.timestamps, cx.now);
        let fin_acked = self.note_fin_acked();
        if let Next::Closed(_) = fin_acked {
            return Err((Disposition::CLOSED, fin_acked));
        }
        let accepted = self.take_payload(segment, queue, cx.now)?;
        Ok(self.conclude(accepted, fin_acked, cx.now))
    }

    /// Answers the peer's repeated SYN with the SYN-ACK, while that is not acknowledged.
    fn check_repeated_syn(&mut self, segment: &Segment<P>) -> Result<(), SegmentVerdict> {
        match &mut self.opening {
            Some(opening)
                if segment.control == Control::Syn
                    && segment.ack.is_none()
                    && segment.seq == opening.half_open.irs() =>
            {
                opening.half_open.repeat(segment);
                Err((Disposition::answered(SegmentDrop::Duplicate), Next::Stay))
            }
            _ => Ok(()),
        }
    }

    /// Begins with the payload of the peer's SYN (RFC 7413): `syn` without its SYN. Returns why it was dropped, if it was.
    pub(crate) fn open_early(
        &mut self,
        opening: Opening,
        syn: Segment<P>,
        queue: &mut RecvQueue<P>,
    ) -> Option<SegmentDrop> {
        self.opening = Some(Box::new(opening));
        let len = syn.payload.len();
        let accepted = self.receiver.accept_early(syn, queue);
        self.counters.bytes_received += accepted.delivered as u64;
        self.counters.data_segs_in += u64::from(len > 0);
        accepted.drop
    }

    /// The peer has acknowledged the SYN-ACK.
    fn end_opening(&mut self, now: Instant) {
        if let Some(opening) = self.opening.take() {
            self.sender
                .on_late_handshake(opening.half_open.rtt(now), now);
        }
    }

    /// Returns the state that a program sees: SYN-RECEIVED until the SYN-ACK is acknowledged.
    pub(crate) fn shown_kind(&self) -> StateKind {
        match (self.kind, &self.opening) {
            (StateKind::Established, Some(_)) => StateKind::SynReceived,
            (kind, _) => kind,
        }
    }

    /// PAWS (RFC 7323 5.3). It comes before the window check, and RSTs are exempt.
    fn check_timestamp(
        &mut self,
        segment: &Segment<P>,
        now: Instant,
    ) -> Result<(), SegmentVerdict> {
        match (self.receiver.ts_recent(), segment.options.timestamps) {
            (Some(recent), Some(ts))
                if segment.control != Control::Rst && recent.rejects(ts.value, now) =>
            {
                self.counters.paws_rejected += 1;
                self.note_old(segment);
                Err(self.answer(SegmentDrop::Paws, segment, now))
            }
            // RFC 7323 3.2 says to drop a segment without timestamps; accepted as in linux `tcp_validate_incoming`.
            _ => Ok(()),
        }
    }

    /// First check: the sequence number.
    fn check_sequence(&mut self, segment: &Segment<P>, now: Instant) -> Result<(), SegmentVerdict> {
        let Err(reason) = self.receiver.check_position(segment.seq, segment.end()) else {
            return Ok(());
        };
        if segment.control == Control::Rst {
            return Err(drop_silently(SegmentDrop::BlindRst));
        }
        self.note_old(segment);
        Err(self.answer(reason, segment, now))
    }

    /// Second check: a RST ends the connection only with the exact sequence number (RFC 5961 3).
    fn on_rst(&mut self, seq: SeqNum, now: Instant) -> SegmentVerdict {
        let expected = self.receiver.rcv_nxt();
        if seq.before(expected) {
            return drop_silently(SegmentDrop::BlindRst);
        }
        if seq != expected {
            return self.challenge(SegmentDrop::InexactRst, now);
        }
        if let Some(opening) = self.opening.take() {
            opening.slot.reset(now);
        }
        self.reset()
    }

    /// Fourth check: a SYN is answered by a challenge ACK (RFC 5961 4).
    fn on_syn(&mut self, segment: &Segment<P>, now: Instant) -> SegmentVerdict {
        self.note_syn_ack(segment);
        self.challenge(SegmentDrop::UnexpectedSyn, now)
    }

    /// Ends the connection by the peer's RST; without an error if both FINs were sent (RFC 9293 3.10.7.4).
    fn reset(&mut self) -> SegmentVerdict {
        let error = match self.kind {
            StateKind::Closing | StateKind::LastAck => None,
            StateKind::CloseWait => Some(TcpError::BrokenPipe),
            _ => Some(TcpError::Reset),
        };
        (Disposition::CLOSED, Next::Closed(error))
    }

    /// Fifth check: the ACK field.
    fn take_ack(
        &mut self,
        ack: SeqNum,
        segment: &Segment<P>,
        cx: &Context<'_>,
    ) -> Result<(), SegmentVerdict> {
        let incoming = IncomingAck {
            ack,
            seq: segment.seq,
            window: u32::from(segment.window) << self.negotiated.snd_wscale,
            sack: &segment.options.sack,
            ts_echo: segment
                .options
                .timestamps
                .filter(|_| self.negotiated.timestamps)
                .map(|ts| ts.echo),
            has_data: segment.seq_len() > 0,
            ece: segment.ece,
            ace: self.trusted_ace(segment),
            accecn: segment.options.accecn.as_ref(),
            ts_progress: self.has_newer_timestamp(segment),
        };
        match self.sender.on_ack(&incoming, cx) {
            AckKind::New | AckKind::Duplicate => Ok(()),
            AckKind::TooOld => Err(self.challenge(SegmentDrop::OldAck, cx.now)),
            AckKind::Future => Err(self.challenge(SegmentDrop::FutureAck, cx.now)),
        }
    }

    /// Changes the state if our FIN is acknowledged now.
    fn note_fin_acked(&mut self) -> Next {
        if !self.sender.fin_acked() {
            return Next::Stay;
        }
        let (kind, next) = self.kind.after_fin_acked();
        self.kind = kind;
        next
    }

    /// Seventh and eighth check: payload and FIN.
    fn take_payload(
        &mut self,
        segment: Segment<P>,
        queue: &mut RecvQueue<P>,
        now: Instant,
    ) -> Result<Accepted, SegmentVerdict> {
        let (seq, len, ack) = (segment.seq, segment.payload.len(), segment.ack);
        if self.reads_no_more() && len > 0 && (seq + len).after(self.receiver.rcv_nxt()) {
            // RFC 9293 3.6.1, RFC 2525 2.17: a RST tells the peer that its bytes are lost.
            let disposition = Disposition {
                closed: true,
                ..Disposition::answered(SegmentDrop::ReaderGone)
            };
            // Every segment here has an ACK, whose number the RST takes (RFC 9293 3.10.7.1, linux `tcp_v4_send_reset`).
            let seq = ack.unwrap_or(self.sender.snd_nxt());
            return Err((disposition, Next::Refuse(seq)));
        }
        let held = self.receiver.out_of_order();
        let accepted = self.receiver.accept(segment, queue, now);
        self.counters.bytes_received += accepted.delivered as u64;
        self.counters.data_segs_in += u64::from(len > 0);
        if accepted.drop == Some(SegmentDrop::Duplicate) {
            self.note_duplicate(seq);
        }
        if len > 0 {
            self.last_data_recv = now;
        }
        self.counters.out_of_order_in += u64::from(self.receiver.out_of_order() > held);
        Ok(accepted)
    }

    fn conclude(&mut self, accepted: Accepted, after_ack: Next, now: Instant) -> SegmentVerdict {
        let Accepted {
            delivered: _,
            fin,
            drop,
        } = accepted;
        let mut next = after_ack;
        if fin {
            (self.kind, next) = self.kind.after_peer_fin();
            if self.kind != StateKind::CloseWait {
                // We have closed, too: no data will take the ACK along.
                self.receiver.ack.request();
            }
        }
        let disposition = Disposition {
            reply: next == Next::TimeWait
                || self.receiver.ack.is_urgent(now)
                || !self.sender.all_acked(),
            drop,
            ..Disposition::default()
        };
        (disposition, next)
    }

    /// Notes payload that arrived again, for a D-SACK.
    fn note_old(&mut self, segment: &Segment<P>) {
        let end = segment.end().earliest(self.receiver.rcv_nxt());
        self.receiver.note_duplicate(segment.seq, end);
        self.note_duplicate(segment.seq);
    }

    /// Drops a segment and answers it with an ACK. Answers to segments without sequence numbers are limited.
    fn answer(
        &mut self,
        reason: SegmentDrop,
        segment: &Segment<P>,
        now: Instant,
    ) -> SegmentVerdict {
        if segment.seq_len() == 0 && !self.replies.allow_invalid(now) {
            return drop_silently(reason);
        }
        self.receiver.ack.request();
        (Disposition::answered(reason), Next::Stay)
    }

    /// Drops a segment that may be forged and sends a challenge ACK: the genuine peer answers it with the exact
    /// sequence number (RFC 5961).
    fn challenge(&mut self, reason: SegmentDrop, now: Instant) -> SegmentVerdict {
        if !self.replies.allow_challenge(now) {
            return drop_silently(SegmentDrop::ChallengeAckLimited);
        }
        self.counters.challenge_acks += 1;
        self.receiver.ack.request();
        (Disposition::answered(reason), Next::Stay)
    }

    /// Ends our half of the stream behind what is queued.
    pub(crate) fn shutdown_write(&mut self) {
        if self.kind.can_send() {
            self.sender.queue.push_fin();
            self.kind = self.kind.after_close();
        }
    }

    /// Notes that the user has shut down reading.
    pub(crate) fn shutdown_read(&mut self) {
        if self.reading == Reading::On {
            self.reading = Reading::ShutDown;
        }
    }

    /// Returns whether the user has closed.
    pub(super) fn is_reader_gone(&self) -> bool {
        self.reading == Reading::Gone
    }

    /// Returns whether payload that arrives now is lost: nobody is left to read it, or both directions were shut down (linux
    /// `tcp_rcv_state_process`). With only reading shut down it is kept, and can be read.
    fn reads_no_more(&self) -> bool {
        let has_sent_fin = matches!(self.kind, StateKind::FinWait1 | StateKind::FinWait2);
        self.is_reader_gone() || self.reading == Reading::ShutDown && has_sent_fin
    }

    /// Ends reading. Sending gets a limited time without progress, because no program is left that could give up.
    pub(crate) fn drop_reader(&mut self) {
        self.reading = Reading::Gone;
        self.sender.orphan();
    }

    /// Takes a smaller packet size from the path: `mss` is the MTU less IP and TCP headers without
    /// options.
    pub(crate) fn on_mtu(&mut self, mss: u16, cx: &Context<'_>) {
        let options = self.negotiated.options_len();
        // The peer's limit stays, and ICMP messages can only reduce the size (RFC 8201 4).
        let mss = mss.saturating_sub(options).min(self.sender.allowed_mss());
        self.sender.on_mtu(mss, cx);
    }

    /// Returns what TIME-WAIT keeps.
    pub(crate) fn time_wait_fields(&mut self, queue: &RecvQueue<P>) -> TimeWaitFields {
        let ack_due = self.receiver.ack.is_pending();
        let last_ack = self.receiver.announce(queue, self.clock, 0, Instant::ZERO);
        TimeWaitFields {
            ack_due,
            snd_nxt: self.sender.snd_nxt(),
            rcv_nxt: self.receiver.rcv_nxt(),
            window: last_ack.window,
            ts_recent: self.receiver.ts_recent(),
            clock: self.clock,
            ecn: self.codepoint(),
        }
    }

    /// Returns clock and echo of the timestamps option, if it was negotiated.
    pub(crate) fn timestamps(&self) -> Option<(TimestampClock, u32)> {
        Some((self.clock, self.receiver.ts_recent()?.value()))
    }

    pub(crate) fn info(&self, info: &mut Info) {
        let SegmentCounters {
            bytes_received,
            data_segs_in,
            out_of_order_in,
            challenge_acks,
            paws_rejected,
        } = self.counters;
        info.timestamps = self.negotiated.timestamps;
        info.sack = self.negotiated.sack;
        info.ecn = self.negotiated.ecn != EcnMode::Off;
        info.ecn_seen = self.receiver.echo().seen();
        info.ce_received = self.receiver.echo().ce_received();
        if let Some(accurate) = &self.accurate {
            accurate.info(info);
        }
        info.snd_wscale = self.negotiated.snd_wscale;
        info.rcv_wscale = self.negotiated.rcv_wscale;
        info.last_data_recv = self.last_data_recv;
        info.rcv_mss = self.receiver.ack.rcv_mss();
        info.rcv_wnd = self.receiver.window().promised(self.receiver.rcv_nxt());
        info.rcv_space = self.receiver.window().space(self.receiver.rcv_nxt());
        info.out_of_order = self.receiver.out_of_order();
        info.dsacks_out = self.receiver.dsacks_out();
        info.bytes_received = bytes_received;
        info.data_segs_in = data_segs_in;
        info.rcv_ooopack = out_of_order_in;
        info.challenge_acks = challenge_acks;
        info.paws_rejected = paws_rejected;
        self.sender.info(info);
        // One number for both kinds of probes, as in linux `icsk_probes_out`.
        info.probes = info.probes.max(self.keepalive.probes());
    }
}

fn drop_silently(reason: SegmentDrop) -> SegmentVerdict {
    (Disposition::dropped(reason), Next::Stay)
}
