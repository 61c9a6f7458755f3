//! A stack of a NIC in user space.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use devmem_uapi::DmabufId;
use netmem::{Dmabuf, MemoryObserver};
use stack::Stack;
use steer::RxQueueId;
use wire::Instant;

use super::group::Shared;
use super::settings::ShardSettings;
use crate::driver::{Driver, StackIndex};
use crate::error::{Error, Forked};
use crate::flows::Flows;

/// A stack of a NIC in user space: its driver, and its index in the driver (a virtual-time pair has two stacks).
#[derive(Clone, Debug)]
pub(crate) struct Shard {
    shared: Arc<Shared>,
    at: StackIndex,
}

/// Which stack of which driver, in this process. It does not keep the stack open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ShardIdentity {
    /// The address of the state that the sockets of the stack share.
    shared: usize,
    at: StackIndex,
}

impl Shard {
    pub(crate) fn new(shared: Arc<Shared>, at: StackIndex) -> Self {
        Self { shared, at }
    }

    pub(super) fn identity(&self) -> ShardIdentity {
        ShardIdentity {
            shared: Arc::as_ptr(&self.shared).addr(),
            at: self.at,
        }
    }

    /// Returns whether both are the same shard.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared) && self.at == other.at
    }

    /// Returns the number of the shard in its NIC.
    pub(crate) fn number(&self) -> usize {
        self.shared.number()
    }

    pub(super) fn driver(&self) -> &Driver {
        &self.shared.driver
    }

    /// Returns the index of the stack in its driver.
    pub(super) fn at(&self) -> StackIndex {
        self.at
    }

    /// Fails in a child of fork(2) of the process that opened the NIC.
    #[inline]
    pub(super) fn check(&self) -> Result<(), Forked> {
        self.driver().check()
    }

    /// Runs `call` on the stack.
    pub(crate) fn with<T>(&self, call: impl FnOnce(&mut Stack, Instant) -> T) -> T {
        self.driver().with(self.at, call)
    }

    /// Runs `call` on the stack, for a `Drop`: see [`Driver::undo`].
    pub(super) fn undo(&self, call: impl FnOnce(&mut Stack)) {
        self.driver().undo(self.at, call);
    }

    /// Notes the memory of a binding, to find it for frags.
    pub(super) fn note_memory(&self, id: DmabufId, observer: MemoryObserver) {
        let memories = &mut self.driver().lock().memories;
        memories.retain(|_, memory| !memory.is_freed());
        memories.insert((self.at, id), observer);
    }

    /// Returns the memory of a binding, if it has not been freed.
    pub(super) fn memory(&self, id: DmabufId) -> Option<Dmabuf> {
        let memories = &self.driver().lock().memories;
        memories
            .get(&(self.at, id))
            .and_then(MemoryObserver::upgrade)
    }

    /// Applies the settings of a receiver.
    pub(super) fn prepare(&self, flows: &Flows, queues: u16) -> Result<Arc<ShardSettings>, Error> {
        let settings = ShardSettings::apply(&self.shared.driver, self.at, flows, queues)?;
        self.shared.note_settings(&settings);
        Ok(settings)
    }

    /// Returns the settings that a binding to `queues` needs.
    pub(super) fn settings_of(&self, queues: &[RxQueueId]) -> Vec<Arc<ShardSettings>> {
        self.shared.settings_of(self.at, queues)
    }

    /// Locks the bindings of all shards of the NIC against other threads that bind memory.
    pub(super) fn lock_bindings(&self) -> MutexGuard<'_, ()> {
        self.shared.lock_bindings()
    }

    /// Notes that a memory is a target from now on.
    pub(super) fn note_target(&self) {
        self.shared.note_target();
    }

    /// Returns whether a memory was ever bound as a target, on any shard of the NIC.
    pub(super) fn has_targets(&self) -> bool {
        self.shared.has_targets()
    }

    /// Asks the stacks of all shards of the NIC until one has an answer; `true`: it is that of this shard.
    pub(super) fn find_in_stacks<T>(
        &self,
        ask: impl FnMut(&Stack, bool) -> Option<T>,
    ) -> Option<T> {
        self.shared.find_in_stacks(self.at, ask)
    }

    /// Polls until the connections of dropped streams of all shards of the NIC are closed: see [`Driver::linger`].
    pub(super) fn linger(&self, at_most: Duration) -> bool {
        self.shared.linger(at_most, at_most)
    }
}
