//! The wait of a thread of the program for what a turn needs.

use std::time::Duration;

use devmem_tcp::{Poller, Watch};

use crate::control::Reading;

/// What a thread waits for, without the lock.
pub(crate) struct Wait {
    pub(crate) watches: Vec<Watch>,
    /// The records, unless another thread reads them.
    pub(crate) reading: Option<Reading>,
}

impl Wait {
    /// Waits for at most `at_most`. The turn finds out why that failed.
    pub(crate) fn run(&mut self, poller: &Poller, at_most: Duration) {
        match &mut self.reading {
            Some(reading) => reading.wait(poller, &self.watches, at_most),
            None => drop(poller.wait(&self.watches, at_most)),
        }
    }
}
