//! How threads wait: the difference between the doors.

use std::sync::MutexGuard;

use wire::Instant;

use crate::table::Table;

/// How a thread waits until a table changes, and where its time comes from.
///
/// A waiter never looks into the table: it sleeps until [`Waiter::changed`] reports a change, and the caller looks again. Lock order: the table's lock is taken before any of the waiter's.
pub trait Waiter: Send + Sync {
    /// Returns the time.
    fn now(&self) -> Instant;

    /// Wakes threads that wait if the table has changed: after a call, and after the stack was polled. The table is locked.
    fn changed(&self, table: &mut Table);

    /// A call that waited returns now.
    fn returning(&self) {}

    /// Gives the lock up until something changed or `until` has come, and takes it again. It may come back early.
    fn wait<'a>(
        &'a self,
        table: MutexGuard<'a, Table>,
        until: Option<Instant>,
    ) -> MutexGuard<'a, Table>;
}
