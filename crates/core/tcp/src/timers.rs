//! Timers and rate limits of a connection outside the sender: handshake, keepalive, challenge ACKs.

use core::time::Duration;

use wire::Instant;

use crate::config::{
    CHALLENGE_ACK_INTERVAL, CHALLENGE_ACK_LIMIT, INVALID_ACK_INTERVAL, TimerConfig,
};
use crate::error::TcpError;
use crate::settings::{Keepalive, Settings};

/// Timer of a SYN or SYN-ACK: it is repeated with equal intervals at first, then with doubling ones (RFC 6298 2.1, 5.5).
#[derive(Debug, Clone, Default)]
pub(crate) struct HandshakeTimer {
    /// The segment is to be sent now.
    due: bool,
    /// When it is sent again, or given up.
    deadline: Option<Instant>,
    /// Repetitions after a timeout.
    retries: u8,
    /// Number of them that neither double the interval nor count for the limit.
    linear: u8,
    opened: Instant,
    sent: Option<Instant>,
    sent_again: bool,
}

impl HandshakeTimer {
    pub(crate) fn new(linear: u8, now: Instant) -> HandshakeTimer {
        HandshakeTimer {
            due: true,
            linear,
            opened: now,
            ..HandshakeTimer::default()
        }
    }

    /// Returns whether the segment is to be sent now; it counts as sent then.
    pub(crate) fn poll_send(&mut self, config: &TimerConfig, now: Instant) -> bool {
        if !core::mem::take(&mut self.due) {
            return false;
        }
        self.sent_again = self.sent.is_some();
        self.sent = Some(now);
        if self.deadline.is_none() {
            let doublings = self.retries.saturating_sub(self.linear);
            self.deadline = Some(now + interval(config, doublings));
        }
        true
    }

    /// Makes the segment due at once: the peer repeated its own. The timer is not restarted: a peer that keeps
    /// repeating would keep the handshake alive for ever.
    pub(crate) fn request(&mut self) {
        self.due = true;
    }

    /// Runs the timer. The limits are the number of repetitions, the time
    /// that `max_retries` of them take with doubling intervals, which equal intervals do not prolong (linux
    /// `retransmits_timed_out`), and `user_timeout`.
    ///
    /// # Errors
    /// [`TcpError::TimedOut`]: the peer did not answer in time.
    pub(crate) fn on_timer(
        &mut self,
        config: &TimerConfig,
        max_retries: u8,
        user_timeout: Option<Duration>,
        now: Instant,
    ) -> Result<(), TcpError> {
        if self.deadline.is_none_or(|deadline| deadline > now) {
            return Ok(());
        }
        let waited = now.saturating_since(self.opened);
        let limit = doubling_time(config, max_retries).min(user_timeout.unwrap_or(Duration::MAX));
        if self.retries >= max_retries.saturating_add(self.linear) || waited >= limit {
            return Err(TcpError::TimedOut);
        }
        self.retries += 1;
        self.due = true;
        self.deadline = None;
        Ok(())
    }

    pub(crate) fn next_timer(&self) -> Option<Instant> {
        self.deadline
    }

    pub(crate) fn is_sent(&self) -> bool {
        self.sent.is_some()
    }

    /// Returns when the handshake began.
    pub(crate) fn opened(&self) -> Instant {
        self.opened
    }

    /// Returns whether the segment was sent more than once, for any reason.
    pub(crate) fn is_repeat(&self) -> bool {
        self.sent_again
    }

    /// Returns the number of timeouts.
    pub(crate) fn retries(&self) -> u8 {
        self.retries
    }

    pub(crate) fn timed_out(&self) -> bool {
        self.retries > 0
    }

    /// Returns the round-trip time of the handshake, if the segment was sent only once (RFC
    /// 6298 3, Karn).
    pub(crate) fn rtt(&self, now: Instant) -> Option<Duration> {
        self.sent
            .filter(|_| !self.sent_again)
            .map(|sent| now.saturating_since(sent))
    }
}

/// Returns the initial timeout, doubled so often.
fn interval(config: &TimerConfig, doublings: u8) -> Duration {
    let doubled = config.rto_initial.saturating_mul(1 << doublings.min(16));
    doubled.min(config.rto_max)
}

/// Returns how long a segment waits for an answer that is repeated `retries` times with doubling intervals (linux
/// `tcp_model_timeout`).
fn doubling_time(config: &TimerConfig, retries: u8) -> Duration {
    (0..=retries)
        .map(|doublings| interval(config, doublings))
        .fold(Duration::ZERO, Duration::saturating_add)
}

/// Timer for probes of a silent peer (RFC 9293 3.8.4).
#[derive(Debug, Clone, Default)]
pub(crate) struct KeepaliveTimer {
    heard: Instant,
    next: Option<Instant>,
    probes: u8,
    due: bool,
}

impl KeepaliveTimer {
    pub(crate) fn new(setting: Option<Keepalive>, now: Instant) -> KeepaliveTimer {
        KeepaliveTimer {
            heard: now,
            next: setting.map(|keepalive| now + keepalive.idle),
            ..KeepaliveTimer::default()
        }
    }

    /// Takes a change of the setting: the silence counts from what was heard last.
    pub(crate) fn on_setting(&mut self, setting: Option<Keepalive>) {
        *self = KeepaliveTimer {
            probes: self.probes,
            ..KeepaliveTimer::new(setting, self.heard)
        };
    }

    /// Notes a segment from the peer.
    pub(crate) fn on_heard(&mut self, setting: Option<Keepalive>, now: Instant) {
        *self = KeepaliveTimer::new(setting, now);
    }

    /// Runs the timer. With data in flight, the retransmission timer probes the peer instead.
    ///
    /// # Errors
    /// [`TcpError::TimedOut`]: the peer is dead.
    pub(crate) fn on_timer(
        &mut self,
        is_busy: bool,
        settings: &Settings,
        now: Instant,
    ) -> Result<(), TcpError> {
        let is_over = self.next.is_some_and(|next| next <= now);
        let Some(keepalive) = settings.keepalive.filter(|_| is_over) else {
            return Ok(());
        };
        if is_busy {
            self.next = Some(now + keepalive.idle);
            return Ok(());
        }
        // A user timeout replaces the count of probes (linux `tcp_keepalive_timer`).
        let is_dead = match settings.user_timeout {
            Some(limit) => self.probes > 0 && now.saturating_since(self.heard) >= limit,
            None => self.probes >= keepalive.count,
        };
        if is_dead {
            return Err(TcpError::TimedOut);
        }
        self.probes = self.probes.saturating_add(1);
        self.due = true;
        self.next = Some(now + keepalive.interval);
        Ok(())
    }

    /// Returns whether a probe is to be sent; it counts as sent then.
    pub(crate) fn poll_send(&mut self) -> bool {
        core::mem::take(&mut self.due)
    }

    pub(crate) fn next_timer(&self) -> Option<Instant> {
        self.next
    }

    pub(crate) fn probes(&self) -> u8 {
        self.probes
    }
}

/// Rate limit of ACKs that answer unacceptable segments.
#[derive(Debug, Clone)]
pub(crate) struct ReplyLimit {
    invalid_interval: Duration,
    interval_start: Option<Instant>,
    challenges: u8,
    last_invalid: Option<Instant>,
}

impl Default for ReplyLimit {
    fn default() -> Self {
        Self::new(INVALID_ACK_INTERVAL)
    }
}

impl ReplyLimit {
    /// Returns a limit of one answer to an unacceptable segment without payload in `invalid_interval`.
    pub(crate) fn new(invalid_interval: Duration) -> Self {
        Self {
            invalid_interval,
            interval_start: None,
            challenges: 0,
            last_invalid: None,
        }
    }

    /// Returns whether a challenge ACK may be sent (RFC 5961 7). Each connection has a separate limit: a
    /// shared one would reveal other connections to an attacker (CVE-2016-5696).
    pub(crate) fn allow_challenge(&mut self, now: Instant) -> bool {
        let is_over = self
            .interval_start
            .is_none_or(|start| now.saturating_since(start) >= CHALLENGE_ACK_INTERVAL);
        if is_over {
            self.interval_start = Some(now);
            self.challenges = 0;
        }
        let allowed = self.challenges < CHALLENGE_ACK_LIMIT;
        self.challenges += u8::from(allowed);
        allowed
    }

    /// Returns whether a segment without payload, outside the window, may be answered: without a limit, two ends with
    /// different state would answer each other for ever (linux `tcp_oow_rate_limited`).
    pub(crate) fn allow_invalid(&mut self, now: Instant) -> bool {
        let allowed = self
            .last_invalid
            .is_none_or(|last| now.saturating_since(last) >= self.invalid_interval);
        if allowed {
            self.last_invalid = Some(now);
        }
        allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secs(s: u64) -> Instant {
        Instant::from_millis(1000 * s)
    }

    #[test]
    fn equal_intervals_do_not_prolong_a_handshake_with_few_retries() {
        for (retries, sent, end) in [
            (1, &[0, 1, 2][..], 3),
            (2, &[0, 1, 2, 3, 4, 5], 7),
            (3, &[0, 1, 2, 3, 4, 5, 7, 11], 19),
        ] {
            let config = TimerConfig::default();
            let mut timer = HandshakeTimer::new(config.syn_linear_timeouts, Instant::ZERO);
            let (mut times, mut now) = (Vec::new(), Instant::ZERO);
            loop {
                assert!(timer.poll_send(&config, now));
                times.push(now);
                now = timer.next_timer().unwrap();
                if timer.on_timer(&config, retries, None, now).is_err() {
                    break;
                }
            }
            let sent: Vec<Instant> = sent.iter().copied().map(secs).collect();
            assert_eq!((times, now), (sent, secs(end)), "{retries} retries");
        }
    }

    #[test]
    fn keepalive_leaves_a_busy_connection_alone() {
        let settings = Settings {
            keepalive: Some(Keepalive::default()),
            ..Settings::default()
        };
        let mut timer = KeepaliveTimer::new(settings.keepalive, secs(0));
        assert_eq!(timer.on_timer(true, &settings, secs(7200)), Ok(()));
        assert!(!timer.poll_send());
        assert_eq!(timer.next_timer(), Some(secs(14_400)));
    }
}
