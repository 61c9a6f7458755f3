//! Who waits, and how: what the doors do differently.

use std::sync::MutexGuard;

use wire::Instant;

use crate::table::Table;

/// How a thread waits until a table changes, and where its time comes from.
///
/// A waiter never looks into the table: it sleeps until somebody says that something changed, and the caller looks
/// again. Lock order: the table's lock is taken before any of the waiter's.
pub trait Waiter: Send + Sync {
    /// Returns the time.
    fn now(&self) -> Instant;

    /// Something may have changed for those who wait: a call was made, or the stack was polled. The table is locked.
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
