//! The operations of TCP on payload: measuring, cutting and joining, but not reading.

/// Bytes that TCP orders and delivers but cannot read.
///
/// The trait has no access to bytes on purpose: payload may be in device memory, where a CPU
/// read is impossible (a GPU) or useless (it would be the copy that device memory TCP avoids).
/// `Default` is the empty payload. Parts that are cut off and dropped go home to their page pool.
pub trait Payload: Sized + Default {
    /// Returns the number of bytes.
    fn len(&self) -> usize;

    /// Returns whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes and returns the first `n` bytes, or all if there are fewer.
    #[must_use = "what is split off and dropped is lost: use trim_front"]
    fn split_off_front(&mut self, n: usize) -> Self;

    /// Drops the first `n` bytes, or all if there are fewer.
    fn trim_front(&mut self, n: usize);

    /// Keeps the first `n` bytes and drops the rest.
    fn truncate(&mut self, n: usize);

    /// Appends `other`.
    fn append(&mut self, other: Self);

    /// Returns a second owner of `len` bytes from `offset` (both limited to the existing bytes), for
    /// retransmission.
    #[must_use = "a share is a counted reference to memory"]
    fn share(&self, offset: usize, len: usize) -> Self;
}
