//! A path that swallows large packets without a word (RFC 4821 7.7, linux `tcp_mtu_probing` = 1).
//!
//! ICMP tells a sender that its packets are too large, if nobody filters it. Without it a connection whose small
//! packets pass stands still with its first large one. Three timeouts in a row of a large packet are taken for that:
//! packets get smaller, to a size that nearly every path carries, and after three more smaller still.
//!
//! Three timeouts may have meant an outage. So once data flows again, larger packets are tried from time to time:
//! the next timeout of one of them ends the trial, and the next waits twice as long.

use core::time::Duration;

use netmem::Payload;
use wire::Instant;

use super::Sender;
use super::recovery::Phase;

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

/// How large packets may be, as far as nobody says.
#[derive(Debug)]
pub(super) struct PathMss {
    enabled: bool,
    /// What the peer and ICMP allow.
    ceiling: u16,
    search: Search,
    /// Seconds until the next trial.
    patience_s: u16,
    black_holes: u16,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Search {
    /// Packets are as large as allowed.
    Whole,
    /// They are smaller; larger ones are tried again then.
    Reduced { again_at: Instant },
    /// They are as large as allowed since `from`; `good` bytes are known to pass.
    Trial { good: u16, from: u64 },
}

impl PathMss {
    pub(super) fn new(enabled: bool) -> Self {
        Self {
            enabled,
            ceiling: 0,
            search: Search::Whole,
            patience_s: FIRST_TRIAL_S,
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
}

impl<P: Payload> Sender<P> {
    /// A timeout: makes packets smaller if large ones time out and did so before.
    pub(super) fn suspect_black_hole(&mut self, now: Instant) {
        if !self.path.enabled {
            return;
        }
        // However small the packets were at first, a repetition joins as many as fit.
        let packet = self.board.outstanding().min(u64::from(self.mss));
        let good = match self.path.search {
            Search::Trial { good, .. } => Some(good),
            _ => match self.timers.retransmits() / SUSPECT_TIMEOUTS {
                0 => None,
                1 => Some(REDUCED_MSS),
                _ => Some(LEAST_MSS),
            },
        };
        let Some(good) = good.filter(|&good| u64::from(good) < packet) else {
            return;
        };
        if let Search::Trial { .. } = self.path.search {
            self.path.patience_s = (self.path.patience_s * 2).min(LAST_TRIAL_S);
        }
        self.mss = good;
        self.path.black_holes = self.path.black_holes.saturating_add(1);
        self.path.search = Search::Reduced {
            again_at: now + Duration::from_secs(self.path.patience_s.into()),
        };
        self.retransmit_larger_than(good);
    }

    /// Progress: tries larger packets when it is time, and keeps to them when they arrive.
    pub(super) fn try_larger_packets(&mut self, now: Instant) {
        match self.path.search {
            Search::Whole => {}
            Search::Reduced { again_at } => {
                if again_at <= now && self.recovery.phase() == Phase::Open {
                    self.path.search = Search::Trial {
                        good: self.mss,
                        from: self.snd_nxt,
                    };
                    self.mss = self.path.ceiling;
                }
            }
            Search::Trial { good, from } => {
                // More than a small packet since then: a large one was among it.
                if self.snd_una > from + u64::from(good) {
                    self.path.search = Search::Whole;
                    self.path.patience_s = FIRST_TRIAL_S;
                }
            }
        }
    }
}
