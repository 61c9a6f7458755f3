//! What is believed of a neighbour, and what changes it.

use std::time::Duration;

use wire::{Instant, MacAddr};

use super::REACHABLE_TIME;

/// After a change, an ARP packet that is not gratuitous does not change an entry again for so long:
/// of several stations that answer the first one is believed (linux `locktime`).
pub const LOCK_TIME: Duration = Duration::from_secs(1);

/// A known neighbour.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) mac: MacAddr,
    /// Stale after this.
    pub(super) until: Instant,
    /// When it was first known, or its address or state last changed.
    pub(super) changed: Instant,
    /// When a connection last used it.
    pub(super) used: Option<Instant>,
    /// It is used although stale, and asked for.
    pub(super) probe: Option<Asking>,
}

/// How often was asked, and when is the next time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asking {
    pub(super) asked: u8,
    pub(super) next: Instant,
}

/// How an address was learnt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Learnt {
    /// From an answer to our question: confirmed.
    Answer,
    /// From a station's question or announcement: good to use, not confirmed.
    Hearsay,
}

/// What a claim does to a known entry with another hardware address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// Replaces it: a question to us, gratuitous ARP, an advertisement with the override flag.
    Replaces,
    /// Replaces it unless it changed within [`LOCK_TIME`]: any other ARP packet.
    AfterLock,
    /// Makes it stale, so that it is asked about: an advertisement without the override flag (RFC
    /// 4861 7.2.5).
    Doubts,
}

/// What a packet says of a neighbour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) mac: MacAddr,
    pub(crate) learnt: Learnt,
    pub(crate) change: Change,
}

/// A claim that did not replace what is believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NotBelieved;

impl Known {
    /// Follows a claim, or leaves the entry with its hardware address.
    pub(super) fn believe(&mut self, claim: Claim, now: Instant) -> Result<(), NotBelieved> {
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
                Change::AfterLock => return Err(NotBelieved),
                Change::Doubts => {
                    self.until = self.until.min(now);
                    return Err(NotBelieved);
                }
            }
        }
        let was_reachable = self.probe.is_none() && now <= self.until;
        match learnt {
            Learnt::Answer => self.until = now + REACHABLE_TIME,
            Learnt::Hearsay if is_other => self.until = now,
            // What is said says what we believe already: neither confirmed nor unsettled.
            Learnt::Hearsay => return Ok(()),
        }
        if is_other || !was_reachable {
            self.changed = now;
        }
        self.mac = mac;
        self.probe = None;
        Ok(())
    }
}
