//! Sockets that a [`Poller`](crate::Poller) watches, and those of them that may be ready.
//!
//! A call notes the sockets that it changed, so the cost of a wait does not depend on how many others are watched. No system
//! call is needed: the thread that waits polls the NIC itself.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use stack::Readiness;

use crate::signals::SocketKey;

/// The watched sockets of a driver.
#[derive(Debug, Default)]
pub(crate) struct Watchers(HashMap<SocketKey, Vec<Watcher>>);

/// A poller that watches a socket.
#[derive(Debug)]
struct Watcher {
    list: Arc<ReadyList>,
    key: u64,
}

impl Watchers {
    /// Watches `of` for `list`, under a key that replaces an earlier one.
    pub(crate) fn add(
        &mut self,
        list: &Arc<ReadyList>,
        key: u64,
        of: SocketKey,
        interest: Readiness,
    ) {
        self.remove(list, key);
        list.lock().add(key, of, interest);
        self.0.entry(of).or_default().push(Watcher {
            list: Arc::clone(list),
            key,
        });
    }

    /// Ends the watch with this key, if there is one.
    pub(crate) fn remove(&mut self, list: &Arc<ReadyList>, key: u64) {
        let removed = list.lock().watched.remove(&key);
        if let Some(Watched { of, .. }) = removed
            && let Some(watchers) = self.0.get_mut(&of)
        {
            watchers.retain(|watcher| watcher.key != key || !Arc::ptr_eq(&watcher.list, list));
            if watchers.is_empty() {
                self.0.remove(&of);
            }
        }
    }

    /// Ends all watches of a poller.
    pub(crate) fn remove_all(&mut self, list: &Arc<ReadyList>) {
        let keys: Vec<u64> = list.lock().watched.keys().copied().collect();
        for key in keys {
            self.remove(list, key);
        }
    }

    /// Notes that the readiness of a socket has changed.
    pub(crate) fn tell(&self, of: SocketKey) {
        for watcher in self.0.get(&of).into_iter().flatten() {
            watcher.list.lock().note(watcher.key);
        }
    }

    /// Forgets a closed socket.
    pub(crate) fn forget(&mut self, of: SocketKey) {
        for watcher in self.0.remove(&of).into_iter().flatten() {
            watcher.list.lock().watched.remove(&watcher.key);
        }
    }
}

/// The sockets that one poller watches. Its lock is taken inside the driver's.
#[derive(Debug, Default)]
pub(crate) struct ReadyList(Mutex<Lists>);

#[derive(Debug, Default)]
struct Lists {
    watched: HashMap<u64, Watched>,
    /// Sockets that may be ready: whose readiness has changed, or that were reported. The watch may have ended since.
    candidates: VecDeque<Candidate>,
    /// Number of the next watch.
    next: u64,
}

#[derive(Clone, Copy, Debug)]
struct Candidate {
    key: u64,
    /// The number of the watch: another one may have the key now.
    number: u64,
}

#[derive(Debug)]
struct Watched {
    of: SocketKey,
    interest: Readiness,
    number: u64,
    is_candidate: bool,
}

impl ReadyList {
    fn lock(&self) -> MutexGuard<'_, Lists> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends the keys of sockets that are ready, as `ready` says, until `keys` is full. Sockets that stay ready are reported
    /// again by the next call, after the others.
    pub(crate) fn take_ready(
        &self,
        keys: &mut Vec<u64>,
        most: usize,
        readiness: impl Fn(SocketKey) -> Readiness,
    ) {
        let mut lists = self.lock();
        for _ in 0..lists.candidates.len() {
            if keys.len() >= most {
                return;
            }
            let Some(candidate) = lists.candidates.pop_front() else {
                return;
            };
            let watched = lists.watched.get_mut(&candidate.key);
            let Some(watched) = watched.filter(|it| it.number == candidate.number) else {
                continue;
            };
            let is_ready = readiness(watched.of).intersects(watched.interest);
            watched.is_candidate = is_ready;
            if is_ready {
                keys.push(candidate.key);
                lists.candidates.push_back(candidate);
            }
        }
    }
}

impl Lists {
    fn add(&mut self, key: u64, of: SocketKey, interest: Readiness) {
        let watched = Watched {
            of,
            interest,
            number: self.next,
            is_candidate: false,
        };
        self.next += 1;
        self.watched.insert(key, watched);
        self.note(key);
    }

    fn note(&mut self, key: u64) {
        if let Some(watched) = self.watched.get_mut(&key)
            && !std::mem::replace(&mut watched.is_candidate, true)
        {
            let number = watched.number;
            self.candidates.push_back(Candidate { key, number });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::tests::sockets;

    /// Returns the keys that a call reports while the sockets in `ready` are readable.
    fn take(list: &ReadyList, most: usize, ready: &[SocketKey]) -> Vec<u64> {
        let mut keys = Vec::new();
        list.take_ready(&mut keys, most, |of| {
            Readiness::READABLE.when(ready.contains(&of))
        });
        keys
    }

    fn watched(count: u16) -> (Watchers, Arc<ReadyList>, Vec<SocketKey>) {
        let (mut watchers, list) = (Watchers::default(), Arc::default());
        let of = sockets(count);
        for (key, of) in of.iter().enumerate() {
            watchers.add(&list, key as u64, *of, Readiness::READABLE);
        }
        (watchers, list, of)
    }

    #[test]
    fn a_change_makes_a_socket_a_candidate_until_it_is_found_not_ready() {
        let (watchers, list, of) = watched(3);
        assert_eq!(take(&list, 9, &of[..1]), [0], "each is tried once");
        assert_eq!(take(&list, 9, &of), [0], "no change of the others");
        watchers.tell(of[2]);
        watchers.tell(of[2]);
        assert_eq!(take(&list, 9, &of), [0, 2]);
        assert_eq!(take(&list, 9, &of[..1]), [0]);
        assert_eq!(take(&list, 9, &[]), [] as [u64; 0]);
        assert!(list.lock().candidates.is_empty());
    }

    #[test]
    fn a_key_that_another_watch_gets_is_reported_once() {
        let (mut watchers, list, of) = watched(2);
        watchers.add(&list, 0, of[1], Readiness::READABLE);
        assert_eq!(take(&list, 9, &of), [1, 0]);
        watchers.remove(&list, 1);
        watchers.add(&list, 1, of[0], Readiness::READABLE);
        assert_eq!(take(&list, 9, &of), [0, 1]);
    }

    #[test]
    fn sockets_that_stay_ready_take_turns() {
        let (_watchers, list, of) = watched(5);
        assert_eq!(take(&list, 2, &of), [0, 1]);
        assert_eq!(take(&list, 2, &of), [2, 3]);
        assert_eq!(take(&list, 2, &of), [4, 0]);
    }

    #[test]
    fn a_socket_that_is_closed_and_a_poller_that_ends_leave_nothing() {
        let (mut watchers, list, of) = watched(3);
        let other = Arc::default();
        watchers.add(&other, 0, of[0], Readiness::READABLE);
        watchers.add(&other, 1, of[1], Readiness::READABLE);
        watchers.forget(of[0]);
        watchers.tell(of[0]);
        assert_eq!(take(&list, 9, &of), [1, 2]);
        assert_eq!(take(&other, 9, &of), [1]);
        watchers.remove_all(&list);
        assert_eq!(take(&list, 9, &of), [] as [u64; 0]);
        assert_eq!(take(&other, 9, &of), [1], "the other's is left");
        watchers.remove(&other, 1);
        assert!(watchers.0.is_empty());
        assert!(list.lock().watched.is_empty() && other.lock().watched.is_empty());
    }
}
