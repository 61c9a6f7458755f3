//! When ACKs are sent.
//!
//! An ACK without data costs a packet here and work at the sender, so in a bulk transfer without loss one
//! ACK covers up to [`ACK_BYTES_MAX`](crate::config::ACK_BYTES_MAX) bytes, or a quarter of the window. Such an ACK is sent when the stack has passed on the packets
//! that it has received together: it covers all of those of its connection, and the ACKs of several connections are sent in a row, so
//! that the code of the peer that a TAP runs for each of them is in the cache. The stack calls [`AckPolicy::on_drained`] when it has emptied the link, and
//! pending ACKs are sent then. Soon after one that covered many bytes they wait for the next poll, which sends them if it receives
//! nothing (`DRAINED_INTERVAL`, [`AckPolicy::on_idle`]). A small request that the program has always answered is acknowledged with
//! the answer (`interactive.rs`). So RFC 9293 3.8.6.3's
//! "every second segment" holds whenever the link is not saturated, and its limit of 500 ms always.

mod interactive;
mod when_drained;

use core::fmt;
use core::time::Duration;

use wire::Instant;

use crate::config::{DEFAULT_MSS, DELAYED_ACK};
use crate::context::Context;
use crate::ecn::Haste;

pub(crate) use when_drained::WhenDrained;

/// Decides when the next ACK is sent.
#[derive(Debug)]
pub(crate) struct AckPolicy {
    due: AckDue,
    /// Payload bytes since the last ACK.
    unacked: usize,
    /// Largest payload of a packet seen: the size of the peer's full segments.
    rcv_mss: u16,
    mss: u16,
    style: Box<dyn AckStyle>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AckDue {
    Never,
    At(Instant),
    AfterBurst,
    Now,
}

impl AckDue {
    /// Returns the earlier time.
    fn or_by(self, at: Instant) -> AckDue {
        match self {
            AckDue::Never => AckDue::At(at),
            AckDue::At(before) => AckDue::At(before.min(at)),
            AckDue::AfterBurst | AckDue::Now => self,
        }
    }
}

/// Reason for an ACK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// Payload in order, without a gap; whether it has PSH.
    InOrder { len: usize, push: bool },
    /// Payload in order that reaches beyond the window ([`Policy::takes_beyond_window`](crate::policy::Policy)).
    Beyond,
    /// An event that is acknowledged at once: a gap opened or filled, a duplicate.
    Notable,
    /// The peer's FIN, in order.
    Fin,
}

/// Facts from which an [`AckStyle`] decides.
#[derive(Debug, Clone, Copy)]
pub struct AckFacts {
    /// Payload bytes of this arrival.
    pub len: usize,
    /// PSH: the peer's writer may wait for an answer.
    pub push: bool,
    /// Payload bytes since the last ACK, these included.
    pub unacked: usize,
    /// Bytes that the peer may still send.
    pub window: u32,
    /// Size of the peer's full segments, in bytes.
    pub rcv_mss: u16,
    /// Most bytes of a segment that we have allowed the peer to send.
    pub mss: u16,
}

/// When an ACK is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckTime {
    /// As decided before.
    Unchanged,
    /// At once.
    Now,
    /// When the segments that were received together have been processed, or at once with other segments.
    AfterBurst,
    /// After this time, or when it would have left anyway.
    Within(Duration),
    /// At this time, or when it would have left anyway.
    By(Instant),
}

/// Whether an ACK was sent at the end of its delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckDelay {
    /// It was sent earlier, alone or with data.
    NotOver,
    /// The delay is over, and no data took the ACK along.
    Over,
}

/// Rules by which one connection sends ACKs. For each event a style returns when the next ACK is sent. Gaps, duplicates and
/// a full window are acknowledged at once with every style.
pub trait AckStyle: fmt::Debug + Send {
    /// The peer's SYN-ACK has opened the connection, and a write waits for that: its data can carry the ACK.
    fn on_awaited_open(&mut self, facts: AckFacts, now: Instant) -> AckTime;

    /// Payload arrived in order.
    fn on_data(&mut self, facts: AckFacts, now: Instant) -> AckTime;

    /// The peer's FIN arrived in order.
    fn on_fin(&mut self) -> AckTime;

    /// A segment arrived that is acknowledged at once.
    fn on_notable(&mut self, facts: AckFacts);

    /// The ECN field of arriving data calls for a fast ACK.
    fn on_mark(&mut self, haste: Haste) -> AckTime;

    /// Returns whether a pending ACK is sent when the link is empty, or soon after.
    fn waits_for_link(&self) -> bool;

    /// The stack has emptied the link.
    fn on_drained(&mut self) -> AckTime;

    /// The user has read everything.
    fn on_read(&mut self, facts: AckFacts) -> AckTime;

    /// Data was sent.
    fn on_data_sent(&mut self, now: Instant);

    /// An ACK was sent, alone or with data.
    fn on_ack_sent(&mut self, delay: AckDelay, facts: AckFacts, now: Instant);

    /// The user wants quick ACKs, or no longer (TCP_QUICKACK).
    fn set_quick(&mut self, quick: bool);

    /// Returns whether ACKs are quick, as TCP_QUICKACK reports it.
    fn is_quick(&self) -> bool;
}

impl AckPolicy {
    pub(crate) fn new(cx: &Context<'_>) -> AckPolicy {
        let mss = cx.config.mss(cx.settings);
        AckPolicy {
            due: AckDue::Never,
            unacked: 0,
            rcv_mss: DEFAULT_MSS.min(mss),
            mss,
            style: cx.shared().policy.ack_style(&cx.shared().acks),
        }
    }

    pub(crate) fn rcv_mss(&self) -> u16 {
        self.rcv_mss
    }

    /// Takes one arrival; `window` is how many bytes the peer may still send.
    pub(crate) fn on_arrival(&mut self, arrival: Arrival, window: u32, now: Instant) {
        let time = match arrival {
            Arrival::InOrder { len, push } => {
                let packet = u16::try_from(len).unwrap_or(u16::MAX).min(self.mss);
                self.rcv_mss = self.rcv_mss.max(packet);
                self.unacked = self.unacked.saturating_add(len);
                let facts = AckFacts {
                    len,
                    push,
                    ..self.facts(window)
                };
                self.style.on_data(facts, now)
            }
            // Measured: Linux acknowledges it late.
            Arrival::Beyond => AckTime::Within(DELAYED_ACK),
            Arrival::Notable => {
                self.style.on_notable(self.facts(window));
                AckTime::Now
            }
            Arrival::Fin => self.style.on_fin(),
        };
        self.schedule(time, now);
    }

    /// Takes the SYN-ACK that opens a connection for which a write waits; `window` is how many bytes the peer may send.
    pub(crate) fn on_awaited_open(&mut self, window: u32, now: Instant) {
        let time = self.style.on_awaited_open(self.facts(window), now);
        self.schedule(time, now);
    }

    /// Takes an arrival that is marked, or lacks the codepoint of others.
    pub(crate) fn on_mark(&mut self, haste: Haste) {
        if self.style.on_mark(haste) == AckTime::Now {
            self.due = AckDue::Now;
        }
    }

    fn facts(&self, window: u32) -> AckFacts {
        AckFacts {
            len: 0,
            push: false,
            unacked: self.unacked,
            window,
            rcv_mss: self.rcv_mss,
            mss: self.mss,
        }
    }

    /// Takes a decision of the style; an earlier time that was decided before stays.
    fn schedule(&mut self, time: AckTime, now: Instant) {
        self.due = match (time, self.due) {
            (AckTime::Unchanged, due) => due,
            (AckTime::Now, _) | (_, AckDue::Now) => AckDue::Now,
            (AckTime::AfterBurst, _) | (_, AckDue::AfterBurst) => AckDue::AfterBurst,
            (AckTime::Within(delay), due) => due.or_by(now + delay),
            (AckTime::By(at), due) => due.or_by(at),
        };
    }

    /// Notes that data is sent.
    pub(crate) fn on_data_sent(&mut self, now: Instant) {
        self.style.on_data_sent(now);
    }

    /// The user has read everything.
    pub(crate) fn on_read(&mut self) {
        if self.is_pending() && self.style.on_read(self.facts(0)) == AckTime::Now {
            self.due = AckDue::Now;
        }
    }

    /// Returns whether ACKs are quick (TCP_QUICKACK).
    pub(crate) fn is_quick(&self) -> bool {
        self.style.is_quick()
    }

    /// Switches quick ACKs on or off (TCP_QUICKACK); a pending ACK becomes due.
    pub(crate) fn set_quick(&mut self, quick: bool) {
        self.style.set_quick(quick);
        if quick && self.is_pending() {
            self.due = AckDue::Now;
        }
    }

    /// The link is empty: a pending ACK is sent when the style says so.
    pub(crate) fn on_drained(&mut self) {
        if self.is_pending() {
            let time = self.style.on_drained();
            // No time is needed: a style says when, not how long after this.
            self.schedule(time, Instant::ZERO);
        }
    }

    /// Nothing has arrived since the link was empty: an ACK that was held back then becomes due.
    pub(crate) fn on_idle(&mut self) {
        if self.waits_for_link() {
            self.due = AckDue::Now;
        }
    }

    /// Returns whether an ACK is pending that leaves when the link is empty: one that waits for an answer of the program does not.
    pub(crate) fn waits_for_link(&self) -> bool {
        self.is_pending() && self.style.waits_for_link()
    }

    /// Makes an ACK due at once.
    pub(crate) fn request(&mut self) {
        self.due = AckDue::Now;
    }

    /// An ACK was sent, alone or with data.
    pub(crate) fn on_sent(&mut self, now: Instant) {
        let delay = match self.due {
            AckDue::At(at) if at <= now => AckDelay::Over,
            _ => AckDelay::NotOver,
        };
        let facts = self.facts(0);
        self.style.on_ack_sent(delay, facts, now);
        self.due = AckDue::Never;
        self.unacked = 0;
    }

    /// Returns whether an ACK is pending, due or not.
    pub(crate) fn is_pending(&self) -> bool {
        self.due != AckDue::Never
    }

    pub(crate) fn is_due(&self, now: Instant) -> bool {
        match self.due {
            AckDue::Never => false,
            AckDue::At(at) => at <= now,
            AckDue::AfterBurst | AckDue::Now => true,
        }
    }

    /// Returns whether an ACK is due that must not wait for the end of the burst.
    pub(crate) fn is_urgent(&self, now: Instant) -> bool {
        self.due != AckDue::AfterBurst && self.is_due(now)
    }

    /// Returns when the delay of a pending ACK is over.
    pub(crate) fn next_timer(&self) -> Option<Instant> {
        match self.due {
            AckDue::At(at) => Some(at),
            AckDue::Never | AckDue::AfterBurst | AckDue::Now => None,
        }
    }
}
