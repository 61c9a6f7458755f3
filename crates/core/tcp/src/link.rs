//! Limits of the link to a peer: lengths of packets and of super-packets.

use core::num::NonZeroU32;
use core::ops::RangeInclusive;

/// Limits of the link to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkLimits {
    /// Longest payload of one packet, in bytes: the MTU less the headers of IP and TCP, without options.
    pub mss: u16,
    /// Payload lengths of super-packets, which the link's NIC cuts.
    pub super_payload: SuperPayload,
}

/// Allowed payload lengths of a super-packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SuperPayload {
    /// The longest, in bytes.
    pub longest: u32,
    /// Shorter lengths that the link refuses, if any.
    pub unfit: Option<UnfitPayload>,
}

/// A range of payload lengths, in bytes, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnfitPayload {
    /// The shortest.
    pub first: NonZeroU32,
    /// The longest.
    pub last: u32,
}

impl UnfitPayload {
    /// Returns the range; `None` if it begins at 0 or is empty.
    pub fn new(range: RangeInclusive<u32>) -> Option<UnfitPayload> {
        let (first, last) = range.into_inner();
        let first = NonZeroU32::new(first).filter(|first| first.get() <= last)?;
        Some(UnfitPayload { first, last })
    }
}

impl LinkLimits {
    /// Returns the limits of a link whose packets have at most `mss` bytes of payload, and whose super-packets at most
    /// `longest`.
    pub const fn new(mss: u16, longest: u32) -> Self {
        Self {
            mss,
            super_payload: SuperPayload {
                longest,
                unfit: None,
            },
        }
    }
}

impl SuperPayload {
    /// Returns `len`, or the most whole packets of `mss` bytes below it that the link takes as one super-packet; `len` is
    /// at most [`SuperPayload::longest`].
    pub(crate) fn fit(self, len: u64, mss: u64) -> u64 {
        match self.unfit {
            Some(UnfitPayload { first, last })
                if (u64::from(first.get())..=u64::from(last)).contains(&len) =>
            {
                u64::from(first.get() - 1) / mss * mss
            }
            _ => len,
        }
    }
}
