//! The conflicts about the addresses of a NIC, and what comes of them.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use wire::{Instant, MacAddr};

use super::stage::Stage;

/// An address is defended once in this time; another conflict within it ends its use (RFC 5227 1.1 and 2.4 b, DEFEND_INTERVAL).
pub const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

/// Most conflicts that are kept for [`AddressConflicts::since`].
pub(super) const KEPT_CONFLICTS: usize = 64;

/// Another station that uses an address of this NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressConflict {
    /// The address.
    pub ip: IpAddr,
    /// Hardware address of the station.
    pub by: MacAddr,
    /// What came of it.
    pub outcome: ConflictOutcome,
}

/// What came of a conflict about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConflictOutcome {
    /// It was announced again, and is used on.
    Defended,
    /// It was the other station's before it was used, and is not used.
    NotUsed,
    /// It is not used any more.
    Lost,
}

/// The conflicts about the addresses of a NIC. Clones share them: the shards of a NIC do.
///
/// The lock is taken when another station claims an address. No other lock is taken while it is held.
#[derive(Clone, Debug, Default)]
pub struct AddressConflicts {
    shared: Arc<SharedConflicts>,
}

#[derive(Debug, Default)]
struct SharedConflicts {
    /// Number of conflicts so far.
    count: AtomicU64,
    log: Mutex<ConflictLog>,
}

#[derive(Debug, Default)]
pub(super) struct ConflictLog {
    /// The latest conflicts.
    latest: VecDeque<AddressConflict>,
    /// When addresses were defended last. Only addresses of this NIC are in it.
    pub(super) defended: HashMap<IpAddr, Instant>,
}

impl AddressConflicts {
    /// Returns how many conflicts there were.
    pub fn count(&self) -> u64 {
        self.shared.count.load(Ordering::Acquire)
    }

    /// Returns the conflicts after the first `seen` ones, as far as they are kept.
    pub fn since(&self, seen: u64) -> Vec<AddressConflict> {
        if self.count() == seen {
            return Vec::new();
        }
        let log = self.log();
        let missed = self.count().saturating_sub(seen);
        let kept = log.latest.len();
        let skipped = kept.saturating_sub(usize::try_from(missed).unwrap_or(kept));
        log.latest.iter().skip(skipped).copied().collect()
    }

    /// The log is consistent between any two operations, so poisoning by a panic can be ignored.
    pub(super) fn log(&self) -> MutexGuard<'_, ConflictLog> {
        self.shared
            .log
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Judges the claim of the station `by` to an address, and notes the outcome.
    pub(super) fn judge(
        &self,
        ip: IpAddr,
        by: MacAddr,
        stage: Stage,
        now: Instant,
    ) -> ConflictOutcome {
        let mut log = self.log();
        let last = log.defended.get(&ip);
        let was_defended = last.is_some_and(|at| now.saturating_since(*at) < DEFEND_INTERVAL);
        let outcome = match stage {
            Stage::Probing { in_use: false, .. } => ConflictOutcome::NotUsed,
            Stage::Probing { in_use: true, .. } => ConflictOutcome::Lost,
            Stage::Announcing(_) | Stage::Used if was_defended => ConflictOutcome::Lost,
            Stage::Announcing(_) | Stage::Used => ConflictOutcome::Defended,
        };
        match outcome {
            ConflictOutcome::Defended => log.defended.insert(ip, now),
            ConflictOutcome::NotUsed | ConflictOutcome::Lost => log.defended.remove(&ip),
        };
        if log.latest.len() == KEPT_CONFLICTS {
            log.latest.pop_front();
        }
        log.latest.push_back(AddressConflict { ip, by, outcome });
        self.shared.count.fetch_add(1, Ordering::Release);
        outcome
    }
}
