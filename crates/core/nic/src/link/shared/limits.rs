//! Limits that both ends of the wire keep.

/// Frames that the other end may have at a time.
pub(super) const SLOTS: usize = 256;

/// Files that the other end may have at a time. Payload in further ones is copied to memory of this link.
pub(super) const REGIONS: usize = 64;

/// Bytes of host memory that the other end may keep until its program has read them. Beyond that it has to copy the
/// payload at once, so that programs that do not read cannot use up the host memory of this end.
pub(super) const KEEP_BYTES: usize = 16 << 20;
