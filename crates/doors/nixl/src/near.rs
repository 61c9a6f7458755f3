//! Payload of a peer on the same machine: who needs the bytes copies them from the memory of the other process, once.
//!
//! Nobody writes to the memory of another process: what is written is checked by the process that owns it.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use rustix::process::Pid;

use crate::data::Placed;
use crate::ffi::scatter::Scatter;

/// Bytes of one system call.
const CALL_BYTES: usize = 1 << 20;

/// Bytes to copy.
#[derive(Debug)]
struct Copy {
    transfer: u64,
    to: Scatter,
    sources: Vec<u64>,
}

/// The memory of a peer's process, and what is to be copied from there.
#[derive(Debug)]
pub(crate) struct NearMemory {
    process: Pid,
    queue: VecDeque<Copy>,
    owed: u64,
    /// Copies at the front that may begin.
    granted: usize,
}

/// A copy that failed.
#[derive(Debug)]
pub(crate) struct Uncopied {
    pub(crate) transfer: u64,
    pub(crate) error: io::Error,
}

impl NearMemory {
    pub(crate) fn new(process: Pid) -> Self {
        Self {
            process,
            queue: VecDeque::new(),
            owed: 0,
            granted: 0,
        }
    }

    /// Takes a copy that may begin when it is [granted](Self::grant).
    pub(crate) fn expect(&mut self, transfer: u64, to: Scatter, sources: Vec<u64>) {
        self.owed += to.left();
        self.queue.push_back(Copy {
            transfer,
            to,
            sources,
        });
    }

    /// Lets the next copy begin. Returns whether there is one, of this transfer.
    pub(crate) fn grant(&mut self, transfer: u64) -> bool {
        let next = self.queue.get(self.granted);
        let is_there = next.is_some_and(|copy| copy.transfer == transfer);
        self.granted += usize::from(is_there);
        is_there
    }

    /// Lets all copies begin.
    pub(crate) fn grant_all(&mut self) {
        self.granted = self.queue.len();
    }

    /// Bytes and pieces that are to be copied.
    pub(crate) fn owed(&self) -> (u64, usize) {
        (self.owed, self.queue.len())
    }

    pub(crate) fn can_go_on(&self) -> bool {
        self.granted > 0
    }

    /// Copies what may be copied, until the budget is used up.
    pub(crate) fn pull(
        &mut self,
        budget: &mut usize,
        is_wanted: impl Fn(u64) -> bool,
        placed: &mut Vec<Placed>,
    ) -> Result<bool, Uncopied> {
        let mut worked = false;
        while self.granted > 0
            && *budget > 0
            && let Some(first) = self.queue.front_mut()
        {
            worked = true;
            let transfer = first.transfer;
            if is_wanted(transfer) {
                let at_most = CALL_BYTES.min(*budget);
                let copied = first.to.copy_from(self.process, &first.sources, at_most);
                let bytes = copied.map_err(|error| Uncopied { transfer, error })?;
                *budget = budget.saturating_sub(bytes);
                self.owed = self.owed.saturating_sub(bytes as u64);
                placed.push(Placed {
                    transfer,
                    bytes: bytes as u64,
                });
                if first.to.left() > 0 {
                    continue;
                }
            }
            self.drop_front();
        }
        Ok(worked)
    }

    /// The memory of a transfer is not written any more, and may be used otherwise.
    pub(crate) fn discard(&mut self, transfer: u64) {
        for copy in self.queue.iter_mut().filter(|it| it.transfer == transfer) {
            self.owed = self.owed.saturating_sub(copy.to.left());
            copy.to = Scatter::new(Arc::default(), 0);
        }
    }

    /// Gives up the copy at the front.
    pub(crate) fn drop_front(&mut self) {
        if let Some(copy) = self.queue.pop_front() {
            self.owed = self.owed.saturating_sub(copy.to.left());
            self.granted = self.granted.saturating_sub(1);
        }
    }
}
