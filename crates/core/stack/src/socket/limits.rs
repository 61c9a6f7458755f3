//! Limits of one socket, which its errors name.

/// Maximum number of tokens of one socket. Peeking issues tokens without taking data, so a limit is needed. The
/// kernel's is 2^31 (linux `xa_limit_31b`), more than fit into memory.
pub const MAX_TOKENS: usize = 1 << 24;

/// Maximum number of zero-copy sends of a socket that are incomplete or not reported (linux limits them by
/// `optmem_max`).
pub const MAX_ZEROCOPY_SENDS: usize = 16_384;
