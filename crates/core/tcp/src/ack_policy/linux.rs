//! The ACKs of a Linux receiver, for comparisons segment by segment.
//!
//! Facts from linux net/ipv4/tcp_input.c (`tcp_event_data_recv`, `__tcp_ack_snd_check`,
//! `tcp_measure_rcv_mss`), tcp_output.c (`tcp_event_data_sent`, `tcp_send_delayed_ack`), tcp_timer.c
//! (`tcp_delack_timer_handler`) and tcp.c (`__tcp_cleanup_rbuf`). Left out: compressed SACK (1 ms of
//! patience with the fourth and later duplicates).

use core::time::Duration;

use wire::Instant;

use super::decision::{AckFacts as Facts, AckTime};
use crate::config::{DELAYED_ACK, QUICK_ACKS, RTO_MIN};
use crate::ecn::echo::AckUrgency;

/// Longest time that an ACK is delayed (linux `TCP_DELACK_MAX`).
const DELAYED_ACK_MAX: Duration = Duration::from_millis(200);

/// Smallest estimate of the time between two arrivals (linux `TCP_ATO_MIN`).
const ATO_MIN: Duration = DELAYED_ACK;

/// Smallest number of immediate ACKs when a sender starts, or starts again.
const QUICK_ACKS_MIN: u8 = 2;

/// State of Linux's rules.
#[derive(Debug, Clone, Default)]
pub(super) struct LinuxAcks {
    /// Number of immediate ACKs left.
    quick: u8,
    /// Both sides send in turn: an ACK may be sent with the answer (linux pingpong mode).
    interactive: bool,
    /// Estimated time between arrivals; `None` before the first.
    ato: Option<Duration>,
    last_arrival: Instant,
    pushed: Pushed,
}

/// Whether small segments wait for an ACK (linux `ICSK_ACK_PUSHED`, `ICSK_ACK_PUSHED2`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Pushed {
    #[default]
    Nothing,
    One,
    Several,
}

impl LinuxAcks {
    /// As `tcp_rcv_synsent_state_process` with `sk_write_pending`.
    pub(super) fn on_awaited_open(&mut self, facts: Facts, now: Instant) -> AckTime {
        self.on_notable(facts);
        self.last_arrival = now;
        AckTime::Within(DELAYED_ACK_MAX)
    }

    pub(super) fn on_data(&mut self, facts: Facts, now: Instant) -> AckTime {
        if facts.len < usize::from(facts.rcv_mss) {
            self.pushed = match self.pushed {
                Pushed::Nothing => Pushed::One,
                Pushed::One | Pushed::Several => Pushed::Several,
            };
        }
        self.estimate(facts, now);
        let is_quick = self.quick > 0 && !self.interactive;
        match facts.unacked <= usize::from(facts.rcv_mss) && !is_quick {
            true => AckTime::Within(self.delay()),
            false => AckTime::Now,
        }
    }

    /// The peer has ended its stream: the program will answer soon, perhaps with a FIN (linux `tcp_fin`).
    /// Before any data the estimate is 0, and the ACK is sent at once.
    pub(super) fn on_fin(&mut self, _: Instant) -> AckTime {
        self.interactive = true;
        AckTime::Within(self.ato.map_or(Duration::ZERO, |_| self.delay()))
    }

    pub(super) fn on_notable(&mut self, facts: Facts) {
        self.add_quick(facts);
        self.interactive = false;
        self.ato = Some(ATO_MIN);
    }

    /// The ECN field of an arrival shows that the sender's window is small, or will be (linux
    /// `tcp_enter_quickack_mode` with two ACKs).
    pub(super) fn on_mark(&mut self, haste: AckUrgency) -> AckTime {
        if haste == AckUrgency::No {
            return AckTime::Unchanged;
        }
        self.quick = self.quick.max(QUICK_ACKS_MIN);
        self.interactive = false;
        self.ato = Some(ATO_MIN);
        AckTime::Now
    }

    pub(super) fn waits_for_link(&self) -> bool {
        false
    }

    pub(super) fn on_drained(&mut self) -> AckTime {
        AckTime::Unchanged
    }

    /// The program has read everything.
    pub(super) fn on_read(&mut self, facts: Facts) -> AckTime {
        let is_due = match self.pushed {
            _ if facts.unacked > usize::from(facts.rcv_mss) => true,
            Pushed::Nothing => false,
            Pushed::One => !self.interactive,
            Pushed::Several => true,
        };
        match is_due {
            true => AckTime::Now,
            false => AckTime::Unchanged,
        }
    }

    /// Data soon after an arrival is an answer.
    pub(super) fn on_data_sent(&mut self, now: Instant) {
        if let Some(ato) = self.ato
            && now.saturating_since(self.last_arrival) < ato
        {
            self.interactive = true;
        }
    }

    pub(super) fn on_ack_sent(&mut self, is_delayed: bool, _: Facts, _: Instant) {
        if is_delayed {
            self.ato = Some(match (self.interactive, self.ato) {
                (false, Some(ato)) => (ato * 2).min(RTO_MIN),
                _ => ATO_MIN,
            });
            self.interactive = false;
        }
        self.quick = self.quick.saturating_sub(1);
        if self.quick == 0 && self.ato.is_some() {
            self.ato = Some(ATO_MIN);
        }
        self.pushed = Pushed::Nothing;
    }

    pub(super) fn set_quick(&mut self, quick: bool) {
        self.interactive = !quick;
        if quick {
            self.quick = self.quick.max(QUICK_ACKS_MIN);
        }
    }

    pub(super) fn is_quick(&self) -> bool {
        !self.interactive
    }

    fn estimate(&mut self, facts: Facts, now: Instant) {
        let since = now.saturating_since(self.last_arrival);
        self.last_arrival = now;
        let Some(ato) = self.ato else {
            self.add_quick(facts);
            self.ato = Some(ATO_MIN);
            return;
        };
        if since <= ATO_MIN / 2 {
            self.ato = Some(ato / 2 + ATO_MIN / 2);
        } else if since < ato {
            self.ato = Some((ato / 2 + since).min(RTO_MIN));
        } else if since > RTO_MIN {
            // After a long pause the sender is in slow start again, and needs every ACK.
            self.add_quick(facts);
        }
    }

    fn add_quick(&mut self, facts: Facts) {
        let windows = facts.window / (2 * u32::from(facts.rcv_mss).max(1));
        let quick = u8::try_from(windows)
            .unwrap_or(u8::MAX)
            .clamp(QUICK_ACKS_MIN, QUICK_ACKS);
        self.quick = self.quick.max(quick);
    }

    fn delay(&self) -> Duration {
        self.ato.unwrap_or(ATO_MIN).clamp(ATO_MIN, DELAYED_ACK_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(unacked: usize) -> Facts {
        Facts {
            len: 1000,
            push: false,
            unacked,
            window: 65_535,
            rcv_mss: 1000,
            mss: 1460,
        }
    }

    fn at(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }

    /// An ACK is sent after its delay, or before.
    fn send_ack(acks: &mut LinuxAcks, is_delayed: bool) {
        acks.on_ack_sent(is_delayed, facts(0), Instant::ZERO);
    }

    #[test]
    fn the_first_sixteen_segments_are_acknowledged_at_once_and_then_every_second() {
        let mut acks = LinuxAcks::default();
        for ms in 0..16 {
            assert_eq!(acks.on_data(facts(1000), at(ms)), AckTime::Now, "{ms}");
            send_ack(&mut acks, false);
        }
        assert_eq!(acks.on_data(facts(1000), at(16)), AckTime::Within(ATO_MIN));
        assert_eq!(acks.on_data(facts(2000), at(17)), AckTime::Now);
    }

    #[test]
    fn sending_data_delays_the_next_ack_until_a_delay_expires() {
        let mut acks = LinuxAcks::default();
        assert_eq!(acks.on_data(facts(1000), at(0)), AckTime::Now);
        send_ack(&mut acks, false);
        acks.on_data_sent(at(1));
        assert_eq!(acks.on_data(facts(1000), at(100)), AckTime::Within(ATO_MIN));
        send_ack(&mut acks, true);
        assert_eq!(acks.on_data(facts(1000), at(200)), AckTime::Now);
    }

    #[test]
    fn a_small_window_gets_fewer_quick_acks() {
        let mut acks = LinuxAcks::default();
        let tight = Facts {
            window: 8000,
            ..facts(1000)
        };
        for ms in 0..4 {
            assert_eq!(acks.on_data(tight, at(ms)), AckTime::Now);
            send_ack(&mut acks, false);
        }
        assert_ne!(acks.on_data(tight, at(4)), AckTime::Now);
    }

    #[test]
    fn a_fin_waits_for_the_program_to_close() {
        let mut acks = LinuxAcks::default();
        let at_once = AckTime::Within(Duration::ZERO);
        assert_eq!(acks.on_fin(at(0)), at_once, "nothing came before it");
        assert_ne!(acks.on_data(facts(1000), at(0)), AckTime::Now);
        assert_eq!(acks.on_fin(at(1)), AckTime::Within(ATO_MIN));
        acks.set_quick(true);
        assert_eq!(acks.on_data(facts(1000), at(1)), AckTime::Now);
    }
}
