//! What is to happen in a simulation.

use std::collections::BTreeMap;

use wire::Instant;

/// Events by time, those of one time in the order in which they were scheduled.
pub struct Timeline<E> {
    events: BTreeMap<(Instant, u64), E>,
    scheduled: u64,
}

impl<E> Timeline<E> {
    pub fn new() -> Self {
        Self {
            events: BTreeMap::new(),
            scheduled: 0,
        }
    }

    pub fn schedule(&mut self, at: Instant, event: E) {
        self.scheduled += 1;
        self.events.insert((at, self.scheduled), event);
    }

    /// Returns the time of the next event.
    pub fn next_at(&self) -> Option<Instant> {
        self.events.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes the next event.
    pub fn pop(&mut self) -> Option<E> {
        self.events.pop_first().map(|(_, event)| event)
    }
}
