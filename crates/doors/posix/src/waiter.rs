//! How threads share a table and wait; each door has its [`Waiter`].

use std::ops::DerefMut;

use runtime::WaitLimit;
use wire::Instant;

use crate::table::Table;

/// The owner of a table: how threads lock it, how they wait until it changes, and where its time comes from.
pub trait Waiter: Send + Sync {
    /// The locked table.
    type Locked<'a>: DerefMut<Target = Table>
    where
        Self: 'a;

    /// Returns the time.
    fn now(&self) -> Instant;

    /// Locks the table.
    fn lock(&self) -> Self::Locked<'_>;

    /// Runs a call that does not wait, or the last part of one that may have, and wakes the threads that wait for what it has changed.
    fn call<T>(&self, waits: Waits, call: impl FnOnce(&mut Table) -> T) -> T;

    /// Repeats `attempt` after changes of the table until it has a result. At the limit the result is that of `give_up`.
    fn wait_for<T>(
        &self,
        limit: WaitLimit,
        waits: &mut Waits,
        attempt: impl FnMut(&mut Table, Instant) -> Option<T>,
        give_up: impl FnOnce(&mut Table) -> T,
    ) -> T;
}

/// Whether a call of several parts has waited in one of them.
#[derive(Debug, Clone, Copy, Default)]
pub struct Waits {
    /// It has.
    pub any: bool,
}
