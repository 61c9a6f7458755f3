//! The arguments of a receive.

use devmem_uapi::MsgFlags;

use crate::driver::WaitLimit;

/// How a stream treats bytes that did not land in device memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// Deliver them in order as [`Frag::Linear`](crate::Frag::Linear).
    #[default]
    Mixed,
    /// Return [`RecvError::Misplaced`](crate::RecvError::Misplaced) with the cause. The bytes stay queued: switch to `Mixed` to
    /// receive them.
    Strict,
}

/// One receive: how much, how long, and with which flags beside `SOCK_DEVMEM`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecvRequest {
    pub(crate) placement: Placement,
    pub(crate) limit: WaitLimit,
    /// Most bytes, device and host together.
    pub(crate) max_bytes: usize,
    /// `PEEK` for bytes that stay queued, or none.
    pub(crate) flags: MsgFlags,
}
