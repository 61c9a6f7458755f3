//! LISTEN: a limited number of half-open connections (RFC 9293 3.10.7.2, RFC 4987).

mod cookie;

use core::marker::PhantomData;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use core::time::Duration;

use netmem::Payload;
use wire::{Instant, TcpOptions, Timestamps};

use crate::config::connection::ConnectionConfig;
use crate::config::{Config, SynCookies};
use crate::connection::Connection;
use crate::context::Context;
use crate::disposition::Disposition;
use crate::error::Unreachable;
use crate::fast_open::{FastOpenListener, Judgement};
use crate::isn::{Endpoints, IsnGenerator};
use crate::link::LinkLimits;
use crate::options::TimestampClock;
use crate::segment::{Control, Segment};
use crate::segment_drop::SegmentDrop;
use crate::seqnum::SeqNum;
use crate::settings::Settings;
use crate::state::opening::Opening;
use crate::state::syn::{Handshake, SpaceOffer, SynReceived, SynVerdict};
use cookie::{CookieJar, granted_ecn, offered_options, ts_with_options};

/// How long after the last cookie was sent ACKs are checked for cookies (linux `TCP_SYNCOOKIE_VALID`).
const COOKIES_VALID: Duration = Duration::from_secs(120);

/// The half-open connections of one listener.
///
/// It holds at most `capacity` of them and never drops one for another: when it is full, it answers with SYN cookies and
/// keeps no state. A [`Connection`] is created when its handshake is done.
#[derive(Debug)]
pub struct SynBacklog<P> {
    shared: Arc<Config>,
    capacity: usize,
    isns: IsnGenerator,
    cookies: CookieJar,
    last_cookie: Option<Instant>,
    half_open: BTreeMap<Endpoints, SynReceived>,
    /// Times at which SYN-ACKs are repeated.
    timers: BTreeSet<(Instant, Endpoints)>,
    rcv_space: u32,
    fast_open: Option<Box<FastOpenListener>>,
    payload: PhantomData<P>,
}

/// Context of a segment to a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Incoming<'a> {
    /// Settings of the listener, which its connections inherit.
    pub settings: &'a Settings,
    /// Limits of the link to this peer.
    pub link: LinkLimits,
    /// Largest payload of a packet that the path to this peer carries, if it is known to be less.
    pub path_mss: Option<u16>,
    /// Whether `accept` has room for another connection.
    pub accept_queue: AcceptQueue,
    /// The smallest ISN allowed: [`Disposition::reopen`], if a connection in TIME-WAIT had the same endpoints.
    pub iss_floor: Option<SeqNum>,
}

/// State of the queue of established connections that wait for `accept`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AcceptQueue {
    /// It has room.
    HasRoom,
    /// It is full: SYNs are dropped, and the last ACK of a handshake is ignored until the peer
    /// repeats it (as in linux without `tcp_abort_on_overflow`).
    Full,
}

/// Effect of a segment on a listener.
#[derive(Debug)]
#[must_use]
pub enum ListenOutcome<P> {
    /// None: it is dropped and counted.
    Dropped(SegmentDrop),
    /// A segment answers it. It is counted if a part of it was dropped.
    Reply(Segment<P>, Option<SegmentDrop>),
    /// A handshake is done.
    Accepted(Box<Connection<P>>, Disposition),
}

impl<P: Payload> SynBacklog<P> {
    /// Returns an empty backlog of `capacity` half-open connections; they offer `rcv_space` bytes, or less if the receive
    /// buffer of the listener is smaller. `cookie_key` must be random.
    #[must_use]
    pub fn new(
        shared: Arc<Config>,
        rcv_space: u32,
        capacity: usize,
        isns: IsnGenerator,
        cookie_key: [u8; 16],
    ) -> SynBacklog<P> {
        SynBacklog {
            shared,
            capacity,
            isns,
            cookies: CookieJar::new(cookie_key),
            last_cookie: None,
            half_open: BTreeMap::new(),
            timers: BTreeSet::new(),
            rcv_space,
            fast_open: None,
            payload: PhantomData,
        }
    }

    /// Sets the largest number of half-open connections; existing ones stay.
    pub fn set_capacity(&mut self, capacity: usize) {
        self.capacity = capacity;
    }

    /// Sets what the listener does about Fast Open (RFC 7413); without it, SYNs of every kind begin a handshake.
    pub fn set_fast_open(&mut self, listener: FastOpenListener) {
        self.fast_open = Some(Box::new(listener));
    }

    /// Returns what the listener does about Fast Open, to be changed.
    pub fn fast_open_mut(&mut self) -> Option<&mut FastOpenListener> {
        self.fast_open.as_deref_mut()
    }

    /// Returns the number of half-open connections.
    #[must_use]
    pub fn len(&self) -> usize {
        self.half_open.len()
    }

    /// Returns whether there are no half-open connections.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.half_open.is_empty()
    }

    /// Sets the initial receive space of new connections. Each SYN-ACK promises at most 64 KiB of it.
    pub fn set_rcv_space(&mut self, bytes: u32) {
        self.rcv_space = bytes;
    }

    /// Processes a segment that belongs to no connection (RFC 9293 3.10.7.2).
    ///
    /// A SYN with FIN is dropped, as by Linux (`tcp_rcv_state_process`): no TCP opens and closes a connection with one segment since
    /// T/TCP (RFC 6247), but scanners do to pass filters that look for a SYN alone. RFC 9293 would process the FIN later.
    pub fn on_segment(
        &mut self,
        endpoints: &Endpoints,
        segment: Segment<P>,
        incoming: Incoming<'_>,
        now: Instant,
    ) -> ListenOutcome<P> {
        if self.half_open.contains_key(endpoints) {
            return self.on_half_open(endpoints, segment, incoming, now);
        }
        match (segment.control, segment.ack) {
            (Control::Rst, _) => ListenOutcome::Dropped(SegmentDrop::NoConnection),
            (_, Some(ack)) => self.on_stray_ack(endpoints, ack, segment, incoming, now),
            (Control::Syn, None) if segment.fin_after_syn => {
                ListenOutcome::Dropped(SegmentDrop::SynFin)
            }
            (Control::Syn, None) => self.on_syn(endpoints, segment, incoming, now),
            (Control::None | Control::Fin, None) => ListenOutcome::Dropped(SegmentDrop::NoAck),
        }
    }

    /// Takes an ICMP error about the SYN-ACK with sequence number `quoted`; returns whether there is such a half-open connection.
    /// It ends if the peer's host or network is unreachable (linux `tcp_req_err`); a prohibited port or protocol may be
    /// the answer of a firewall to a forged SYN, and the SYN-ACK is repeated.
    pub fn on_unreachable(
        &mut self,
        endpoints: &Endpoints,
        what: Unreachable,
        quoted: SeqNum,
    ) -> bool {
        let half_open = self.half_open.get(endpoints);
        let is_about_it = half_open.is_some_and(|it| it.iss() == quoted);
        if is_about_it && matches!(what, Unreachable::Net | Unreachable::Host) {
            self.remove(endpoints);
        }
        is_about_it
    }

    /// Begins a handshake, or opens the connection at once (Fast Open). Where that is not allowed, payload of the SYN is
    /// ignored, and the peer sends it again.
    fn on_syn(
        &mut self,
        endpoints: &Endpoints,
        syn: Segment<P>,
        incoming: Incoming<'_>,
        now: Instant,
    ) -> ListenOutcome<P> {
        if incoming.accept_queue == AcceptQueue::Full {
            return ListenOutcome::Dropped(SegmentDrop::AcceptQueueFull);
        }
        let config = self.config_for(endpoints, incoming.link, incoming.path_mss);
        let cx = Context::new(incoming.settings, &config, now);
        let is_full = self.half_open.len() >= self.capacity;
        if is_full && config.shared.syn_cookies == SynCookies::Never {
            return ListenOutcome::Dropped(SegmentDrop::SynBacklogFull);
        }
        if is_full || config.shared.syn_cookies == SynCookies::Always {
            return ListenOutcome::Reply(self.cookie_reply(endpoints, &syn, &cx), None);
        }
        let isn = self.isns.isn(endpoints, now);
        let iss = incoming.iss_floor.map_or(isn, |floor| isn.latest(floor));
        let clock = TimestampClock::new(config.timestamp_offset);
        let offer = SpaceOffer::new(self.rcv_space, cx.settings, cx.config);
        let mut half_open = SynReceived::new((iss, clock), &syn, offer, &cx);
        let option = match self.judge_early(endpoints, &syn, &half_open, now) {
            Judgement::Handshake(option) => option,
            Judgement::Open(slot, option) => {
                let opening = Opening {
                    half_open,
                    option,
                    slot,
                };
                let (connection, disposition) = Connection::open_early(opening, syn, &cx);
                return ListenOutcome::Accepted(Box::new(connection), disposition);
            }
        };
        let mut reply = half_open.poll_send(&cx);
        if let Some(syn_ack) = &mut reply {
            syn_ack.options.fast_open = option;
        }
        self.arm(endpoints, half_open.next_timer());
        self.half_open.insert(*endpoints, half_open);
        match reply {
            Some(syn_ack) => ListenOutcome::Reply(syn_ack, None),
            None => ListenOutcome::Dropped(SegmentDrop::Duplicate),
        }
    }

    fn judge_early(
        &self,
        endpoints: &Endpoints,
        syn: &Segment<P>,
        half_open: &SynReceived,
        now: Instant,
    ) -> Judgement {
        match &self.fast_open {
            Some(listener) if !half_open.has_accecn() => {
                let modes = self.shared.fast_open.modes;
                listener.judge(endpoints, syn, modes, self.capacity, now)
            }
            _ => Judgement::Handshake(None),
        }
    }

    fn on_half_open(
        &mut self,
        endpoints: &Endpoints,
        segment: Segment<P>,
        incoming: Incoming<'_>,
        now: Instant,
    ) -> ListenOutcome<P> {
        let config = self.config_for(endpoints, incoming.link, incoming.path_mss);
        let cx = Context::new(incoming.settings, &config, now);
        let Some(half_open) = self.half_open.get_mut(endpoints) else {
            return ListenOutcome::Dropped(SegmentDrop::NoConnection);
        };
        match half_open.on_segment(&segment, now) {
            SynVerdict::Drop(reason) => ListenOutcome::Dropped(reason),
            SynVerdict::Answer(reason) => reply_or_drop(half_open.poll_send(&cx), reason),
            SynVerdict::Reset(reason) => reset_or_drop(&segment, reason),
            // Back to LISTEN: the peer has ended the handshake.
            SynVerdict::Refused => {
                self.remove(endpoints);
                ListenOutcome::Dropped(SegmentDrop::Withdrawn)
            }
            SynVerdict::Established(_) if incoming.accept_queue == AcceptQueue::Full => {
                ListenOutcome::Dropped(SegmentDrop::AcceptQueueFull)
            }
            SynVerdict::Established(_) if half_open.defers(&segment, incoming.settings) => {
                ListenOutcome::Dropped(SegmentDrop::AcceptDeferred)
            }
            SynVerdict::Established(handshake) => {
                self.remove(endpoints);
                accept(&handshake, segment, &cx)
            }
            SynVerdict::Simultaneous(_) => ListenOutcome::Dropped(SegmentDrop::UnexpectedSyn),
        }
    }

    /// Processes an ACK without a handshake: it has a cookie, or is a stray.
    fn on_stray_ack(
        &mut self,
        endpoints: &Endpoints,
        ack: SeqNum,
        segment: Segment<P>,
        incoming: Incoming<'_>,
        now: Instant,
    ) -> ListenOutcome<P> {
        let expected = self
            .last_cookie
            .is_some_and(|last| now.saturating_since(last) <= COOKIES_VALID);
        if !expected || segment.control == Control::Syn {
            return reset_or_drop(&segment, SegmentDrop::NoConnection);
        }
        let (irs, iss) = (segment.seq - 1, ack - 1);
        let Some(mss) = self.cookies.check(endpoints, irs, iss, now) else {
            return reset_or_drop(&segment, SegmentDrop::BadCookie);
        };
        if incoming.accept_queue == AcceptQueue::Full {
            return ListenOutcome::Dropped(SegmentDrop::AcceptQueueFull);
        }
        let config = self.config_for(endpoints, incoming.link, incoming.path_mss);
        let cx = Context::new(incoming.settings, &config, now);
        let syn = Segment::<P> {
            seq: irs,
            control: Control::Syn,
            ece: granted_ecn(&segment),
            cwr: granted_ecn(&segment),
            options: offered_options(&segment, mss),
            ..Segment::default()
        };
        let clock = TimestampClock::new(config.timestamp_offset);
        let offer = SpaceOffer::new(self.rcv_space, cx.settings, cx.config);
        let mut half_open = SynReceived::new((iss, clock), &syn, offer, &cx);
        match half_open.on_segment(&segment, now) {
            SynVerdict::Established(handshake) => accept(&handshake, segment, &cx),
            _ => reset_or_drop(&segment, SegmentDrop::BadCookie),
        }
    }

    /// Answers a SYN with a cookie, and keeps no state.
    fn cookie_reply(
        &mut self,
        endpoints: &Endpoints,
        syn: &Segment<P>,
        cx: &Context<'_>,
    ) -> Segment<P> {
        let now = cx.now;
        self.last_cookie = Some(now);
        let mss = syn.options.mss.unwrap_or(crate::config::DEFAULT_MSS);
        let iss = self.cookies.bake(endpoints, syn.seq, mss, now);
        let clock = TimestampClock::new(cx.config.timestamp_offset);
        // Without timestamps there is no field for the other options and for ECN.
        let remembers = cx.shared().timestamps && syn.options.timestamps.is_some();
        let offered = match remembers {
            true => syn.options,
            false => TcpOptions {
                mss: syn.options.mss,
                ..TcpOptions::default()
            },
        };
        let syn = Segment::<P> {
            seq: syn.seq,
            // A cookie has no room for AccECN; a request for it is refused.
            ece: syn.ece && remembers && !syn.ae,
            cwr: syn.cwr && syn.ece && remembers && !syn.ae,
            ecn: syn.ecn,
            options: offered,
            ..Segment::default()
        };
        let offer = SpaceOffer::new(self.rcv_space, cx.settings, cx.config);
        let mut half_open = SynReceived::new((iss, clock), &syn, offer, cx);
        let mut reply = half_open.poll_send(cx).unwrap_or_default();
        if let Some(Timestamps { value, .. }) = &mut reply.options.timestamps {
            *value = ts_with_options(*value, &offered, reply.ece);
        }
        reply
    }

    /// Returns what a connection with this peer begins with.
    fn config_for(
        &self,
        endpoints: &Endpoints,
        link: LinkLimits,
        path_mss: Option<u16>,
    ) -> ConnectionConfig {
        ConnectionConfig {
            shared: Arc::clone(&self.shared),
            link,
            path_mss,
            timestamp_offset: self.isns.timestamp_offset(endpoints),
        }
    }

    /// Returns a SYN-ACK that is due for repetition. Call it until it returns `None`.
    pub fn poll_send(
        &mut self,
        link: LinkLimits,
        settings: &Settings,
        now: Instant,
    ) -> Option<(Endpoints, Segment<P>)> {
        while let Some(&(due, endpoints)) = self.timers.first().filter(|(due, _)| *due <= now) {
            self.timers.remove(&(due, endpoints));
            let config = self.config_for(&endpoints, link, None);
            let cx = Context::new(settings, &config, now);
            let Some(half_open) = self.half_open.get_mut(&endpoints) else {
                continue;
            };
            if half_open.on_timer(&cx).is_err() {
                self.half_open.remove(&endpoints);
                continue;
            }
            let reply = half_open.poll_send(&cx);
            let next = half_open.next_timer();
            self.arm(&endpoints, next);
            if let Some(syn_ack) = reply {
                return Some((endpoints, syn_ack));
            }
        }
        None
    }

    /// Returns when the next SYN-ACK is to be repeated or given up by [`SynBacklog::poll_send`].
    #[must_use]
    pub fn next_timer(&self) -> Option<Instant> {
        self.timers.first().map(|(due, _)| *due)
    }

    fn remove(&mut self, endpoints: &Endpoints) {
        let half_open = self.half_open.remove(endpoints);
        if let Some(due) = half_open.and_then(|half_open| half_open.next_timer()) {
            self.timers.remove(&(due, *endpoints));
        }
    }

    fn arm(&mut self, endpoints: &Endpoints, due: Option<Instant>) {
        self.timers.extend(due.map(|due| (due, *endpoints)));
    }
}

/// Creates the connection, which then processes the segment of the last ACK.
fn accept<P: Payload>(
    handshake: &Handshake,
    segment: Segment<P>,
    cx: &Context<'_>,
) -> ListenOutcome<P> {
    let mut connection = Connection::from_handshake(handshake, cx);
    let disposition = connection.on_segment(segment, cx.settings, cx.now);
    ListenOutcome::Accepted(
        Box::new(connection),
        Disposition {
            established: true,
            ..disposition
        },
    )
}

fn reset_or_drop<P: Payload>(segment: &Segment<P>, reason: SegmentDrop) -> ListenOutcome<P> {
    reply_or_drop(Segment::reset_for(segment), reason)
}

fn reply_or_drop<P>(reply: Option<Segment<P>>, reason: SegmentDrop) -> ListenOutcome<P> {
    match reply {
        Some(reply) => ListenOutcome::Reply(reply, Some(reason)),
        None => ListenOutcome::Dropped(reason),
    }
}
