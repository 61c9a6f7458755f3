//! When to acknowledge.
//!
//! A pure ACK costs a packet here and work at the sender, so in an undisturbed bulk transfer one
//! ACK covers up to [`ACK_BYTES_MAX`] bytes. What keeps the sender's clock going nevertheless is
//! [`AckPolicy::on_drained`]: the stack calls it when it has emptied the link, and no ACK waits
//! longer than that while anybody polls. RFC 9293 3.8.6.3's "every second segment" is thus kept
//! whenever the link is not saturated, and its 500 ms always.

use core::fmt;
use core::time::Duration;

use wire::Instant;

use crate::config::{ACK_BYTES_MAX, AckConfig, ConnectionConfig, DEFAULT_MSS};
use crate::ecn::Haste;

/// Decides when the next ACK leaves.
#[derive(Debug)]
pub(crate) struct AckPolicy {
    due: AckDue,
    /// Payload bytes since the last ACK.
    unacked: usize,
    /// Largest payload seen, as far as one packet can hold it: the peer's idea of a full segment.
    rcv_mss: u16,
    mss: u16,
    style: Box<dyn AckStyle>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AckDue {
    Never,
    At(Instant),
    Now,
}

/// Why a segment wants an ACK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// Payload in order, nothing missing; whether the peer's writer waits (PSH).
    InOrder { len: usize, push: bool },
    /// Anything that must be told at once: a gap opened or filled, a duplicate.
    Notable,
    /// The peer's FIN, in order.
    Fin,
}

/// What a style of acknowledging decides from.
#[derive(Debug, Clone, Copy)]
pub struct AckFacts {
    /// Payload bytes of this arrival.
    pub len: usize,
    /// The peer's writer waits for an answer (PSH).
    pub push: bool,
    /// Payload bytes since the last ACK, these included.
    pub unacked: usize,
    /// Bytes that the peer may still send.
    pub window: u32,
    /// The peer's idea of a full segment, in bytes.
    pub rcv_mss: u16,
}

/// When an ACK leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckTime {
    /// As decided before.
    Unchanged,
    /// At once.
    Now,
    /// After this time, or when it would have left anyway.
    Within(Duration),
}

/// Whether the ACK that leaves had waited for all of its delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckDelay {
    /// It left before, alone or on data.
    NotOver,
    /// It found nothing to ride on.
    Over,
}

/// What one connection's acknowledgements depend on. Each event says what happened and is answered by when the next ACK
/// leaves; a gap, a duplicate and a full window are acknowledged at once whatever the style.
pub trait AckStyle: fmt::Debug + Send {
    /// Payload arrived in order.
    fn on_data(&mut self, facts: AckFacts, now: Instant) -> AckTime;

    /// The peer's FIN arrived in order.
    fn on_fin(&mut self) -> AckTime;

    /// Something arrived that is acknowledged at once.
    fn on_notable(&mut self, facts: AckFacts);

    /// The ECN field of an arrival has news.
    fn on_mark(&mut self, haste: Haste) -> AckTime;

    /// The stack has emptied the link.
    fn on_drained(&mut self) -> AckTime;

    /// The user has read all there was.
    fn on_read(&mut self, facts: AckFacts) -> AckTime;

    /// Data of ours left.
    fn on_data_sent(&mut self, now: Instant);

    /// An ACK left, alone or on data.
    fn on_ack_sent(&mut self, delay: AckDelay);

    /// The user wants quick ACKs, or no longer (TCP_QUICKACK).
    fn set_quick(&mut self, quick: bool);
}

/// Acknowledges when the link is empty: nothing is gained by waiting, and no bulk transfer pays for it.
#[derive(Debug)]
pub(crate) struct WhenDrained {
    /// Segments that are still acknowledged one by one.
    quick: u8,
    delay: Duration,
    bytes: Option<u32>,
}

impl WhenDrained {
    pub(crate) fn new(config: &AckConfig) -> WhenDrained {
        let AckConfig {
            delay,
            quick,
            bytes,
            invalid_interval: _,
        } = *config;
        WhenDrained {
            quick,
            delay,
            bytes,
        }
    }

    /// Returns after how many bytes an ACK is due. A quarter of the window leaves the sender room
    /// to go on while the ACK travels; two segments is what RFC 9293 3.8.6.3 asks for at least.
    fn threshold(&self, facts: AckFacts) -> usize {
        let bulk = self.bytes.unwrap_or(ACK_BYTES_MAX.min(facts.window / 4));
        (bulk as usize).max(2 * usize::from(facts.rcv_mss))
    }
}

impl AckStyle for WhenDrained {
    fn on_data(&mut self, facts: AckFacts, _: Instant) -> AckTime {
        let quick = self.quick > 0 && !facts.push;
        if quick {
            self.quick -= 1;
        }
        match quick || facts.unacked >= self.threshold(facts) {
            true => AckTime::Now,
            false => AckTime::Within(self.delay),
        }
    }

    fn on_fin(&mut self) -> AckTime {
        AckTime::Now
    }

    fn on_notable(&mut self, _: AckFacts) {}

    fn on_mark(&mut self, haste: Haste) -> AckTime {
        match haste {
            Haste::Marked => AckTime::Now,
            Haste::No | Haste::Repeated => AckTime::Unchanged,
        }
    }

    fn on_drained(&mut self) -> AckTime {
        AckTime::Now
    }

    fn on_read(&mut self, _: AckFacts) -> AckTime {
        AckTime::Unchanged
    }

    fn on_data_sent(&mut self, _: Instant) {}

    fn on_ack_sent(&mut self, _: AckDelay) {}

    fn set_quick(&mut self, _: bool) {}
}

impl AckPolicy {
    pub(crate) fn new(config: &ConnectionConfig) -> AckPolicy {
        let mss = config.mss();
        AckPolicy {
            due: AckDue::Never,
            unacked: 0,
            rcv_mss: DEFAULT_MSS.min(mss),
            mss,
            style: config.shared.policy.ack_style(&config.shared.acks),
        }
    }

    pub(crate) fn rcv_mss(&self) -> u16 {
        self.rcv_mss
    }

    /// Judges one arrival; `window` is what the peer may still send.
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
            Arrival::Notable => {
                self.style.on_notable(self.facts(window));
                AckTime::Now
            }
            Arrival::Fin => self.style.on_fin(),
        };
        self.schedule(time, now);
    }

    /// The arrival bore a mark, or lacked the codepoint that others had.
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
        }
    }

    /// What was decided before stays if it is earlier.
    fn schedule(&mut self, time: AckTime, now: Instant) {
        self.due = match (time, self.due) {
            (AckTime::Unchanged, due) => due,
            (AckTime::Now, _) | (_, AckDue::Now) => AckDue::Now,
            (AckTime::Within(delay), AckDue::At(before)) => AckDue::At(before.min(now + delay)),
            (AckTime::Within(delay), AckDue::Never) => AckDue::At(now + delay),
        };
    }

    /// Data of ours leaves.
    pub(crate) fn on_data_sent(&mut self, now: Instant) {
        self.style.on_data_sent(now);
    }

    /// The user has read all there was.
    pub(crate) fn on_read(&mut self) {
        if self.is_pending() && self.style.on_read(self.facts(0)) == AckTime::Now {
            self.due = AckDue::Now;
        }
    }

    /// Switches quick ACKs on or off (TCP_QUICKACK); what waits leaves with that.
    pub(crate) fn set_quick(&mut self, quick: bool) {
        self.style.set_quick(quick);
        if quick && self.is_pending() {
            self.due = AckDue::Now;
        }
    }

    /// The link is empty: acknowledges whatever is not acknowledged, if the style does so.
    pub(crate) fn on_drained(&mut self) {
        if self.is_pending() && self.style.on_drained() == AckTime::Now {
            self.due = AckDue::Now;
        }
    }

    /// Wants an ACK at once.
    pub(crate) fn request(&mut self) {
        self.due = AckDue::Now;
    }

    /// An ACK left, alone or on data.
    pub(crate) fn on_sent(&mut self, now: Instant) {
        let delay = match self.due {
            AckDue::At(at) if at <= now => AckDelay::Over,
            _ => AckDelay::NotOver,
        };
        self.style.on_ack_sent(delay);
        self.due = AckDue::Never;
        self.unacked = 0;
    }

    /// Returns whether something is not acknowledged yet, due or not.
    pub(crate) fn is_pending(&self) -> bool {
        self.due != AckDue::Never
    }

    pub(crate) fn is_due(&self, now: Instant) -> bool {
        match self.due {
            AckDue::Never => false,
            AckDue::At(at) => at <= now,
            AckDue::Now => true,
        }
    }

    /// Returns when a delayed ACK leaves by itself.
    pub(crate) fn next_timer(&self) -> Option<Instant> {
        match self.due {
            AckDue::At(at) => Some(at),
            AckDue::Never | AckDue::Now => None,
        }
    }
}
