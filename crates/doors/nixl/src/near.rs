//! Payload of a peer on the same machine: who needs the bytes copies them from the memory of the other process, once.
//!
//! Nobody writes to the memory of another process: what is written is checked by the process that owns it.

use rustix::process::Pid;

use crate::awaited::{Awaited, Destination, Placed};
use crate::broken::Broken;
use crate::raw::scatter::Scatter;

/// The memory of a peer's process, and what is to be copied from there.
#[derive(Debug)]
pub(crate) struct NearMemory {
    process: Pid,
    /// With the address of each range in the other process.
    awaited: Awaited<Vec<u64>>,
    /// Pieces at the front that may be copied.
    granted: usize,
}

impl NearMemory {
    pub(crate) fn new(process: Pid) -> Self {
        Self {
            process,
            awaited: Awaited::default(),
            granted: 0,
        }
    }

    /// Takes a piece that may be copied when it is [granted](Self::grant).
    pub(crate) fn expect(&mut self, transfer: u64, to: Scatter, sources: Vec<u64>) {
        self.awaited.expect(transfer, to, sources);
    }

    /// Lets the next piece be copied. Returns whether there is one, of this transfer.
    pub(crate) fn grant(&mut self, transfer: u64) -> bool {
        let next = self.awaited.get(self.granted);
        let is_there = next.is_some_and(|piece| piece.transfer == transfer);
        self.granted += usize::from(is_there);
        is_there
    }

    /// Lets all pieces be copied.
    pub(crate) fn grant_all(&mut self) {
        self.granted = self.awaited.owed().1;
    }

    /// Bytes and pieces that are to be copied.
    pub(crate) fn owed(&self) -> (u64, usize) {
        self.awaited.owed()
    }

    pub(crate) fn can_go_on(&self) -> bool {
        self.granted > 0
    }

    /// The memory of a transfer is not written any more, and may be used otherwise.
    pub(crate) fn discard(&mut self, transfer: u64) {
        self.awaited.discard(transfer);
    }

    /// Copies what may be copied, until the budget is used up.
    pub(crate) fn pull(
        &mut self,
        budget: &mut usize,
        placed: &mut Vec<Placed>,
    ) -> Result<bool, Broken> {
        let mut worked = false;
        while self.granted > 0 {
            if let Some(Destination::Nowhere(_)) = self.awaited.get(0).map(|piece| &piece.to) {
                self.awaited.drop_first();
                self.granted -= 1;
                continue;
            }
            let process = self.process;
            let pulled = self.awaited.pull(budget, placed, |piece, at_most| {
                let Destination::Memory(to) = &mut piece.to else {
                    return Ok(None);
                };
                let transfer = piece.transfer;
                let copied = to.copy_from(process, &piece.at, at_most);
                copied
                    .map(Some)
                    .map_err(|error| Broken::Uncopied { transfer, error })
            });
            let Some(whole) = pulled? else {
                break;
            };
            self.granted -= whole;
            worked = true;
        }
        Ok(worked)
    }
}
