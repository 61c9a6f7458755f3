//! A path that drops large packets silently (RFC 4821 7.7, linux `tcp_mtu_probing` = 1).
//!
//! ICMP tells a sender that its packets are too large, unless a middlebox drops the ICMP packets. Then a connection whose
//! small packets pass stops with its first large one. Three timeouts in a row of a large packet are taken as a sign of such
//! a path: packets are reduced to a size that nearly every path carries, and after three more timeouts to a smaller one.
//!
//! Three timeouts may also mean an outage. So once data flows again, larger packets are tried from time to time: the next
//! timeout of one of them ends the trial, and the interval until the next trial doubles.

use core::time::Duration;

use wire::Instant;

/// Timeouts in a row that make a large packet suspect (linux `tcp_retries1`).
const SUSPECT_TIMEOUTS: u8 = 3;

/// Payload of a packet to which a suspect path is reduced (linux `TCP_BASE_MSS`).
const REDUCED_MSS: u16 = 1024;

/// The same after as many timeouts again: what linux's `net.ipv4.route.min_pmtu` of 552 bytes leaves.
const LEAST_MSS: u16 = 512;

/// Seconds until larger packets are tried again, at first.
const FIRST_TRIAL_S: u16 = 10;

/// The same at most (RFC 8201 4 recommends ten minutes; linux `tcp_probe_interval`).
const LAST_TRIAL_S: u16 = 600;

/// Search for the packet size of a path that sends no ICMP.
#[derive(Debug)]
pub(super) struct PathMss {
    enabled: bool,
    /// What the peer and ICMP allow.
    ceiling: u16,
    search: Search,
    /// Seconds until the next trial.
    trial_interval_s: u16,
    black_holes: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Search {
    /// Packets are as large as allowed.
    Whole,
    /// They are smaller; larger ones are tried again then.
    Reduced { again_at: Instant },
    /// They are as large as allowed since offset `from`; packets of `good` bytes are known to pass.
    Trial { good: u16, from: u64 },
}

impl PathMss {
    pub(super) fn new(enabled: bool) -> Self {
        Self {
            enabled,
            ceiling: 0,
            search: Search::Whole,
            trial_interval_s: FIRST_TRIAL_S,
            black_holes: 0,
        }
    }

    /// Sets what the peer and the network allow, as far as they say.
    pub(super) fn set_ceiling(&mut self, mss: u16) {
        self.ceiling = mss;
    }

    pub(super) fn ceiling(&self) -> u16 {
        self.ceiling
    }

    pub(super) fn is_reduced(&self) -> bool {
        matches!(self.search, Search::Reduced { .. })
    }

    pub(super) fn black_holes(&self) -> u16 {
        self.black_holes
    }

    /// Judges a timeout of a packet with `packet` bytes, after `timeouts` others in a row: returns a smaller size to use, if
    /// the packet is suspect.
    pub(super) fn on_timeout(&mut self, packet: u64, timeouts: u8, now: Instant) -> Option<u16> {
        if !self.enabled {
            return None;
        }
        let smaller = match self.search {
            Search::Trial { good, .. } => good,
            _ => match timeouts / SUSPECT_TIMEOUTS {
                0 => return None,
                1 => REDUCED_MSS,
                _ => LEAST_MSS,
            },
        };
        if u64::from(smaller) >= packet {
            return None;
        }
        if let Search::Trial { .. } = self.search {
            self.trial_interval_s = (self.trial_interval_s * 2).min(LAST_TRIAL_S);
        }
        self.black_holes = self.black_holes.saturating_add(1);
        self.search = Search::Reduced {
            again_at: now + Duration::from_secs(self.trial_interval_s.into()),
        };
        Some(smaller)
    }

    /// Begins a trial of packets as large as allowed, from offset `from` on, if packets of `good` bytes are reduced ones and
    /// it is time; returns whether it did.
    pub(super) fn begin_trial(&mut self, good: u16, from: u64, now: Instant) -> bool {
        let is_due = matches!(self.search, Search::Reduced { again_at } if again_at <= now);
        if is_due {
            self.search = Search::Trial { good, from };
        }
        is_due
    }

    /// Ends a trial that succeeded: everything before `una` has arrived.
    pub(super) fn on_progress(&mut self, una: u64) {
        // More than a reduced packet since the trial began: a large packet was part of it.
        if let Search::Trial { good, from } = self.search
            && una > from + u64::from(good)
        {
            self.search = Search::Whole;
            self.trial_interval_s = FIRST_TRIAL_S;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    #[test]
    fn one_timeout_ends_a_trial_and_doubles_the_interval() {
        let mut path = PathMss::new(true);
        assert!(path.on_timeout(1460, 3, ms(0)).is_some());
        assert!(!path.begin_trial(REDUCED_MSS, 0, ms(9_999)));
        assert!(path.begin_trial(REDUCED_MSS, 0, ms(10_000)));
        assert_eq!(path.on_timeout(1460, 1, ms(10_000)), Some(REDUCED_MSS));
        assert!(!path.begin_trial(REDUCED_MSS, 0, ms(29_999)));
        assert!(path.begin_trial(REDUCED_MSS, 0, ms(30_000)));
        path.on_progress(u64::from(REDUCED_MSS));
        assert!(path.search != Search::Whole, "it may have been a small one");
        path.on_progress(u64::from(REDUCED_MSS) + 1);
        assert_eq!(path.search, Search::Whole);
    }
}
