//! One connection: its events (segments, timers, news from the network). `sending.rs` has what it sends, `calls.rs` the other calls
//! of its user.

mod calls;
mod early;
pub(crate) mod sending;

use netmem::Payload;
use wire::Instant;

use crate::config::connection::ConnectionConfig;
use crate::context::Context;
use crate::disposition::{Disposition, Next};
use crate::error::{TcpError, Unreachable};
use crate::fast_open::start::{FastOpenStart, Learned};
use crate::options::{TimestampClock, ack_options};
use crate::recv_queue::RecvQueue;
use crate::segment::{Control, Segment};
use crate::segment_drop::SegmentDrop;
use crate::sender::Sender;
use crate::seqnum::SeqNum;
use crate::settings::Settings;
use crate::state::closing::TimeWait;
use crate::state::established::Synchronized;
use crate::state::opening::Opening;
use crate::state::syn::{EarlyClose, Handshake, SynReceived, SynSent, SynVerdict};
use crate::state_kind::StateKind;
use early::ClientOpen;

/// One TCP connection. It takes segments, times and calls; it returns segments and [`Disposition`]s.
///
/// It holds payload and never reads it. After each event the caller calls [`Connection::poll_send`] until it returns `None`,
/// and [`Connection::on_timer`] at the time of [`Connection::next_timer`]. The [`Settings`] are the socket's: those that count
/// for a call are an argument of it.
#[derive(Debug)]
pub struct Connection<P> {
    state: ConnectionState<P>,
    queue: RecvQueue<P>,
    config: ConnectionConfig,
    /// A RST to be sent, also in CLOSED.
    reset: Option<Reset>,
    error: Option<TcpError>,
    /// The last ICMP error, reported if the connection times out.
    soft_error: Option<TcpError>,
    segs_in: u64,
    segs_out: u64,
    data_segs_out: u64,
    /// The peer's SYN had payload, which was accepted.
    opened_with_data: bool,
    /// Fast Open of an active open, if it was asked for.
    early: Option<Box<ClientOpen<P>>>,
    /// A write waits until the connection is open.
    write_waits: bool,
}

/// State of a connection. Most connections spend most of their time in `Synchronized`, so its size wastes no memory.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "an idle connection is Synchronized; a box would only add to it"
)]
enum ConnectionState<P> {
    Closed,
    SynSent(SynSent),
    SynReceived(SynReceived),
    /// ESTABLISHED, and the six states in which one or both sides have sent a FIN.
    Synchronized(Synchronized<P>),
    TimeWait(TimeWait),
}

/// A RST to be sent.
#[derive(Debug, Clone, Copy, Default)]
struct Reset {
    seq: SeqNum,
    ack: Option<SeqNum>,
    /// Window field; no receiver looks at it.
    window: u16,
    /// Clock and echo of the timestamps option, if it was negotiated (RFC 7323 3.2: a RST should have it).
    timestamps: Option<(TimestampClock, u32)>,
}

impl Reset {
    fn segment<P: Payload>(self, now: Instant) -> Segment<P> {
        let Self {
            seq,
            ack,
            window,
            timestamps,
        } = self;
        let options = timestamps
            .map(|(clock, echo)| ack_options(Some(echo), clock.value(now)))
            .unwrap_or_default();
        Segment {
            seq,
            ack,
            control: Control::Rst,
            window,
            options,
            ..Segment::default()
        }
    }
}

impl<P: Payload> Connection<P> {
    /// Returns a connection that opens actively; the first [`Connection::poll_send`] returns its SYN.
    ///
    /// `iss` comes from [`crate::IsnGenerator::isn`], and `config.timestamp_offset` should come
    /// from [`crate::IsnGenerator::timestamp_offset`]. With Fast Open (RFC 7413), [`Connection::send`] takes as much payload
    /// as the SYN has room for, until then.
    #[must_use]
    pub fn connect(
        config: &ConnectionConfig,
        settings: &Settings,
        iss: SeqNum,
        early: Option<FastOpenStart>,
        now: Instant,
    ) -> Connection<P> {
        let cx = Context::new(settings, config, now);
        let client_open =
            |start| Box::new(ClientOpen::new(start, Sender::new(config, settings, iss)));
        Connection {
            early: early.map(client_open),
            ..Connection::new(config, ConnectionState::SynSent(SynSent::new(iss, &cx)))
        }
    }

    /// Returns once what the SYN-ACK has told about the peer's Fast Open.
    pub fn take_learned(&mut self) -> Option<Learned> {
        self.early.as_mut()?.take_learned()
    }

    /// Returns the connection that a SYN with a valid Fast Open cookie opens; its payload is readable.
    pub(crate) fn open_early(
        opening: Opening,
        mut syn: Segment<P>,
        cx: &Context<'_>,
    ) -> (Connection<P>, Disposition) {
        // The window of a SYN is never scaled (RFC 7323 2.2).
        let window = u32::from(syn.window);
        let mut handshake = opening.half_open.handshake(window, syn.seq, cx.now);
        handshake.receiver.extend(syn.payload.len());
        let mut synchronized = Synchronized::new(&handshake, None, cx);
        let mut queue = RecvQueue::default();
        syn.control = Control::None;
        syn.seq += 1;
        let drop = synchronized.open_early(opening, syn, &mut queue);
        let disposition = Disposition {
            established: true,
            reply: true,
            drop,
            ..Disposition::default()
        };
        let mut connection =
            Connection::new(cx.config, ConnectionState::Synchronized(synchronized));
        connection.opened_with_data = !queue.is_empty();
        connection.queue = queue;
        connection.segs_in = 1;
        (connection, disposition)
    }

    /// Returns an established connection, after a listener's handshake.
    pub(crate) fn from_handshake(handshake: &Handshake, cx: &Context<'_>) -> Connection<P> {
        let synchronized = Synchronized::new(handshake, None, cx);
        Connection::new(cx.config, ConnectionState::Synchronized(synchronized))
    }

    fn new(config: &ConnectionConfig, state: ConnectionState<P>) -> Connection<P> {
        Connection {
            state,
            queue: RecvQueue::default(),
            config: config.clone(),
            reset: None,
            error: None,
            soft_error: None,
            segs_in: 0,
            segs_out: 0,
            data_segs_out: 0,
            opened_with_data: false,
            early: None,
            write_waits: false,
        }
    }

    /// Returns the state from ESTABLISHED to LAST-ACK, with the two halves.
    fn synchronized(&self) -> Option<&Synchronized<P>> {
        match &self.state {
            ConnectionState::Synchronized(synchronized) => Some(synchronized),
            _ => None,
        }
    }

    fn synchronized_mut(&mut self) -> Option<&mut Synchronized<P>> {
        match &mut self.state {
            ConnectionState::Synchronized(synchronized) => Some(synchronized),
            _ => None,
        }
    }

    /// Processes a segment for this connection.
    pub fn on_segment(
        &mut self,
        segment: Segment<P>,
        settings: &Settings,
        now: Instant,
    ) -> Disposition {
        self.segs_in += 1;
        let cx = Context::new(settings, &self.config, now);
        match &mut self.state {
            ConnectionState::Closed => Disposition::dropped(SegmentDrop::Closed),
            ConnectionState::SynSent(syn_sent) => {
                let verdict = syn_sent.on_segment(&segment, &cx);
                self.on_syn_verdict(verdict, segment, settings, now)
            }
            ConnectionState::SynReceived(syn_received) => {
                let verdict = syn_received.on_segment(&segment, now);
                self.on_syn_verdict(verdict, segment, settings, now)
            }
            ConnectionState::Synchronized(synchronized) => {
                let verdict = synchronized.on_segment(segment, &mut self.queue, &cx);
                let (Ok((disposition, next)) | Err((disposition, next))) = verdict;
                self.follow(next, now);
                disposition
            }
            ConnectionState::TimeWait(time_wait) => time_wait.on_segment(&segment, now),
        }
    }

    /// Processes a segment whose payload was dropped for want of memory: `segment` has no payload.
    ///
    /// Its other fields count. The reply is an ACK; if the payload was the next in order, the window is 0 until
    /// [`Connection::restore_rcv_window`].
    pub fn on_unplaced(
        &mut self,
        segment: Segment<P>,
        settings: &Settings,
        now: Instant,
    ) -> Disposition {
        let seq = segment.seq;
        // A FIN behind the missing payload is not in order yet.
        let control = match segment.control {
            Control::Fin => Control::None,
            control => control,
        };
        let disposition = self.on_segment(Segment { control, ..segment }, settings, now);
        let ConnectionState::Synchronized(synchronized) = &mut self.state else {
            return disposition;
        };
        if disposition.drop.is_none() {
            synchronized.receiver.on_unplaced(seq);
        }
        Disposition {
            reply: true,
            ..disposition
        }
    }

    fn on_syn_verdict(
        &mut self,
        verdict: SynVerdict,
        segment: Segment<P>,
        settings: &Settings,
        now: Instant,
    ) -> Disposition {
        match verdict {
            SynVerdict::Drop(reason) => Disposition::dropped(reason),
            SynVerdict::Answer(reason) => Disposition::answered(reason),
            SynVerdict::Reset(reason) => {
                let reset = Segment::reset_for(&segment);
                self.reset = reset.map(|reset| Reset {
                    seq: reset.seq,
                    ack: reset.ack,
                    ..Reset::default()
                });
                Disposition::answered(reason)
            }
            SynVerdict::Refused => {
                self.end(Next::Closed(Some(TcpError::Refused)));
                Disposition::CLOSED
            }
            SynVerdict::Simultaneous(syn_received) => {
                self.state = ConnectionState::SynReceived(syn_received);
                Disposition::REPLY
            }
            SynVerdict::Established(handshake) => {
                self.establish(&handshake, segment, settings, now)
            }
        }
    }

    /// Opens the connection, and processes payload and FIN of the handshake's last segment (RFC 9293
    /// 3.10.7.3, fifth).
    fn establish(
        &mut self,
        handshake: &Handshake,
        mut segment: Segment<P>,
        settings: &Settings,
        now: Instant,
    ) -> Disposition {
        let (closing, has_crossed) = match &self.state {
            ConnectionState::SynReceived(syn_received) => (syn_received.closing, true),
            _ => (EarlyClose::No, false),
        };
        let sender = self.end_early(handshake, &segment, settings);
        let cx = Context::new(settings, &self.config, now);
        let mut synchronized = Synchronized::new(handshake, sender, &cx);
        if segment.control == Control::Syn {
            // The peer waits for the ACK of its SYN.
            match self.write_waits && !has_crossed {
                true => synchronized.receiver.on_awaited_open(now),
                false => synchronized.receiver.ack.request(),
            }
            if has_crossed && self.config.shared.tuning.reports_crossed_syns {
                let receiver = &mut synchronized.receiver;
                receiver.note_duplicate(segment.seq, segment.seq + 1);
            }
            segment.control = match segment.fin_after_syn {
                true => Control::Fin,
                false => Control::None,
            };
            segment.seq += 1;
        }
        let has_more = segment.seq_len() > 0;
        self.state = ConnectionState::Synchronized(synchronized);
        self.close_early(closing);
        let opened = Disposition {
            established: true,
            reply: true,
            ..Disposition::default()
        };
        let ConnectionState::Synchronized(open) = &mut self.state else {
            return opened;
        };
        if !has_more {
            return opened;
        }
        let cx = Context::new(settings, &self.config, now);
        let verdict = open.on_segment(segment, &mut self.queue, &cx);
        let (Ok((more, next)) | Err((more, next))) = verdict;
        self.follow(next, now);
        if more.closed {
            return more;
        }
        Disposition {
            established: true,
            reply: true,
            ..more
        }
    }

    /// Ends the handshake of an early open; returns the sender that has its payload.
    fn end_early(
        &mut self,
        handshake: &Handshake,
        segment: &Segment<P>,
        settings: &Settings,
    ) -> Option<Sender<P>> {
        let early = self.early.as_mut()?;
        if segment.control == Control::Syn {
            early.on_syn_ack(segment, handshake.early_acked, handshake.timed_out);
        }
        let mut sender = *early.sender.take()?;
        // The program may have changed them since.
        sender.on_settings(settings);
        Some(sender)
    }

    fn close_early(&mut self, closing: EarlyClose) {
        match closing {
            EarlyClose::No => {}
            EarlyClose::Write => self.shutdown_write(),
            EarlyClose::Both => self.close(),
        }
    }

    fn follow(&mut self, next: Next, now: Instant) {
        match (next, &mut self.state) {
            (Next::Stay, _) => {}
            (Next::TimeWait, ConnectionState::Synchronized(synchronized)) => {
                let fields = synchronized.time_wait_fields(&self.queue);
                let time_wait = TimeWait::new(fields, self.config.shared.timers.time_wait, now);
                self.state = ConnectionState::TimeWait(time_wait);
            }
            _ => self.end(next),
        }
    }

    /// Ends the connection if `next` says so.
    fn end(&mut self, next: Next) {
        let error = match next {
            Next::Stay | Next::TimeWait => return,
            Next::Closed(error) => error,
            Next::Abort(error) => {
                self.reset = self.final_reset();
                error
            }
            Next::Refuse(seq) => {
                self.reset = Some(Reset {
                    seq,
                    ..Reset::default()
                });
                Some(TcpError::Reset)
            }
        };
        self.error = self.error.or(error);
        self.state = ConnectionState::Closed;
        self.drop_early();
    }

    /// Drops the payload of an early open that has failed.
    pub(crate) fn drop_early(&mut self) {
        if let Some(early) = &mut self.early {
            early.sender = None;
        }
    }

    /// Returns the RST that an abort sends; none in SYN-SENT, where the peer has no connection yet (RFC
    /// 9293 3.10.5).
    fn final_reset(&self) -> Option<Reset> {
        match &self.state {
            ConnectionState::Closed
            | ConnectionState::SynSent(_)
            | ConnectionState::TimeWait(_) => None,
            ConnectionState::SynReceived(syn) => Some(Reset {
                seq: syn.iss() + 1,
                ack: Some(syn.irs() + 1),
                ..Reset::default()
            }),
            ConnectionState::Synchronized(sync) => Some(Reset {
                seq: sync.sender.snd_nxt(),
                ack: Some(sync.receiver.rcv_nxt()),
                window: sync.receiver.window().field(sync.receiver.rcv_nxt()),
                timestamps: sync.timestamps(),
            }),
        }
    }

    /// Returns when [`Connection::on_timer`] should be called.
    #[must_use]
    pub fn next_timer(&self) -> Option<Instant> {
        match &self.state {
            ConnectionState::Closed => None,
            ConnectionState::SynSent(syn_sent) => syn_sent.next_timer(),
            ConnectionState::SynReceived(syn_received) => syn_received.next_timer(),
            ConnectionState::Synchronized(synchronized) => synchronized.next_timer(),
            ConnectionState::TimeWait(time_wait) => Some(time_wait.deadline()),
        }
    }

    /// Runs the timers that are due at `now`. An early call has no effect.
    pub fn on_timer(&mut self, settings: &Settings, now: Instant) -> Disposition {
        let cx = Context::new(settings, &self.config, now);
        let (disposition, next) = match &mut self.state {
            ConnectionState::Closed => return Disposition::default(),
            ConnectionState::SynSent(syn_sent) => handshake_timer(syn_sent.on_timer(&cx)),
            ConnectionState::SynReceived(syn_received) => {
                handshake_timer(syn_received.on_timer(&cx))
            }
            ConnectionState::Synchronized(synchronized) => synchronized.on_timer(&cx),
            ConnectionState::TimeWait(time_wait) if time_wait.deadline() <= now => {
                (Disposition::CLOSED, Next::Closed(None))
            }
            ConnectionState::TimeWait(_) => return Disposition::default(),
        };
        self.follow(self.with_soft_error(next), now);
        disposition
    }

    /// Replaces a timeout by the last ICMP error, which is closer to the cause.
    fn with_soft_error(&self, next: Next) -> Next {
        match (next, self.soft_error) {
            (Next::Closed(Some(TcpError::TimedOut)), Some(soft)) => Next::Closed(Some(soft)),
            (Next::Abort(Some(TcpError::TimedOut)), Some(soft)) => Next::Abort(Some(soft)),
            _ => next,
        }
    }

    /// Processes an ICMP message that a packet of ours was too big (RFC 1191, RFC 8201). `mss` is the path's
    /// MTU less IP and TCP headers without options; `quoted` is the sequence number in the packet
    /// that the message quotes.
    ///
    /// Returns false if no such packet is in flight: the message is forged, or late (RFC 5927 7).
    pub fn on_mtu(&mut self, mss: u16, quoted: SeqNum, settings: &Settings, now: Instant) -> bool {
        if !self.is_on_its_way(quoted) {
            return false;
        }
        let link = &mut self.config.link.mss;
        *link = mss.max(crate::config::MIN_MSS).min(*link);
        if let ConnectionState::Synchronized(synchronized) = &mut self.state {
            let cx = Context::new(settings, &self.config, now);
            synchronized.on_mtu(mss, &cx);
        }
        if let (ConnectionState::SynSent(syn_sent), Some(_)) = (&mut self.state, &self.early) {
            // Without payload it fits (linux `tcp_simple_retransmit`).
            syn_sent.repeat();
        }
        true
    }

    /// Processes an ICMP message that the peer is unreachable. It ends an attempt to connect. An open
    /// connection only remembers it, because routes may come back (RFC 1122 4.2.3.9, RFC 5461).
    pub fn on_unreachable(&mut self, what: Unreachable, quoted: SeqNum) -> Disposition {
        if !self.is_on_its_way(quoted) {
            return Disposition::default();
        }
        let error = TcpError::from(what);
        match self.state {
            ConnectionState::SynSent(_) | ConnectionState::SynReceived(_) => {
                self.end(Next::Closed(Some(error)));
                Disposition::CLOSED
            }
            _ => {
                self.soft_error = Some(error);
                Disposition::default()
            }
        }
    }

    /// Ends the connection because no packet can be sent any more: its link is gone for good, or its address is lost. What was
    /// received stays readable, as after a RST of the peer; without an error if both FINs were sent.
    pub fn on_unusable(&mut self, error: TcpError) {
        let is_over = matches!(
            self.state(),
            StateKind::Closing | StateKind::LastAck | StateKind::TimeWait
        );
        self.end(Next::Closed((!is_over).then_some(error)));
    }

    /// Returns whether a segment of ours with this sequence number may be in flight.
    fn is_on_its_way(&self, seq: SeqNum) -> bool {
        match &self.state {
            ConnectionState::Closed | ConnectionState::TimeWait(_) => false,
            ConnectionState::SynSent(syn_sent) => seq == syn_sent.iss(),
            ConnectionState::SynReceived(syn_received) => seq == syn_received.iss(),
            ConnectionState::Synchronized(synchronized) => {
                let sender = &synchronized.sender;
                seq.after_eq(sender.snd_una()) && seq.before(sender.snd_nxt())
            }
        }
    }
}

fn handshake_timer(outcome: Result<(), TcpError>) -> (Disposition, Next) {
    match outcome {
        Ok(()) => (Disposition::REPLY, Next::Stay),
        Err(error) => (Disposition::CLOSED, Next::Closed(Some(error))),
    }
}
