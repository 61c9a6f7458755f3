//! Places that connections choose for their next payload.

use std::ops::Range;

use netmem::{FragUse, OutOfBounds};
use wire::FourTuple;

use super::Nic;

impl Nic {
    /// Places the payload of a connection from sequence number `seq` on in `ranges` of a memory, one after another. Replaces
    /// earlier ranges of the connection.
    ///
    /// # Errors
    /// A range is not inside the memory; then nothing has changed.
    pub fn ddp_add(
        &mut self,
        flow: FourTuple,
        seq: u32,
        memory: FragUse,
        ranges: Vec<Range<usize>>,
    ) -> Result<(), OutOfBounds> {
        self.rx.ddp.add(flow, seq, memory, ranges)
    }

    /// Tells that the next byte of a connection has the sequence number `seq`, and that `left` bytes of its ranges are still to
    /// be filled.
    pub fn ddp_resync(&mut self, flow: &FourTuple, seq: u32, left: usize) {
        self.rx.ddp.resync(flow, seq, left);
    }

    /// Forgets the range of a connection: from now on no packet changes its bytes.
    pub fn ddp_del(&mut self, flow: &FourTuple) {
        self.rx.ddp.remove(flow);
    }
}
