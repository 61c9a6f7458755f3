//! What TCP may do with payload: measure it, cut it, join it. Never read it.

/// Bytes that TCP orders and delivers but cannot read.
///
/// There is deliberately no way from here to a byte: payload may lie in device memory, where a CPU
/// read is impossible (a GPU) or pointless (it would be the copy that device memory TCP avoids).
/// `Default` is the empty payload. Parts that are cut off and dropped go home to their page pool.
pub trait Payload: Sized + Default {
    /// Returns the number of bytes.
    fn len(&self) -> usize;

    /// Returns whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Removes and returns the first `n` bytes; `n` past the end takes all.
    #[must_use = "what is split off and dropped is lost: use trim_front"]
    fn split_off_front(&mut self, n: usize) -> Self;

    /// Drops the first `n` bytes; `n` past the end drops all.
    fn trim_front(&mut self, n: usize);

    /// Keeps the first `n` bytes and drops the rest; `n` past the end keeps all.
    fn truncate(&mut self, n: usize);

    /// Puts `other` behind the last byte.
    fn append(&mut self, other: Self);

    /// Returns a second owner of `len` bytes from `offset` on (both cut to what exists): what a
    /// sender keeps for retransmission.
    #[must_use = "a share is a counted reference to memory"]
    fn share(&self, offset: usize, len: usize) -> Self;
}
