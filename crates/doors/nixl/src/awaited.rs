//! Pieces that were announced and whose bytes are to come from one source, in order.

use std::collections::VecDeque;

use crate::raw::scatter::Scatter;

/// Bytes of one system call.
const CALL_BYTES: usize = 1 << 20;

/// Where bytes go.
#[derive(Debug)]
pub(crate) enum Destination {
    Memory(Scatter),
    /// That many bytes of a transfer that was cancelled.
    Nowhere(u64),
}

impl Destination {
    fn left(&self) -> u64 {
        match self {
            Self::Memory(scatter) => scatter.left(),
            Self::Nowhere(left) => *left,
        }
    }
}

/// Bytes of a transfer that are in place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    pub(crate) transfer: u64,
    pub(crate) bytes: u64,
}

/// A piece, and where its source has it.
#[derive(Debug)]
pub(crate) struct Expected<S> {
    pub(crate) transfer: u64,
    pub(crate) to: Destination,
    pub(crate) at: S,
}

/// Pieces that are to come.
#[derive(Debug)]
pub(crate) struct Awaited<S> {
    queue: VecDeque<Expected<S>>,
    bytes: u64,
}

impl<S> Default for Awaited<S> {
    fn default() -> Self {
        Self {
            queue: VecDeque::new(),
            bytes: 0,
        }
    }
}

impl<S> Awaited<S> {
    pub(crate) fn expect(&mut self, transfer: u64, to: Scatter, at: S) {
        self.bytes += to.left();
        self.queue.push_back(Expected {
            transfer,
            to: Destination::Memory(to),
            at,
        });
    }

    /// Bytes and pieces that are to come.
    pub(crate) fn owed(&self) -> (u64, usize) {
        (self.bytes, self.queue.len())
    }

    pub(crate) fn get(&self, index: usize) -> Option<&Expected<S>> {
        self.queue.get(index)
    }

    /// From now on, bytes of a transfer go nowhere: its memory may be used otherwise.
    pub(crate) fn discard(&mut self, transfer: u64) {
        for expected in self.queue.iter_mut().filter(|it| it.transfer == transfer) {
            expected.to = Destination::Nowhere(expected.to.left());
        }
    }

    /// Has bytes of the first piece received, by a call that may take the given number of them. Returns how many pieces are whole, 0 or 1;
    /// `None`: nothing has come, or the budget is used up.
    pub(crate) fn pull<E>(
        &mut self,
        budget: &mut usize,
        placed: &mut Vec<Placed>,
        receive: impl FnOnce(&mut Expected<S>, usize) -> Result<Option<usize>, E>,
    ) -> Result<Option<usize>, E> {
        let Some(first) = self.queue.front_mut().filter(|_| *budget > 0) else {
            return Ok(None);
        };
        let Some(bytes) = receive(first, CALL_BYTES.min(*budget))? else {
            return Ok(None);
        };
        *budget = budget.saturating_sub(bytes);
        self.bytes = self.bytes.saturating_sub(bytes as u64);
        placed.push(Placed {
            transfer: first.transfer,
            bytes: bytes as u64,
        });
        if first.to.left() > 0 {
            return Ok(Some(0));
        }
        self.queue.pop_front();
        Ok(Some(1))
    }

    /// Gives up the first piece.
    pub(crate) fn drop_first(&mut self) {
        if let Some(first) = self.queue.pop_front() {
            self.bytes = self.bytes.saturating_sub(first.to.left());
        }
    }
}
