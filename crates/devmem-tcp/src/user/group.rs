//! What the shards of a NIC share: all drivers with their background threads, which end together.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use lease::LeaseKeeper;
use runtime::Background;
use stack::Stack;
use steer::{RxQueueId, ShardId};

use super::settings::ShardSettings;
use crate::driver::{Driver, StackIndex, Stacks};

/// One shard's driver, and what keeps the other shards alive: frames of its flows may arrive there. Every handle of the
/// shard has it.
pub(crate) struct Shared {
    pub(crate) driver: Driver,
    number: ShardId,
    group: Arc<ShardGroup>,
    /// The applied settings of receivers that are not restored yet. A binding of their queues keeps them.
    settings: Mutex<Vec<Weak<ShardSettings>>>,
}

/// All drivers of a NIC, with their background threads. Dropping it ends them.
struct ShardGroup {
    shards: Vec<(Driver, Option<Background<Stacks>>)>,
    /// Renews the address of a NIC that has it from a DHCP server.
    lease: Option<LeaseKeeper>,
    /// Held while memory is bound, so that all shards give it the same id. Lock order: before the locks of the drivers.
    binding: Mutex<()>,
    /// A memory was bound as a target: streams may receive into it directly.
    has_targets: AtomicBool,
}

impl Shared {
    /// Starts the background thread of each driver.
    pub(crate) fn group(
        drivers: Vec<Driver>,
        lease: Option<LeaseKeeper>,
    ) -> std::io::Result<Vec<Arc<Self>>> {
        let start = |driver: Driver| {
            let background = driver.start_background()?;
            Ok((driver, background))
        };
        let shards = drivers
            .into_iter()
            .map(start)
            .collect::<std::io::Result<Vec<_>>>()?;
        let group = Arc::new(ShardGroup {
            shards,
            lease,
            binding: Mutex::default(),
            has_targets: AtomicBool::new(false),
        });
        let shared = |(number, (driver, _)): (u16, &(Driver, _))| {
            Arc::new(Self {
                driver: driver.clone(),
                number: ShardId(number),
                group: Arc::clone(&group),
                settings: Mutex::default(),
            })
        };
        Ok((0..).zip(&group.shards).map(shared).collect())
    }

    /// Returns the number of the shard.
    pub(super) fn number(&self) -> usize {
        self.number.index()
    }

    /// Locks the bindings of all shards against other threads that bind memory.
    pub(super) fn lock_bindings(&self) -> MutexGuard<'_, ()> {
        let binding = &self.group.binding;
        binding.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes settings known to later bindings.
    pub(super) fn note_settings(&self, settings: &Arc<ShardSettings>) {
        let mut known = self.known_settings();
        known.retain(|settings| settings.strong_count() > 0);
        known.push(Arc::downgrade(settings));
    }

    /// Returns the settings that a binding to `queues` of the stack with index `at` needs.
    pub(super) fn settings_of(
        &self,
        at: StackIndex,
        queues: &[RxQueueId],
    ) -> Vec<Arc<ShardSettings>> {
        let alive: Vec<_> = self
            .known_settings()
            .iter()
            .filter_map(Weak::upgrade)
            .collect();
        let mut needed = alive;
        needed.retain(|settings| settings.concern(at, queues));
        needed
    }

    fn known_settings(&self) -> MutexGuard<'_, Vec<Weak<ShardSettings>>> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a memory is a target from now on.
    pub(crate) fn note_target(&self) {
        self.group.has_targets.store(true, Ordering::Relaxed);
    }

    /// Returns whether a memory was ever bound as a target.
    pub(crate) fn has_targets(&self) -> bool {
        self.group.has_targets.load(Ordering::Relaxed)
    }

    /// Asks the stack with index `at` of each shard until one has an answer. Must not be called in a child of fork(2).
    pub(crate) fn find_in_stacks<T>(
        &self,
        at: StackIndex,
        mut ask: impl FnMut(&Stack, bool) -> Option<T>,
    ) -> Option<T> {
        let mut shards = self.group.shards.iter();
        shards.find_map(|(driver, _)| {
            let is_ours = driver.is(&self.driver);
            ask(&driver.lock().stacks[at.0], is_ours)
        })
    }

    /// Polls until the connections of dropped streams of all shards are closed: see [`Driver::linger`].
    pub(crate) fn linger(&self, at_most: Duration, grace: Duration) -> bool {
        self.group.linger(at_most, grace)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Shared")
    }
}

/// How long dropping the last handle waits for acknowledgements of what dropped streams have sent.
const LINGER: Duration = Duration::from_millis(500);

/// How long it waits for the FINs of peers that have acknowledged everything.
const GRACE: Duration = Duration::from_millis(50);

impl ShardGroup {
    /// Waits for the shards one after the other, for `at_most` together: the background threads poll the others meanwhile.
    fn linger(&self, at_most: Duration, grace: Duration) -> bool {
        let Some((clock, _)) = self.shards.first() else {
            return true;
        };
        let started = clock.now();
        self.shards.iter().fold(true, |all, (driver, _)| {
            let waited = clock.now().saturating_since(started);
            all & driver.linger(at_most.saturating_sub(waited), grace)
        })
    }
}

impl Drop for ShardGroup {
    fn drop(&mut self) {
        let Some((first, _)) = self.shards.first() else {
            return;
        };
        if !first.is_here() {
            // In a child of fork(2): the background threads do not exist here, the connections belong to the parent, and
            // the stacks may be half-way through a change that another thread was making at the fork. Leak all of it.
            std::mem::forget(std::mem::take(&mut self.shards));
            self.lease.take().into_iter().for_each(LeaseKeeper::forget);
            return;
        }
        self.linger(LINGER, GRACE);
        for (_, background) in &mut self.shards {
            drop(background.take());
        }
        // While the links are open: the message that returns an address needs the interface.
        drop(self.lease.take());
    }
}
