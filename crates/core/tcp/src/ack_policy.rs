//! When to acknowledge.
//!
//! A pure ACK costs a packet here and work at the sender, so in an undisturbed bulk transfer one
//! ACK covers up to [`ACK_BYTES_MAX`] bytes. What keeps the sender's clock going nevertheless is
//! [`AckPolicy::on_drained`]: the stack calls it when it has emptied the link, and no ACK waits
//! longer than that while anybody polls. RFC 9293 3.8.6.3's "every second segment" is thus kept
//! whenever the link is not saturated, and its 500 ms always.

mod linux;

use core::time::Duration;

use wire::Instant;

use crate::config::{ACK_BYTES_MAX, AckStyle, ConnectionConfig, DEFAULT_MSS, RTO_MIN};
use crate::ecn::Haste;
use linux::{Facts, LinuxAcks};

/// Decides when the next ACK leaves.
#[derive(Debug, Clone)]
pub(crate) struct AckPolicy {
    due: Due,
    /// Payload bytes since the last ACK.
    unacked: usize,
    quick: u8,
    /// Largest payload seen, as far as one packet can hold it: the peer's idea of a full segment.
    rcv_mss: u16,
    mss: u16,
    delay: Duration,
    ack_bytes: Option<u32>,
    /// Decides instead, if it shall be as in Linux.
    linux: Option<LinuxAcks>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
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

impl AckPolicy {
    pub(crate) fn new(config: &ConnectionConfig) -> AckPolicy {
        AckPolicy {
            due: Due::Never,
            unacked: 0,
            quick: config.shared.acks.quick,
            rcv_mss: DEFAULT_MSS.min(config.mss()),
            mss: config.mss(),
            delay: config.shared.acks.delay,
            ack_bytes: config.shared.acks.bytes,
            linux: match config.shared.ack_style {
                AckStyle::Drained => None,
                AckStyle::Linux => Some(LinuxAcks::default()),
            },
        }
    }

    pub(crate) fn rcv_mss(&self) -> u16 {
        self.rcv_mss
    }

    /// Judges one arrival; `window` is what the peer may still send.
    pub(crate) fn on_arrival(&mut self, arrival: Arrival, window: u32, now: Instant) {
        let (len, push) = match (arrival, &mut self.linux) {
            (Arrival::InOrder { len, push }, _) => (len, push),
            (Arrival::Fin, Some(linux)) => {
                let delay = linux.on_fin();
                return self.put_off(now + delay);
            }
            (Arrival::Notable, Some(linux)) => {
                linux.on_notable(Facts {
                    len: 0,
                    unacked: self.unacked,
                    window,
                    rcv_mss: self.rcv_mss,
                });
                return self.request();
            }
            (Arrival::Notable | Arrival::Fin, None) => return self.request(),
        };
        let packet = u16::try_from(len).unwrap_or(u16::MAX).min(self.mss);
        self.rcv_mss = self.rcv_mss.max(packet);
        self.unacked = self.unacked.saturating_add(len);
        let facts = self.facts(len, window);
        if let Some(linux) = &mut self.linux {
            match linux.on_arrival(facts, RTO_MIN, now) {
                None => self.request(),
                Some(delay) => self.put_off(now + delay),
            }
            return;
        }
        let quick = self.quick > 0 && !push;
        if quick {
            self.quick -= 1;
        }
        if quick || self.unacked >= self.threshold(window) {
            self.due = Due::Now;
        } else if self.due == Due::Never {
            self.due = Due::At(now + self.delay);
        }
    }

    /// The arrival bore a mark, or lacked the codepoint that others had.
    pub(crate) fn on_mark(&mut self, haste: Haste) {
        match (haste, &mut self.linux) {
            (Haste::No, _) | (Haste::Repeated, None) => {}
            (Haste::Marked | Haste::Repeated, Some(linux)) => {
                linux.on_mark();
                self.request();
            }
            (Haste::Marked, None) => self.request(),
        }
    }

    fn facts(&self, len: usize, window: u32) -> Facts {
        Facts {
            len,
            unacked: self.unacked,
            window,
            rcv_mss: self.rcv_mss,
        }
    }

    /// An ACK leaves at `at`, or when it would have left anyway.
    fn put_off(&mut self, at: Instant) {
        self.due = match self.due {
            Due::Now => Due::Now,
            Due::At(before) => Due::At(before.min(at)),
            Due::Never => Due::At(at),
        };
    }

    /// Data of ours leaves.
    pub(crate) fn on_data_sent(&mut self, now: Instant) {
        if let Some(linux) = &mut self.linux {
            linux.on_data_sent(now);
        }
    }

    /// The user has read all there was.
    pub(crate) fn on_read(&mut self) {
        let facts = self.facts(0, 0);
        if let (Due::At(_), Some(linux)) = (self.due, &self.linux)
            && linux.is_due_when_read(facts)
        {
            self.due = Due::Now;
        }
    }

    /// Switches quick ACKs on or off (TCP_QUICKACK); what waits leaves with that.
    pub(crate) fn set_quick(&mut self, quick: bool) {
        if let Some(linux) = &mut self.linux {
            linux.set_quick(quick);
        }
        if quick && self.due != Due::Never {
            self.due = Due::Now;
        }
    }

    /// Returns after how many bytes an ACK is due. A quarter of the window leaves the sender room
    /// to go on while the ACK travels; two segments is what RFC 9293 3.8.6.3 asks for at least.
    fn threshold(&self, window: u32) -> usize {
        let bulk = self.ack_bytes.unwrap_or(ACK_BYTES_MAX.min(window / 4));
        (bulk as usize).max(2 * usize::from(self.rcv_mss))
    }

    /// Acknowledges at once whatever is not acknowledged: the link is empty, nothing is gained by
    /// waiting.
    pub(crate) fn on_drained(&mut self) {
        if self.due != Due::Never && self.linux.is_none() {
            self.due = Due::Now;
        }
    }

    /// Wants an ACK at once.
    pub(crate) fn request(&mut self) {
        self.due = Due::Now;
    }

    /// An ACK left, alone or on data.
    pub(crate) fn on_sent(&mut self, now: Instant) {
        if let Some(linux) = &mut self.linux {
            if matches!(self.due, Due::At(at) if at <= now) {
                linux.on_delay_over(RTO_MIN);
            }
            linux.on_sent();
        }
        self.due = Due::Never;
        self.unacked = 0;
    }

    /// Returns whether something is not acknowledged yet, due or not.
    pub(crate) fn is_pending(&self) -> bool {
        self.due != Due::Never
    }

    pub(crate) fn is_due(&self, now: Instant) -> bool {
        match self.due {
            Due::Never => false,
            Due::At(at) => at <= now,
            Due::Now => true,
        }
    }

    /// Returns when a delayed ACK leaves by itself.
    pub(crate) fn next_timer(&self) -> Option<Instant> {
        match self.due {
            Due::At(at) => Some(at),
            Due::Never | Due::Now => None,
        }
    }
}
