//! The entry of a known neighbour, and the claims that change it.

use std::time::Duration;

use wire::{Instant, MacAddr};

/// Time for which a confirmed address counts as reachable (RFC 4861 10, REACHABLE_TIME).
pub const REACHABLE_TIME: Duration = Duration::from_secs(30);

/// Time after a change of an entry in which an ARP packet that is not gratuitous does not change it again:
/// if several stations answer, the first answer counts (linux `locktime`).
pub const LOCK_TIME: Duration = Duration::from_secs(1);

/// A known neighbour.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) mac: MacAddr,
    /// Stale after this.
    pub(super) until: Instant,
    /// Time of its creation, or of the last change of address or state.
    pub(super) changed: Instant,
    /// Time of the last use by a connection.
    pub(super) used: Option<Instant>,
    /// Requests in progress, if the entry is stale and in use.
    pub(super) probe: Option<Asking>,
}

/// Number of requests so far, and time of the next.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asking {
    pub(super) asked: u8,
    pub(super) next: Instant,
}

/// Source of a hardware address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LearnedFrom {
    /// An answer to our request: confirmed.
    Answer,
    /// A request or announcement of the station: usable, not confirmed.
    Hearsay,
}

/// Effect of a claim on an entry with another hardware address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// Replaces the address: a request to us, gratuitous ARP, an advertisement with the override flag.
    Replaces,
    /// Replaces the address unless it changed within [`LOCK_TIME`]: any other ARP packet.
    AfterLock,
    /// Makes the entry stale, so that it is probed: an advertisement without the override flag (RFC
    /// 4861 7.2.5).
    Doubts,
}

/// The statement of a packet about a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) mac: MacAddr,
    pub(crate) learnt: LearnedFrom,
    pub(crate) change: Change,
}

/// The claim did not replace the address of the entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClaimIgnored;

impl Known {
    /// Applies a claim, or leaves the hardware address unchanged.
    pub(super) fn apply(&mut self, claim: Claim, now: Instant) -> Result<(), ClaimIgnored> {
        let Claim {
            mac,
            learnt,
            change,
        } = claim;
        let is_other = mac != self.mac;
        if is_other {
            let is_locked = now.saturating_since(self.changed) <= LOCK_TIME;
            match change {
                Change::Replaces => {}
                Change::AfterLock if !is_locked => {}
                Change::AfterLock => return Err(ClaimIgnored),
                Change::Doubts => {
                    self.until = self.until.min(now);
                    return Err(ClaimIgnored);
                }
            }
        }
        let was_reachable = self.probe.is_none() && now <= self.until;
        match learnt {
            LearnedFrom::Answer => self.until = now + REACHABLE_TIME,
            LearnedFrom::Hearsay if is_other => self.until = now,
            // The claim repeats the known address: it neither confirms nor changes the entry.
            LearnedFrom::Hearsay => return Ok(()),
        }
        if is_other || !was_reachable {
            self.changed = now;
        }
        self.mac = mac;
        self.probe = None;
        Ok(())
    }
}
