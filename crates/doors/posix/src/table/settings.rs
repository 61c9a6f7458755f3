//! Settings of a table.

use std::time::Duration;

/// First number of a table's files: far above those of the process, which grow from 0.
pub const FD_BASE: i32 = 1 << 24;

/// Settings of a table, fixed when it is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Number of the first file.
    pub fd_base: i32,
    /// A receive without MSG_SOCK_DEVMEM copies bytes out of device memory instead of failing with EFAULT, for programs
    /// written for ordinary sockets, such as test tools.
    pub copy_out: bool,
    /// Largest value of SO_RCVBUF and SO_SNDBUF (linux `net.core.rmem_max`, `wmem_max`).
    pub buffer_max: u32,
    /// Wall-clock time of the stack's time 0, added to the times that SO_TIMESTAMPING reports.
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
