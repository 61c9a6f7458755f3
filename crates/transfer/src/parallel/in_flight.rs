//! Requests that a server has not answered, by their names.

use std::collections::VecDeque;

/// The requests in flight on a connection, in the order in which they were made. Servers answer in about this order, so that a name is found near
/// the front.
#[derive(Debug)]
pub(crate) struct InFlight<T>(VecDeque<(u64, T)>);

impl<T> Default for InFlight<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> InFlight<T> {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn index_of(&self, name: u64) -> Option<usize> {
        self.0.iter().position(|(other, _)| *other == name)
    }

    pub(crate) fn has(&self, name: u64) -> bool {
        self.index_of(name).is_some()
    }

    pub(crate) fn get(&self, name: u64) -> Option<&T> {
        let index = self.index_of(name)?;
        self.0.get(index).map(|(_, request)| request)
    }

    pub(crate) fn get_mut(&mut self, name: u64) -> Option<&mut T> {
        let index = self.index_of(name)?;
        self.0.get_mut(index).map(|(_, request)| request)
    }

    /// Adds a request, whose name no other one in flight has.
    pub(crate) fn add(&mut self, name: u64, request: T) {
        self.0.push_back((name, request));
    }

    /// Takes a request that was answered.
    pub(crate) fn remove(&mut self, name: u64) -> Option<T> {
        let index = self.index_of(name)?;
        self.0.remove(index).map(|(_, request)| request)
    }

    /// Takes all requests.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = T> + use<T> {
        std::mem::take(&mut self.0)
            .into_iter()
            .map(|(_, request)| request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_found_by_name_in_any_order_and_once() {
        let mut requests = InFlight::default();
        for name in [7, 0, 3] {
            requests.add(name, name * 10);
        }
        *requests.get_mut(3).unwrap() += 1;
        assert_eq!((requests.get(3), requests.get(1)), (Some(&31), None));
        assert_eq!((requests.remove(0), requests.remove(0)), (Some(0), None));
        assert!(requests.has(7) && !requests.has(0));
        assert_eq!(requests.len(), 2);
        assert_eq!(requests.take().collect::<Vec<_>>(), [70, 31]);
        assert!(requests.is_empty());
    }
}
