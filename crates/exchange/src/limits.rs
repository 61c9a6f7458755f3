//! Limits of endpoints, and the lengths that both sides must agree on.

use crate::record::INLINE_BYTES;

/// Most parts of one receive.
pub const MAX_PARTS: usize = 8;

/// Most receives that are posted and not done, per endpoint.
pub const MAX_RECEIVES: usize = 256;

/// Most sends, puts and gets that are not done, per endpoint.
pub const MAX_SENDS: usize = 2048;

/// Most notifications that are not sent, per endpoint.
pub(crate) const MAX_NOTIFIES: usize = 256;

/// Longest notification.
pub const MAX_NOTIFY_BYTES: usize = INLINE_BYTES;

/// Most data streams of an endpoint.
pub const MAX_STREAMS: u16 = 64;

/// Smallest length of a chunk. Also a border that no chunk but the last one of a message ends on: NCCL's LL128 protocol
/// needs lines of 128 bytes to arrive whole.
pub const MIN_CHUNK: usize = 4096;

/// Largest length of a chunk.
pub const MAX_CHUNK: usize = 64 << 20;

/// Data streams of an endpoint, unless the program chooses.
pub const DEFAULT_STREAMS: u16 = 1;

/// Length of a chunk, unless the program chooses.
pub const DEFAULT_CHUNK: usize = 4 << 20;

/// Returns whether chunks may have this length.
pub(crate) fn is_chunk(len: usize) -> bool {
    (MIN_CHUNK..=MAX_CHUNK).contains(&len) && len.is_multiple_of(MIN_CHUNK)
}
