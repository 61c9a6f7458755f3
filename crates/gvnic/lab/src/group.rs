//! The groups of acceptance tests, by their names on the command line. The tests are a program of their own, `devmem-lab`.

use serde::{Deserialize, Serialize};

/// Acceptance tests that share a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Group {
    /// The NIC as an ordinary one: driver, ping, TCP, ethtool, resets
    Nic,
    /// Device memory: bind, receive, send, starvation, unbind, kill
    Devmem,
    /// `load` and `store` with the kernel's stack, from and to stock servers and nvmet; skipped where this machine has no such server
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
}
