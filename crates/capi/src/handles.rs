//! Numbers in place of pointers.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

/// Things that C names by number. No number is used twice.
#[derive(Debug)]
pub struct Handles<T> {
    table: RwLock<(usize, BTreeMap<usize, Arc<T>>)>,
}

impl<T> Handles<T> {
    /// Returns an empty table.
    pub const fn new() -> Self {
        Self {
            table: RwLock::new((0, BTreeMap::new())),
        }
    }

    /// Adds a thing and returns its number, never 0.
    pub fn insert(&self, thing: T) -> usize {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        // One number for each thing ever made: 2^64 of them do not come to an end.
        table.0 = table.0.wrapping_add(1);
        let number = table.0;
        table.1.insert(number, Arc::new(thing));
        number
    }

    /// Returns the thing with this number; it lives as long as somebody uses it.
    pub fn get(&self, number: usize) -> Option<Arc<T>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.1.get(&number).cloned()
    }

    /// Takes a thing out.
    pub fn remove(&self, number: usize) -> Option<Arc<T>> {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.1.remove(&number)
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
        assert_eq!(handles.get(first).as_deref(), Some(&"first"));
        assert!(handles.remove(first).is_some());
        let second = handles.insert("second");
        assert_ne!((first, 0), (second, second));
        assert!(handles.get(first).is_none() && handles.remove(first).is_none());
    }
}
