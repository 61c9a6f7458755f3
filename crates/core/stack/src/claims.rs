//! Whether other stations of the link have the addresses of this stack: asked before they are used, watched for afterwards (RFC
//! 5227 for IPv4; RFC 4862 5.4 for IPv6, with the same times and the same defence).
//!
//! This module decides, without I/O. The shards of a NIC share [`AddressConflicts`]: a frame arrives at one of them, and what it
//! means holds for all.

mod conflicts;
mod stage;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::time::Duration;

use wire::{Instant, MacAddr};

pub use conflicts::{AddressConflict, AddressConflicts, ConflictOutcome, DEFEND_INTERVAL};
use stage::Stage;

/// Questions before an address is used (RFC 5227 1.1, PROBE_NUM).
pub const PROBES: u8 = 3;

/// Time after each question. RFC 5227 has one to two seconds (PROBE_MIN, PROBE_MAX), two after the last one (ANNOUNCE_WAIT), and
/// up to one before the first: five to seven seconds in which a program waits. Stations of a LAN answer within milliseconds, and
/// one that answers later is heard, too: it ends the use of the address. systemd-networkd waits 200 ms in all by default.
pub const PROBE_WAIT: Duration = Duration::from_millis(100);

/// Announcements of an address that is used from now on (RFC 5227 1.1, ANNOUNCE_NUM), and the time between them
/// (ANNOUNCE_INTERVAL).
const ANNOUNCEMENTS: u8 = 2;
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);

/// What a stack does before it uses its addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddressCheck {
    /// Nothing, then or later: another stack of this station has the same addresses, and answers for them.
    Never,
    /// It announces them when the link comes up: nobody else can have them.
    #[default]
    Announce,
    /// It uses them at once, and asks when the link comes up: for a wire to one other program, which may come later.
    AskMeanwhile,
    /// It asks first. Until then ([`Stack::is_checking_addresses`](crate::Stack::is_checking_addresses)) it has no addresses.
    AskFirst,
}

/// The claim of this stack to one of its addresses.
#[derive(Clone, Copy, Debug)]
struct Claim {
    ip: IpAddr,
    stage: Stage,
    /// When something is to be sent; `None`: never, or when the link is up.
    due: Option<Instant>,
}

/// What is to be done for an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClaimAction {
    /// Ask whether a station has it.
    Probe(IpAddr),
    /// Use it from now on, and announce it.
    Use(IpAddr),
    /// Announce it.
    Announce(IpAddr),
}

/// The claims of this stack to its addresses.
#[derive(Debug)]
pub(crate) struct Claims {
    check: AddressCheck,
    claims: Vec<Claim>,
    conflicts: AddressConflicts,
    /// Conflicts that this stack has followed.
    seen: u64,
    is_link_up: bool,
    was_link_up: bool,
    /// When [`poll`](Self::poll) has something to do.
    next: Option<Instant>,
}

impl Claims {
    /// Returns claims to `addresses`, none of which was asked about.
    pub(crate) fn new(
        check: AddressCheck,
        addresses: impl IntoIterator<Item = IpAddr>,
        conflicts: AddressConflicts,
    ) -> Self {
        let mut claims = Self {
            check,
            claims: Vec::new(),
            seen: conflicts.count(),
            conflicts,
            is_link_up: false,
            was_link_up: false,
            next: None,
        };
        let stage = match check {
            AddressCheck::Never | AddressCheck::Announce => Stage::Used,
            AddressCheck::AskMeanwhile | AddressCheck::AskFirst => Stage::Probing {
                sent: 0,
                in_use: check == AddressCheck::AskMeanwhile,
            },
        };
        let claim = |ip| Claim {
            ip,
            stage,
            due: None,
        };
        claims.claims.extend(addresses.into_iter().map(claim));
        claims
    }

    pub(crate) fn conflicts(&self) -> &AddressConflicts {
        &self.conflicts
    }

    /// Returns whether an address is not used yet because it is asked about.
    pub(crate) fn is_checking(&self) -> bool {
        let is_unused = |claim: &Claim| matches!(claim.stage, Stage::Probing { in_use: false, .. });
        self.claims.iter().any(is_unused)
    }

    /// Adds an address that is used already, because it was asked about by other means.
    pub(crate) fn add_used(&mut self, ip: IpAddr) {
        if !self.has(ip) && self.check != AddressCheck::Never {
            self.claims.push(Claim {
                ip,
                stage: Stage::Used,
                due: None,
            });
        }
    }

    /// Adds an address that is used already, and asks about it unless nobody else can have it.
    pub(crate) fn use_and_ask(&mut self, ip: IpAddr, now: Instant) {
        if self.has(ip) {
            return;
        }
        self.add_used(ip);
        if self.asks()
            && let Some(claim) = self.claims.last_mut()
        {
            claim.stage = Stage::Probing {
                sent: 0,
                in_use: true,
            };
            claim.due = self.is_link_up.then_some(now);
            self.plan();
        }
    }

    fn asks(&self) -> bool {
        match self.check {
            AddressCheck::Never | AddressCheck::Announce => false,
            AddressCheck::AskMeanwhile | AddressCheck::AskFirst => true,
        }
    }

    /// Announces all addresses in use.
    pub(crate) fn announce_all(&mut self, now: Instant) {
        let used = |claim: &&mut Claim| claim.stage == Stage::Used;
        for claim in self.claims.iter_mut().filter(used) {
            claim.due = self.is_link_up.then_some(now);
        }
        self.plan();
    }

    /// Returns whether this stack claims an address.
    pub(crate) fn has(&self, ip: IpAddr) -> bool {
        self.claims.iter().any(|claim| claim.ip == ip)
    }

    pub(crate) fn remove(&mut self, ip: IpAddr) {
        self.claims.retain(|claim| claim.ip != ip);
        self.plan();
    }

    /// Uses the addresses that are still asked about; returns them. What was not asked yet is asked meanwhile.
    pub(crate) fn use_now(&mut self) -> Vec<IpAddr> {
        let mut used = Vec::new();
        for claim in &mut self.claims {
            if let Stage::Probing { in_use, .. } = &mut claim.stage
                && !std::mem::replace(in_use, true)
            {
                used.push(claim.ip);
            }
        }
        used
    }

    /// The link has come up: stations may be there that were not before.
    pub(crate) fn on_link_up(&mut self, now: Instant) {
        self.is_link_up = true;
        let asks = self.asks();
        let is_first = !std::mem::replace(&mut self.was_link_up, true);
        for claim in &mut self.claims {
            claim.due = Some(now);
            let is_known = claim.stage == Stage::Used && is_first;
            if asks && !is_known {
                let in_use = !matches!(claim.stage, Stage::Probing { in_use: false, .. });
                claim.stage = Stage::Probing { sent: 0, in_use };
            }
        }
        self.plan();
    }

    /// Nothing can be sent.
    pub(crate) fn on_link_down(&mut self) {
        self.is_link_up = false;
        for claim in &mut self.claims {
            claim.due = None;
        }
        self.next = None;
    }

    /// Returns when [`poll`](Self::poll) is to be called.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.next
    }

    /// Returns what is due; call again until there is nothing.
    pub(crate) fn poll(&mut self, now: Instant) -> Option<ClaimAction> {
        if self.next.is_none_or(|next| next > now) {
            return None;
        }
        let is_due = |claim: &&mut Claim| claim.due.is_some_and(|due| due <= now);
        let action = self
            .claims
            .iter_mut()
            .find(is_due)
            .map(|it| it.advance(now));
        self.plan();
        action
    }

    fn plan(&mut self) {
        self.next = self.claims.iter().filter_map(|claim| claim.due).min();
    }

    /// Notes that the station `by` uses an address. Returns what came of it if it is one of this stack; one that was lost is
    /// returned by [`take_lost`](Self::take_lost), too.
    pub(crate) fn on_claimed(
        &mut self,
        ip: IpAddr,
        by: MacAddr,
        now: Instant,
    ) -> Option<ConflictOutcome> {
        let claim = self.claims.iter().find(|claim| claim.ip == ip)?;
        Some(self.conflicts.judge(ip, by, claim.stage, now))
    }

    /// Notes that the station `by` asks whether another one has an address: both lose it if both ask (RFC 5227 2.1.1, RFC 4862
    /// 5.4.3).
    pub(crate) fn on_probed(
        &mut self,
        ip: IpAddr,
        by: MacAddr,
        now: Instant,
    ) -> Option<ConflictOutcome> {
        let claim = self.claims.iter().find(|claim| claim.ip == ip)?;
        match claim.stage {
            Stage::Probing { .. } => Some(self.conflicts.judge(ip, by, claim.stage, now)),
            Stage::Announcing(_) | Stage::Used => None,
        }
    }

    /// Returns the addresses that this stack has lost since the last call, here or at another shard.
    pub(crate) fn take_lost(&mut self) -> Vec<AddressConflict> {
        let count = self.conflicts.count();
        if count == self.seen {
            return Vec::new();
        }
        let mut lost = self.conflicts.since(self.seen);
        self.seen = count;
        lost.retain(|conflict| {
            conflict.outcome != ConflictOutcome::Defended && self.has(conflict.ip)
        });
        for conflict in &lost {
            self.remove(conflict.ip);
        }
        lost
    }
}

impl Claim {
    /// Does what is due.
    fn advance(&mut self, now: Instant) -> ClaimAction {
        match self.stage {
            Stage::Probing { sent, in_use } if sent < PROBES => {
                self.stage = Stage::Probing {
                    sent: sent + 1,
                    in_use,
                };
                self.due = Some(now + PROBE_WAIT);
                ClaimAction::Probe(self.ip)
            }
            Stage::Probing { .. } => {
                self.announced(1, now);
                ClaimAction::Use(self.ip)
            }
            Stage::Announcing(sent) => {
                self.announced(sent + 1, now);
                ClaimAction::Announce(self.ip)
            }
            Stage::Used => {
                self.due = None;
                ClaimAction::Announce(self.ip)
            }
        }
    }

    fn announced(&mut self, sent: u8, now: Instant) {
        (self.stage, self.due) = match sent {
            ANNOUNCEMENTS.. => (Stage::Used, None),
            _ => (Stage::Announcing(sent), Some(now + ANNOUNCE_INTERVAL)),
        };
    }
}
