//! The acceptance tests of a stock guest kernel with our gVNICs, row by row.
//!
//! `host` starts a guest for each [`Group`] and collects what its rows report; in the guest `rows` runs them one after
//! another, over `traffic` (kernel sockets on both NICs) and `devmem` (our NIC's queues bound to device memory). `two_guests` runs
//! the groups whose rows need a guest at each end of the wire.

mod devmem;
mod devmem_rows;
mod exchange;
mod exchange_rows;
mod far_end;
pub mod host;
mod load_rows;
mod long_rows;
pub mod nic_rows;
pub mod rows;
mod stack_rows;
mod traffic;
mod two_guests;

use serde::{Deserialize, Serialize};

/// Rows that share a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Group {
    /// The NIC as an ordinary one: driver, ping, TCP, ethtool, resets
    Nic,
    /// Device memory: bind, receive, send, starvation, unbind, kill
    Devmem,
    /// `load` and `store` with the kernel's stack, from and to stock servers; skipped where this machine has no such server
    Load,
    /// Device memory over an impaired wire
    Loss,
    /// The same as load, over an impaired wire
    LoadLoss,
    /// Device memory from a device with unusual but allowed behaviour: linear bytes, unsplit packets
    Knobs,
    /// Device memory on a device that requests resets during transfers
    Resets,
    /// Our user-space stack at the other end
    Stack,
    /// Our user-space stack at the other end of an impaired wire
    StackLoss,
    /// Two guests exchange messages through our plugin for NCCL; skipped where it is not built or installed
    Exchange,
    /// The same over an impaired wire
    ExchangeLoss,
    /// The same between devices with unusual but allowed behaviour: linear bytes, unsplit packets
    ExchangeKnobs,
    /// Many connections, iperf3, and ten minutes of changes under traffic; not part of the default groups
    Long,
}

impl Group {
    /// The default groups, in the order they run.
    pub const ALL: [Self; 12] = [
        Self::Nic,
        Self::Devmem,
        Self::Load,
        Self::Loss,
        Self::LoadLoss,
        Self::Knobs,
        Self::Resets,
        Self::Stack,
        Self::StackLoss,
        Self::Exchange,
        Self::ExchangeLoss,
        Self::ExchangeKnobs,
    ];

    /// Returns whether its rows run in two guests at the same time.
    fn has_two_guests(self) -> bool {
        matches!(
            self,
            Self::Exchange | Self::ExchangeLoss | Self::ExchangeKnobs
        )
    }
}

/// Result of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The tested function works.
    Passed,
    /// The tested function does not work.
    Failed,
    /// The guest's kernel does not have the tested function.
    Skipped,
}

impl Verdict {
    /// Returns its word in a table, padded to six characters.
    pub fn mark(self) -> &'static str {
        match self {
            Self::Passed => "ok    ",
            Self::Failed => "FAILED",
            Self::Skipped => "SKIP  ",
        }
    }
}

/// Report of a row.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RowReport {
    /// Its name.
    pub row: String,
    /// Its result.
    pub verdict: Verdict,
    /// Observations, the error, or the reason why it was skipped.
    pub detail: String,
    /// Duration in seconds.
    pub seconds: f64,
    /// Rate in 10^6 bytes per second, if measured.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mb_per_s: Option<f64>,
}

/// One line that a guest prints.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
enum Line {
    /// A request to start a program at the other end of the wire.
    Wish { far_end: far_end::Wish },
    /// The report of a row that has ended.
    Row(RowReport),
}
