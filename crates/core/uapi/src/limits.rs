//! Limits of the system calls.

/// Token ranges in one `SO_DEVMEM_DONTNEED` call (linux net/core/sock.c
/// `MAX_DONTNEED_TOKENS`); more is `EINVAL`.
pub const MAX_DONTNEED_TOKENS: usize = 128;

/// Frags looked at in one `SO_DEVMEM_DONTNEED` call, unknown tokens counted too (linux
/// net/core/sock.c `MAX_DONTNEED_FRAGS`); the call stops there and tells how many it freed.
pub const MAX_DONTNEED_FRAGS: usize = 1024;

/// Pieces of memory in one message (linux include/uapi/linux/uio.h `UIO_MAXIOV`); more is
/// `EMSGSIZE`.
pub const UIO_MAXIOV: usize = 1024;
