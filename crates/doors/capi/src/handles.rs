//! Handles: numbers instead of pointers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use devmem_uapi::Errno;
use netmem::PerProcess;

/// Objects that C names by number. No number is used twice. A child of fork(2) has a new, empty table, so that it never uses,
/// waits for or drops an object of its parent.
#[derive(Debug)]
pub struct Handles<T> {
    /// The last number used, by this process or by its parent before the fork.
    last: AtomicUsize,
    tables: PerProcess<Table<T>>,
}

#[derive(Debug)]
struct Table<T> {
    /// Numbers up to this one belong to the parent.
    inherited: usize,
    things: RwLock<BTreeMap<usize, Arc<T>>>,
}

impl<T> Handles<T> {
    /// Returns an empty table.
    pub const fn new() -> Self {
        Self {
            last: AtomicUsize::new(0),
            tables: PerProcess::new(),
        }
    }

    fn table(&self) -> &Table<T> {
        self.tables.get_or_init(|| Table {
            inherited: self.last.load(Ordering::Relaxed),
            things: RwLock::default(),
        })
    }

    /// Adds an object and returns its number, never 0.
    pub fn insert(&self, thing: T) -> usize {
        // First: if this makes the table of a child, the number below must be above those of the parent.
        let table = self.table();
        // One number for each object ever created: 2^64 numbers are never used up.
        let number = self.last.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let mut things = table.things.write().unwrap_or_else(PoisonError::into_inner);
        things.insert(number, Arc::new(thing));
        number
    }

    /// Returns the object with this number; it exists as long as it is in use.
    ///
    /// # Errors
    /// EBADF if there is none; EOWNERDEAD if the parent created it before this process was forked.
    pub fn get(&self, number: usize) -> Result<Arc<T>, Errno> {
        let table = self.table();
        let things = table.things.read().unwrap_or_else(PoisonError::into_inner);
        let found = things.get(&number).cloned();
        found.ok_or_else(|| table.missing(number))
    }

    /// Removes an object.
    ///
    /// # Errors
    /// As [`get`](Self::get).
    pub fn remove(&self, number: usize) -> Result<Arc<T>, Errno> {
        let table = self.table();
        let mut things = table.things.write().unwrap_or_else(PoisonError::into_inner);
        let found = things.remove(&number);
        found.ok_or_else(|| table.missing(number))
    }
}

impl<T> Table<T> {
    /// Returns the errno for a number without an object.
    fn missing(&self, number: usize) -> Errno {
        match number {
            0 => Errno::EBADF,
            number if number <= self.inherited => Errno::EOWNERDEAD,
            _ => Errno::EBADF,
        }
    }
}

impl<T> Default for Handles<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_not_used_again() {
        let handles = Handles::new();
        let first = handles.insert("first");
        assert_eq!(handles.get(first).as_deref(), Ok(&"first"));
        assert!(handles.remove(first).is_ok());
        let second = handles.insert("second");
        assert_ne!((first, 0), (second, second));
        for missing in [0, first, second + 1] {
            assert_eq!(handles.get(missing), Err(Errno::EBADF));
            assert_eq!(handles.remove(missing), Err(Errno::EBADF));
        }
    }
}
