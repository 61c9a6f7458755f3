//! Operations by their names, which are given in ascending order.
//!
//! Most operations end in the order in which they began, so that the first one is looked for and removed. A queue keeps its memory when it is empty,
//! where a tree would allocate a node for each message that is sent alone.

use std::collections::VecDeque;

/// Operations that are not done, oldest first.
#[derive(Debug)]
pub(crate) struct InFlight<T>(VecDeque<(u64, T)>);

impl<T> Default for InFlight<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> InFlight<T> {
    /// Adds an operation with a name that is higher than those before it.
    pub(crate) fn add(&mut self, name: u64, operation: T) {
        debug_assert!(self.0.back().is_none_or(|(last, _)| *last < name));
        self.0.push_back((name, operation));
    }

    fn find(&self, name: u64) -> Option<usize> {
        if self.0.front().is_some_and(|(first, _)| *first == name) {
            return Some(0);
        }
        self.0.binary_search_by_key(&name, |(name, _)| *name).ok()
    }

    pub(crate) fn get(&self, name: u64) -> Option<&T> {
        let at = self.find(name)?;
        self.0.get(at).map(|(_, operation)| operation)
    }

    pub(crate) fn get_mut(&mut self, name: u64) -> Option<&mut T> {
        let at = self.find(name)?;
        self.0.get_mut(at).map(|(_, operation)| operation)
    }

    pub(crate) fn remove(&mut self, name: u64) -> Option<T> {
        let at = self.find(name)?;
        self.0.remove(at).map(|(_, operation)| operation)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes all out, oldest first.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = (u64, T)> + use<T> {
        std::mem::take(&mut self.0).into_iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_found_by_name_in_whatever_order_they_end() {
        let mut all = InFlight::default();
        for name in [2, 3, 5, 8, 13] {
            all.add(name, name * 10);
        }
        assert_eq!(
            (all.remove(5), all.remove(5), all.remove(4)),
            (Some(50), None, None)
        );
        if let Some(found) = all.get_mut(13) {
            *found = 131;
        }
        assert_eq!(all.get_mut(1), None);
        assert_eq!(all.get_mut(14), None);
        assert_eq!((all.remove(2), all.len()), (Some(20), 3));
        assert_eq!(
            all.take().collect::<Vec<_>>(),
            [(3, 30), (8, 80), (13, 131)]
        );
        assert!(all.is_empty());
    }
}
