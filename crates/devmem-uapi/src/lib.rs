//! Shared vocabulary of Linux device memory TCP: control messages, tokens, flags, errnos, limits.

/// The name of a bound dma-buf: what bind-rx and bind-tx return, never 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct DmabufId(pub u32);
