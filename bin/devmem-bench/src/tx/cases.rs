//! The rows of `bench tx`.

use nic::BIG_PACKET_LEN;

use crate::connections::Connections;
use crate::row::{Case, Cores, Packets, RowName, WRITE_BYTES};

/// One row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TxCase {
    /// The name in tables, in JSON and for `--only`.
    pub name: &'static str,
    /// A description for people.
    pub what: &'static str,
    /// The sender.
    pub sender: SendPath,
    /// Number of processors of the two ends.
    pub cores: Cores,
    /// Bytes per send call.
    pub write_bytes: usize,
    /// Size of the sender's super-packets.
    pub packets: Packets,
    /// Tuning of the receiving end.
    pub tuning: Tuning,
    /// The number of connections; `None`: one, with blocking calls at both ends.
    pub connections: Option<Connections>,
}

/// Tuning of the receiving end, for any sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tuning {
    /// Nothing.
    None,
    /// Receive packet steering moves the receiving TCP's work to the receiver's processor; otherwise the sender's does it.
    Steering,
    /// The receiver is woken when [`LOW_WATER`] bytes are available, instead of for every packet.
    LowWater,
    /// The receiver discards the bytes in the kernel, without a copy.
    Discard,
}

/// Bytes for which a receiver with [`Tuning::LowWater`] is woken: as many as it reads in one call.
pub const LOW_WATER: usize = 256 << 10;

/// A sender and its link to the kernel receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendPath {
    /// The kernel's TCP over veth.
    Kernel,
    /// The same with `MSG_ZEROCOPY`.
    KernelZerocopy,
    /// A TAP with the minimal TCP that keeps a receiver going: the upper limit for any stack over a TAP.
    Bare,
    /// The library of this workspace, from device memory over a TAP.
    Ours,
}

const fn case(name: &'static str, what: &'static str, sender: SendPath) -> TxCase {
    TxCase {
        name,
        what,
        sender,
        cores: Cores::Two,
        write_bytes: WRITE_BYTES,
        packets: Packets::Usual,
        tuning: Tuning::None,
        connections: None,
    }
}

const fn many(case: TxCase, busy: usize, name: &'static str) -> TxCase {
    TxCase {
        name,
        connections: Some(Connections { busy, idle: 0 }),
        ..case
    }
}

const fn one_core(case: TxCase, name: &'static str) -> TxCase {
    TxCase {
        name,
        cores: Cores::One,
        ..case
    }
}

const fn small_sends(case: TxCase, name: &'static str) -> TxCase {
    TxCase {
        name,
        write_bytes: 64 << 10,
        ..case
    }
}

const fn with_packets(case: TxCase, packets: Packets, name: &'static str) -> TxCase {
    TxCase {
        name,
        packets,
        ..case
    }
}

const fn tuned(case: TxCase, tuning: Tuning, name: &'static str) -> TxCase {
    TxCase {
        name,
        tuning,
        ..case
    }
}

const SEND: TxCase = case("kernel-send", "kernel send over veth", SendPath::Kernel);
const ZEROCOPY: TxCase = case(
    "kernel-zerocopy",
    "kernel send with MSG_ZEROCOPY over veth",
    SendPath::KernelZerocopy,
);
const WRITEV: TxCase = case(
    "writev",
    "bare TAP writev from device memory",
    SendPath::Bare,
);
const OURS: TxCase = case("ours", "this sender, from device memory", SendPath::Ours);

/// Every row, in the order of the table.
pub const CASES: &[TxCase] = &[
    SEND,
    ZEROCOPY,
    WRITEV,
    OURS,
    with_packets(SEND, Packets::Big, "kernel-send/512k-packets"),
    with_packets(WRITEV, Packets::Legacy, "writev/64k-packets"),
    with_packets(OURS, Packets::Legacy, "ours/64k-packets"),
    one_core(SEND, "kernel-send/1core"),
    one_core(ZEROCOPY, "kernel-zerocopy/1core"),
    one_core(WRITEV, "writev/1core"),
    one_core(OURS, "ours/1core"),
    small_sends(SEND, "kernel-send/64k-sends"),
    small_sends(ZEROCOPY, "kernel-zerocopy/64k-sends"),
    small_sends(OURS, "ours/64k-sends"),
    tuned(SEND, Tuning::Steering, "kernel-send/rps"),
    tuned(WRITEV, Tuning::Steering, "writev/rps"),
    tuned(OURS, Tuning::Steering, "ours/rps"),
    tuned(SEND, Tuning::LowWater, "kernel-send/wake-256k"),
    tuned(OURS, Tuning::LowWater, "ours/wake-256k"),
    tuned(SEND, Tuning::Discard, "kernel-send/discard"),
    tuned(WRITEV, Tuning::Discard, "writev/discard"),
    tuned(OURS, Tuning::Discard, "ours/discard"),
];

/// The rows of `--connections`.
pub const MANY_CASES: &[TxCase] = &[
    many(SEND, 1, "kernel-send/1"),
    many(SEND, 8, "kernel-send/8"),
    many(SEND, 64, "kernel-send/64"),
    many(SEND, 1000, "kernel-send/1000"),
    many(OURS, 1, "ours/1"),
    many(OURS, 8, "ours/8"),
    many(OURS, 64, "ours/64"),
    many(OURS, 1000, "ours/1000"),
];

impl Case for TxCase {
    fn row_name(&self) -> RowName {
        let mut parts = Vec::new();
        if self.cores == Cores::One {
            parts.push("one core for both ends".to_owned());
        }
        if self.write_bytes != WRITE_BYTES {
            parts.push(format!("{} KiB sends", self.write_bytes >> 10));
        }
        parts.extend(match self.packets {
            Packets::Usual => None,
            Packets::Legacy => Some("packets of 64 KiB".to_owned()),
            Packets::Big => Some(format!("packets of {} KiB", BIG_PACKET_LEN >> 10)),
        });
        parts.extend(match self.tuning {
            Tuning::None => None,
            Tuning::Steering => Some("RPS to the receiver's core".to_owned()),
            Tuning::LowWater => Some("receiver woken for 256 KiB".to_owned()),
            Tuning::Discard => Some("receiver discards".to_owned()),
        });
        parts.extend(self.connections.map(|Connections { busy, .. }| match busy {
            1 => "one connection".to_owned(),
            _ => format!("{busy} connections"),
        }));
        RowName {
            name: self.name,
            what: self.what,
            variant: parts.join(", "),
        }
    }

    fn uses_tap(&self) -> bool {
        matches!(self.sender, SendPath::Bare | SendPath::Ours)
    }

    fn maps_memory(&self) -> bool {
        self.sender != SendPath::Ours
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_unique_name_and_its_differences() {
        let all: Vec<_> = CASES.iter().chain(MANY_CASES).collect();
        for (at, case) in all.iter().enumerate() {
            let is_new = all[..at].iter().all(|earlier| earlier.name != case.name);
            assert!(is_new, "{}", case.name);
            assert_eq!(
                case.row_name().variant.is_empty(),
                !case.name.contains('/'),
                "{}",
                case.name
            );
        }
    }
}
