//! What a driver drives.

use stack::{PollUntil, Stack};
use wire::Instant;

use crate::calls::Calls;

/// What the lock of a driver protects: stacks, and whoever is to be told of their events.
pub trait Driven: Send {
    /// Returns the stacks. Their number does not change.
    fn stacks(&self) -> &[Stack];

    /// Returns the stacks.
    fn stacks_mut(&mut self) -> &mut [Stack];

    /// Takes the events of the stacks, and wakes the threads whose calls wait for what has changed. Called after each call, and after
    /// each poll that had work.
    fn tell_events(&mut self, calls: &mut Calls);

    /// Returns whether there is something to tell.
    fn has_events(&self) -> bool;

    /// Returns whether the program may be waiting for a file descriptor that [`tell_events`](Self::tell_events) makes ready.
    fn awaits_fd(&self) -> bool;
}

/// Returns the earliest time at which one of the stacks must be polled again.
pub(crate) fn next_deadline(stacks: &[Stack]) -> Option<Instant> {
    stacks.iter().filter_map(Stack::next_deadline).min()
}

/// Polls every stack once. Returns the number of packets that were received; a poll that had other work counts as one.
pub(crate) fn poll_stacks(
    stacks: &mut [Stack],
    until: PollUntil,
    mut now: impl FnMut() -> Instant,
) -> u64 {
    let polled = stacks
        .iter_mut()
        .map(|stack| stack.poll_by(until, &mut now));
    polled
        .filter(|polled| polled.worked)
        .map(|polled| polled.received.max(1) as u64)
        .sum()
}

/// Prepares the links for a sleep on their descriptors. Returns false if one of them has something to receive: [`end_sleep`] follows in
/// any case.
pub(crate) fn prepare_sleep(stacks: &mut [Stack]) -> bool {
    stacks
        .iter_mut()
        .all(|stack| stack.nic_mut().prepare_sleep())
}

/// Tells the links that nobody sleeps on their descriptors.
pub(crate) fn end_sleep(stacks: &mut [Stack]) {
    for stack in stacks {
        stack.nic_mut().end_sleep();
    }
}
