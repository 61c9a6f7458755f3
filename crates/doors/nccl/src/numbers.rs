//! Objects by number: what NCCL takes for pointers.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, PoisonError, RwLock};

use crate::failure::{Code, Failure};

/// Objects of one kind. Numbers begin at 1 and are never used again.
pub(crate) struct Table<T> {
    objects: RwLock<Objects<T>>,
}

struct Objects<T> {
    by_number: BTreeMap<u64, Arc<T>>,
    last: u64,
}

/// Largest number: the upper half of a request is the number of its communicator.
const MAX_NUMBER: u64 = u32::MAX as u64;

impl<T> Table<T> {
    pub(crate) const fn new() -> Self {
        Self {
            objects: RwLock::new(Objects {
                by_number: BTreeMap::new(),
                last: 0,
            }),
        }
    }

    /// Adds an object and returns its number.
    ///
    /// # Errors
    /// All 2^32 numbers are used up.
    pub(crate) fn insert(&self, object: T) -> Result<u64, Failure> {
        let mut objects = self.objects.write().unwrap_or_else(PoisonError::into_inner);
        if objects.last == MAX_NUMBER {
            let text = "the plugin has used up its numbers; restart the process";
            return Err(Failure::new(Code::Internal, text));
        }
        objects.last += 1;
        let number = objects.last;
        objects.by_number.insert(number, Arc::new(object));
        Ok(number)
    }

    pub(crate) fn get(&self, number: u64) -> Option<Arc<T>> {
        let objects = self.objects.read().unwrap_or_else(PoisonError::into_inner);
        objects.by_number.get(&number).cloned()
    }

    /// Returns the object with the next larger number, or the first one of all.
    pub(crate) fn after(&self, number: u64) -> Option<(u64, Arc<T>)> {
        let objects = self.objects.read().unwrap_or_else(PoisonError::into_inner);
        let objects = &objects.by_number;
        let mut later = objects.range((Bound::Excluded(number), Bound::Unbounded));
        let next = later.next().or_else(|| objects.first_key_value());
        next.map(|(number, object)| (*number, Arc::clone(object)))
    }

    /// Takes an object out. It is dropped by the caller, outside of the lock.
    pub(crate) fn remove(&self, number: u64) -> Option<Arc<T>> {
        let mut objects = self.objects.write().unwrap_or_else(PoisonError::into_inner);
        objects.by_number.remove(&number)
    }

    pub(crate) fn is_empty(&self) -> bool {
        let objects = self.objects.read().unwrap_or_else(PoisonError::into_inner);
        objects.by_number.is_empty()
    }

    /// Takes out the objects for which `is_done` says so.
    pub(crate) fn remove_if(&self, is_done: impl Fn(&T) -> bool) -> Vec<Arc<T>> {
        let mut objects = self.objects.write().unwrap_or_else(PoisonError::into_inner);
        let done = objects
            .by_number
            .extract_if(.., |_, object| is_done(object));
        done.map(|(_, object)| object).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_not_used_again() {
        let table = Table::new();
        assert_eq!(table.insert('a').unwrap(), 1);
        assert_eq!(table.remove(1).as_deref(), Some(&'a'));
        assert!(table.remove(1).is_none());
        assert_eq!(table.insert('b').unwrap(), 2);
        assert!(table.get(1).is_none());
        assert_eq!(table.after(0).map(|(number, _)| number), Some(2));
        assert_eq!(table.after(2).map(|(number, _)| number), Some(2));
        assert_eq!(table.remove_if(|object| *object == 'b').len(), 1);
    }
}
