//! When ACKs are sent.
//!
//! An ACK without data costs a packet here and work at the sender. So in a bulk transfer without loss one ACK covers up to
//! [`ACK_BYTES_MAX`](crate::config::ACK_BYTES_MAX) bytes, or a quarter of the window. It is sent when the stack has passed on the
//! packets that it has received together, and covers all of those of its connection. The ACKs of several connections are then sent
//! in a row: the code that a TAP runs for each of them is in the cache.
//!
//! When the link is empty, the stack calls [`AckPolicy::on_drained`], and pending ACKs are sent. Soon after one that covered many
//! bytes (`DRAINED_INTERVAL`) they wait for the next poll, which sends them if it receives nothing ([`AckPolicy::on_idle`]).
//!
//! A small request that the program has always answered is acknowledged with the answer, and so is one of several segments if the answer
//! comes before the next poll (`interactive.rs`).
//!
//! So RFC 9293 3.8.6.3 holds: while the link is not saturated, at least every second segment is acknowledged, and the last packet of a
//! request by the next poll; no ACK waits for more than 500 ms.

mod decision;
mod interactive;
mod linux;
mod when_drained;

use wire::Instant;

use crate::config::{DEFAULT_MSS, DELAYED_ACK};
use crate::context::Context;
use crate::ecn::echo::AckUrgency;
use crate::tuning::AckRules;
use decision::{AckFacts, AckTime};
use linux::LinuxAcks;
use when_drained::WhenDrained;

/// Decides when the next ACK is sent.
#[derive(Debug)]
pub(crate) struct AckPolicy {
    due: AckDue,
    /// Payload bytes since the last ACK.
    unacked: usize,
    /// Largest payload of a packet seen: the size of the peer's full segments.
    rcv_mss: u16,
    mss: u16,
    rules: Rules,
}

/// The rules by which a connection sends ACKs, and their state. For each event they answer when the next ACK is sent. Gaps,
/// duplicates and a full window are acknowledged at once by all rules.
#[derive(Debug)]
enum Rules {
    Drained(WhenDrained),
    Linux(LinuxAcks),
}

/// Asks the rules in use.
macro_rules! ask {
    ($rules:expr, $event:ident($($fact:expr),*)) => {
        match $rules {
            Rules::Drained(rules) => rules.$event($($fact),*),
            Rules::Linux(rules) => rules.$event($($fact),*),
        }
    };
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
    /// Payload in order that reaches beyond the window ([`Tuning::takes_beyond_window`](crate::tuning::Tuning)).
    Beyond,
    /// An event that is acknowledged at once: a gap opened or filled, a duplicate.
    Notable,
    /// The peer's FIN, in order.
    Fin,
}

impl AckPolicy {
    pub(crate) fn new(cx: &Context<'_>) -> AckPolicy {
        let mss = cx.config.mss(cx.settings);
        AckPolicy {
            due: AckDue::Never,
            unacked: 0,
            rcv_mss: DEFAULT_MSS.min(mss),
            mss,
            rules: match cx.shared().tuning.acks {
                AckRules::Drained => Rules::Drained(WhenDrained::new(&cx.shared().acks)),
                AckRules::Linux => Rules::Linux(LinuxAcks::default()),
            },
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
                ask!(&mut self.rules, on_data(facts, now))
            }
            // Measured: Linux acknowledges it late.
            Arrival::Beyond => AckTime::Within(DELAYED_ACK),
            Arrival::Notable => {
                let facts = self.facts(window);
                ask!(&mut self.rules, on_notable(facts));
                AckTime::Now
            }
            Arrival::Fin => ask!(&mut self.rules, on_fin(now)),
        };
        self.schedule(time, now);
    }

    /// Takes the SYN-ACK that opens a connection for which a write waits; `window` is how many bytes the peer may send.
    pub(crate) fn on_awaited_open(&mut self, window: u32, now: Instant) {
        let facts = self.facts(window);
        let time = ask!(&mut self.rules, on_awaited_open(facts, now));
        self.schedule(time, now);
    }

    /// Takes an arrival that is marked, or lacks the codepoint of others.
    pub(crate) fn on_mark(&mut self, haste: AckUrgency) {
        if ask!(&mut self.rules, on_mark(haste)) == AckTime::Now {
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

    /// Takes a decision of the rules; an earlier time that was decided before stays.
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
        ask!(&mut self.rules, on_data_sent(now));
    }

    /// The user has read everything.
    pub(crate) fn on_read(&mut self) {
        let facts = self.facts(0);
        if self.is_pending() && ask!(&mut self.rules, on_read(facts)) == AckTime::Now {
            self.due = AckDue::Now;
        }
    }

    /// Returns whether ACKs are quick (TCP_QUICKACK).
    pub(crate) fn is_quick(&self) -> bool {
        ask!(&self.rules, is_quick())
    }

    /// Switches quick ACKs on or off (TCP_QUICKACK); a pending ACK becomes due.
    pub(crate) fn set_quick(&mut self, quick: bool) {
        ask!(&mut self.rules, set_quick(quick));
        if quick && self.is_pending() {
            self.due = AckDue::Now;
        }
    }

    /// The link is empty: a pending ACK is sent when the rules say so.
    pub(crate) fn on_drained(&mut self) {
        if self.is_pending() {
            let time = ask!(&mut self.rules, on_drained());
            // No time is needed: the rules say when, not how long after this.
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
        self.is_pending() && ask!(&self.rules, waits_for_link())
    }

    /// Makes an ACK due at once.
    pub(crate) fn request(&mut self) {
        self.due = AckDue::Now;
    }

    /// An ACK was sent, alone or with data.
    pub(crate) fn on_sent(&mut self, now: Instant) {
        let is_delayed = matches!(self.due, AckDue::At(at) if at <= now);
        let facts = self.facts(0);
        ask!(&mut self.rules, on_ack_sent(is_delayed, facts, now));
        self.due = AckDue::Never;
        self.unacked = 0;
    }

    /// Returns whether an ACK is pending, due or not.
    pub(crate) fn is_pending(&self) -> bool {
        self.due != AckDue::Never
    }

    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.is_due_at_once() || matches!(self.due, AckDue::At(at) if at <= now)
    }

    /// Returns whether an ACK is due, whatever the time is.
    pub(crate) fn is_due_at_once(&self) -> bool {
        matches!(self.due, AckDue::AfterBurst | AckDue::Now)
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
