//! The rows of `bench latency`.

use clap::ValueEnum;

use crate::processes::Named;

/// A row.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub name: &'static str,
    /// This end, which is measured.
    pub near: Near,
    pub wait: Wait,
    pub work: Work,
}

impl Named for Row {
    fn name(&self) -> &'static str {
        self.name
    }
}

/// What is at this end, and how it reaches the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Near {
    /// The kernel's sockets on a veth pair.
    Kernel,
    /// The library over the kernel's TCP, on a veth pair.
    KernelNic,
    /// Our stack on a TAP.
    Tap,
    /// Our stack, with a packet socket on a veth pair.
    Packet,
    /// Our stack, with a macvtap on a veth pair.
    Macvtap,
    /// Our stack on a wire that shares memory with the other end, which is ours, too.
    Shared,
}

impl Near {
    /// Returns whether the other end is the kernel's TCP behind a veth pair.
    pub fn has_veth(self) -> bool {
        !matches!(self, Self::Tap | Self::Shared)
    }
}

/// How both ends wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Wait {
    /// Calls that block
    Block,
    /// Calls that do not block, again and again
    Spin,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Messages of so many bytes, each returned before the next one.
    RoundTrips(usize),
    /// Connections that this end opens, with a message of 1 KiB each.
    Connects,
    /// The same, opened by the other end.
    Accepts,
}

/// Bytes of the message of a short connection.
pub const SHORT: usize = 1024;

const fn round_trips(name: &'static str, near: Near, wait: Wait, bytes: usize) -> Row {
    Row {
        name,
        near,
        wait,
        work: Work::RoundTrips(bytes),
    }
}

const fn connections(name: &'static str, near: Near, work: Work) -> Row {
    Row {
        name,
        near,
        wait: Wait::Block,
        work,
    }
}

pub const ROWS: &[Row] = &[
    round_trips("kernel/8", Near::Kernel, Wait::Block, 8),
    round_trips("kernel/8/spin", Near::Kernel, Wait::Spin, 8),
    round_trips("kernel-nic/8", Near::KernelNic, Wait::Block, 8),
    round_trips("tap/8", Near::Tap, Wait::Block, 8),
    round_trips("tap/8/spin", Near::Tap, Wait::Spin, 8),
    round_trips("packet/8", Near::Packet, Wait::Block, 8),
    round_trips("packet/8/spin", Near::Packet, Wait::Spin, 8),
    round_trips("macvtap/8", Near::Macvtap, Wait::Block, 8),
    round_trips("macvtap/8/spin", Near::Macvtap, Wait::Spin, 8),
    round_trips("shared/8", Near::Shared, Wait::Block, 8),
    round_trips("shared/8/spin", Near::Shared, Wait::Spin, 8),
    round_trips("kernel/4096", Near::Kernel, Wait::Block, 4096),
    round_trips("kernel/4096/spin", Near::Kernel, Wait::Spin, 4096),
    round_trips("packet/4096", Near::Packet, Wait::Block, 4096),
    round_trips("packet/4096/spin", Near::Packet, Wait::Spin, 4096),
    round_trips("shared/4096", Near::Shared, Wait::Block, 4096),
    round_trips("shared/4096/spin", Near::Shared, Wait::Spin, 4096),
    connections("kernel/connect", Near::Kernel, Work::Connects),
    connections("packet/connect", Near::Packet, Work::Connects),
    connections("kernel/accept", Near::Kernel, Work::Accepts),
    connections("packet/accept", Near::Packet, Work::Accepts),
];

/// The rows that are compared.
pub const PAIRS: &[(&str, &str)] = &[
    ("kernel-nic/8", "kernel/8"),
    ("tap/8", "kernel/8"),
    ("packet/8", "kernel/8"),
    ("macvtap/8", "kernel/8"),
    ("shared/8", "kernel/8"),
    ("tap/8/spin", "kernel/8/spin"),
    ("packet/8/spin", "kernel/8/spin"),
    ("macvtap/8/spin", "kernel/8/spin"),
    ("shared/8/spin", "kernel/8/spin"),
    ("packet/4096", "kernel/4096"),
    ("packet/4096/spin", "kernel/4096/spin"),
    ("shared/4096", "kernel/4096"),
    ("shared/4096/spin", "kernel/4096/spin"),
    ("packet/connect", "kernel/connect"),
    ("packet/accept", "kernel/accept"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compared_rows_exist_and_names_are_unique() {
        for (ours, other) in PAIRS {
            for name in [ours, other] {
                assert!(ROWS.iter().any(|row| row.name == *name), "{name}");
            }
        }
        for (index, row) in ROWS.iter().enumerate() {
            assert!(ROWS[..index].iter().all(|other| other.name != row.name));
        }
    }
}
