//! What a table is told when it is made.

use std::time::Duration;

/// First number of a table's files: far above those of the process, which grow from 0.
pub const FD_BASE: i32 = 1 << 24;

/// What a table is told when it is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Number of the first file.
    pub fd_base: i32,
    /// A receive without MSG_SOCK_DEVMEM copies bytes out of device memory instead of refusing them with EFAULT: for
    /// programs that know nothing of device memory, a tester's above all.
    pub copy_out: bool,
    /// Largest value of SO_RCVBUF and SO_SNDBUF (linux `net.core.rmem_max`, `wmem_max`).
    pub buffer_max: u32,
    /// What the stack's time 0 is on the clock that programs know: what SO_TIMESTAMPING tells is later by so much.
    pub clock_base: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            fd_base: FD_BASE,
            copy_out: false,
            buffer_max: stack::RCV_BUF_MAX,
            clock_base: Duration::ZERO,
        }
    }
}
