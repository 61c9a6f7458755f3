//! How far the zero-copy sends of a socket are.

use crate::send_id::Reported;

/// Progress of a socket's zero-copy sends. Each field counts sends since the socket was created; the kernel's 32-bit ids are
/// the lower halves of these counts.
#[derive(Debug, Default)]
pub(super) struct Sends {
    pub(super) sent: u64,
    /// Complete; sends complete in their order.
    pub(super) complete: u64,
    pub(super) reported: Reported,
    /// Complete, but the bytes were copied (`SO_EE_CODE_ZEROCOPY_COPIED`).
    pub(super) copied: u64,
    /// SO_ZEROCOPY is set.
    pub(super) enabled: bool,
}
