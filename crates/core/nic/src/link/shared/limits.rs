//! Limits that both ends of the wire keep.

use ::wire::EthernetHeader;

use crate::link::tap::BIG_PACKET_LEN;

/// Bytes of the longest super-packet of such a wire. A send of 512 KiB fits, with headers and whatever the length of its segments.
pub(in crate::link) const SHARED_PACKET_LEN: usize = BIG_PACKET_LEN + (16 << 10);

/// Bytes of the longest frame of such a wire.
pub(super) const LONGEST_FRAME: usize = SHARED_PACKET_LEN + EthernetHeader::TAGGED_LEN;

/// Frames that the other end may have at a time.
pub(super) const SLOTS: usize = 256;

/// Files that the other end may have at a time. Payload in further ones is copied to memory of this link.
pub(super) const REGIONS: usize = 64;

/// Bytes of host memory that the other end may keep until its program has read them. Beyond that it has to copy the
/// payload at once, so that programs that do not read cannot use up the host memory of this end.
pub(super) const KEEP_BYTES: usize = 16 << 20;
