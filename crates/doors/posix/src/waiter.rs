//! How threads wait; each door has its [`Waiter`].

use std::sync::MutexGuard;

use wire::Instant;

use crate::table::Table;

/// How a thread waits until a table changes, and where its time comes from.
///
/// A waiter never reads the table: it sleeps until [`Waiter::changed`] reports a change, and the caller tries again.
/// Lock order: the table's lock is taken before any of the waiter's.
pub trait Waiter: Send + Sync {
    /// Returns the time.
    fn now(&self) -> Instant;

    /// Wakes waiting threads if the table has changed. Called with the table locked, after a call and after the stack was
    /// polled.
    fn changed(&self, table: &mut Table);

    /// Called when a call that waited is about to return.
    fn returning(&self) {}

    /// Releases the lock until the table changes or `until` is reached, then takes it again. May return early.
    fn wait<'a>(
        &'a self,
        table: MutexGuard<'a, Table>,
        until: Option<Instant>,
    ) -> MutexGuard<'a, Table>;
}
