//! Work on several things at once.

use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Does the work on all items, begun in their order, as many at once as there are CPUs. Returns what came of each, in
/// the order of the items; `None` if a thread panicked.
pub fn side_by_side<I: Sync, T: Send>(
    items: &[I],
    work: impl Fn(&I) -> T + Sync,
) -> Option<Vec<T>> {
    let at_once = thread::available_parallelism().map_or(1, NonZero::get);
    let next = AtomicUsize::new(0);
    let worker = || {
        let mine = || {
            let at = next.fetch_add(1, Ordering::Relaxed);
            items.get(at).map(|item| (at, work(item)))
        };
        std::iter::from_fn(mine).collect::<Vec<_>>()
    };
    let ends: Vec<_> = thread::scope(|scope| {
        let workers: Vec<_> = (0..at_once).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().map(|worker| worker.join()).collect()
    });
    let mut all = Vec::new();
    for end in ends {
        all.extend(end.ok()?);
    }
    all.sort_by_key(|(at, _)| *at);
    Some(all.into_iter().map(|(_, result)| result).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_item_has_its_result_in_its_place() {
        let done = side_by_side(&[1, 2, 3, 4, 5], |item| item * 10);
        assert_eq!(done, Some(vec![10, 20, 30, 40, 50]));
    }

    #[test]
    fn a_panic_is_no_result() {
        assert_eq!(side_by_side(&[1, 2, 3], |item| assert_ne!(*item, 2)), None);
    }
}
