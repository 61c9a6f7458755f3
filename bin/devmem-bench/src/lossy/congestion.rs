//! Congestion control that both senders have.

use clap::ValueEnum;
use serde::Serialize;

use crate::sender::{Mode, Sending};

/// Bytes per send call.
pub(super) const WRITE_BYTES: usize = 256 << 10;

/// Congestion control that both stacks implement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Congestion {
    Cubic,
    Reno,
    Bbr,
    Dctcp,
}

impl Congestion {
    /// Returns the kernel's name of it.
    pub fn kernel_name(self) -> &'static str {
        match self {
            Self::Cubic => "cubic",
            Self::Reno => "reno",
            Self::Bbr => "bbr",
            Self::Dctcp => "dctcp",
        }
    }

    pub(super) fn ours(self) -> devmem_tcp::tcp::Congestion {
        match self {
            Self::Cubic => devmem_tcp::tcp::Congestion::Cubic,
            Self::Reno => devmem_tcp::tcp::Congestion::Reno,
            Self::Bbr => devmem_tcp::tcp::Congestion::Bbr,
            Self::Dctcp => devmem_tcp::tcp::Congestion::Dctcp,
        }
    }

    /// Returns what the kernel's sender is to do with it: send the pattern until the receiver ends.
    pub fn of_the_kernel(self) -> Sending {
        Sending {
            congestion: self.kernel_name(),
            write_bytes: WRITE_BYTES,
            source_bytes: WRITE_BYTES,
            mode: Mode::Pattern,
            connections: None,
            offered: None,
            from: None,
        }
    }
}
