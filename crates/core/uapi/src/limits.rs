//! Limits of the system calls.

/// Maximum number of token ranges in one `SO_DEVMEM_DONTNEED` call (linux net/core/sock.c
/// `MAX_DONTNEED_TOKENS`); more is `EINVAL`.
pub const MAX_DONTNEED_TOKENS: usize = 128;

/// Maximum number of tokens processed in one `SO_DEVMEM_DONTNEED` call, unknown ones included (linux
/// net/core/sock.c `MAX_DONTNEED_FRAGS`); the call stops there and returns how many frags it freed.
pub const MAX_DONTNEED_FRAGS: usize = 1024;

/// Maximum number of iovecs in one message (linux include/uapi/linux/uio.h `UIO_MAXIOV`); more is
/// `EMSGSIZE`.
pub const UIO_MAXIOV: usize = 1024;
