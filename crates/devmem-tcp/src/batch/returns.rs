//! The return of the device memory of a batch.

use super::{OwnedFrag, RxBatch, RxFrag};
use crate::error::Error;

impl RxBatch {
    /// Returns the device memory of all frags with `SO_DEVMEM_DONTNEED`: tokens are merged into ranges, at most 128 ranges
    /// and 1,024 frags per call. Returns the number of frags freed.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) if fewer frags were freed than the batch held: the program returned some of their tokens
    /// without the library.
    pub fn release(&mut self) -> Result<usize, Error> {
        let lent = self.device_frags();
        let freed = match self.owner.take() {
            Some(owner) => owner.release(&mut self.frags),
            None => Ok(0),
        };
        // Also in a child of fork(2), where the frags belong to the parent.
        self.frags.clear();
        match freed? {
            freed if freed == lent => Ok(freed),
            freed => {
                let reason = format!("only {freed} of {lent} frags could be returned");
                Err(Error::invalid(reason)
                    .with_remedy("their tokens were returned before, without the library"))
            }
        }
    }
}

impl Drop for RxBatch {
    fn drop(&mut self) {
        // `drop` cannot report that frags are missing; a call of `release` does.
        let _ = self.release();
    }
}

impl Drop for RxFrag {
    fn drop(&mut self) {
        if let OwnedFrag::Device { device, owner } = &self.0 {
            owner.release_one(device.token);
        }
    }
}
