//! The rows of `bench rx`.

use netmem::NiovSize;

use crate::connections::Connections;
use crate::row::{CONGESTION, Case, Cores, Packets, RowName, WRITE_BYTES};
use crate::sender::{Mode, Sending};

/// One row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RxCase {
    /// The name in tables, in JSON and for `--only`.
    pub name: &'static str,
    /// A description for people.
    pub what: &'static str,
    /// The receiver.
    pub receiver: ReceivePath,
    /// Number of processors of the two ends.
    pub cores: Cores,
    /// The sender's congestion control.
    pub congestion: &'static str,
    /// Bytes per send call of the sender.
    pub write_bytes: usize,
    /// The number of connections; `None`: one, with blocking calls at both ends.
    pub connections: Option<Connections>,
    /// How the receiver of several connections waits.
    pub waiting: Waiting,
    /// Gbit/s that the sender of several connections offers on all of them together; `None`: as much as they accept.
    pub offered: Option<u32>,
    /// Processor of the sender's TCP.
    pub steering: Steering,
    /// Size of the sender's super-packets.
    pub packets: Packets,
}

/// Where the sender's TCP processes what the receiver sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Steering {
    /// Where it was sent: in the system calls of the receiver, whose CPU time has it.
    None,
    /// On the sender's processor, by receive packet steering, as if the sender were another machine. Each interrupt between the
    /// processors costs the receiver some microseconds instead.
    Sender,
}

/// A receiver and its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReceivePath {
    /// The kernel's TCP over veth: receive to a buffer of 256 KiB, copy to the device buffer.
    KernelCopy,
    /// The kernel's TCP over veth: receive directly into the device buffer.
    KernelDirect,
    /// A TAP with the minimal TCP that keeps a sender going: the upper limit for any stack over a TAP.
    Bare(Placement),
    /// The library of this workspace, over a TAP.
    Ours(NiovSize),
    /// The library of this workspace, over one end of a veth pair.
    OursOverVeth(VethLink),
    /// smoltcp over a TAP with a device of this benchmark.
    #[cfg(feature = "bench-smoltcp")]
    Smoltcp,
}

/// What the library of this workspace opens on one end of a veth pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VethLink {
    /// A packet socket.
    Packet,
    /// A macvtap interface.
    Macvtap,
}

/// How the thread waits for its streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// In epoll_wait(2), for the readiness fds of the streams.
    Epoll,
    /// With a [`Poller`](devmem_tcp::Poller), which polls the NIC.
    Poller,
}

/// Layout of the bare receiver's payload memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// One run of 64 KiB.
    Contiguous,
    /// 17 pages of 4 KiB, picked at random.
    Scattered,
}

impl ReceivePath {
    /// Returns whether it receives over a veth pair; others use a TAP.
    pub fn uses_veth(self) -> bool {
        matches!(
            self,
            Self::KernelCopy | Self::KernelDirect | Self::OursOverVeth(_)
        )
    }
}

const fn case(name: &'static str, what: &'static str, receiver: ReceivePath) -> RxCase {
    RxCase {
        name,
        what,
        receiver,
        cores: Cores::Two,
        congestion: CONGESTION,
        write_bytes: WRITE_BYTES,
        connections: None,
        waiting: Waiting::Epoll,
        offered: None,
        steering: Steering::None,
        packets: Packets::Usual,
    }
}

const fn big_tcp(case: RxCase, name: &'static str) -> RxCase {
    RxCase {
        name,
        packets: Packets::Big,
        ..case
    }
}

const fn one_core(case: RxCase, name: &'static str) -> RxCase {
    RxCase {
        name,
        cores: Cores::One,
        ..case
    }
}

const fn bbr(case: RxCase, name: &'static str) -> RxCase {
    RxCase {
        name,
        congestion: "bbr",
        ..case
    }
}

const fn small_sends(case: RxCase, name: &'static str) -> RxCase {
    RxCase {
        name,
        write_bytes: 64 << 10,
        ..case
    }
}

const fn many(case: RxCase, name: &'static str, busy: usize, idle: usize) -> RxCase {
    let waiting = match case.receiver {
        ReceivePath::Ours(_) => Waiting::Poller,
        _ => Waiting::Epoll,
    };
    RxCase {
        name,
        connections: Some(Connections { busy, idle }),
        waiting,
        ..case
    }
}

const fn offered(case: RxCase, name: &'static str, gbits: u32) -> RxCase {
    RxCase {
        name,
        offered: Some(gbits),
        ..case
    }
}

const fn steered(case: RxCase, name: &'static str) -> RxCase {
    RxCase {
        name,
        steering: Steering::Sender,
        ..case
    }
}

const fn with_epoll(case: RxCase, name: &'static str) -> RxCase {
    RxCase {
        name,
        waiting: Waiting::Epoll,
        ..case
    }
}

const KERNEL_COPY: RxCase = case(
    "kernel-copy",
    "kernel recv 256 KiB, then copy to the device buffer",
    ReceivePath::KernelCopy,
);
const KERNEL_DIRECT: RxCase = case(
    "kernel-direct",
    "kernel recv directly into the device buffer",
    ReceivePath::KernelDirect,
);
const READV: RxCase = case(
    "readv",
    "bare TAP readv, header split, contiguous",
    ReceivePath::Bare(Placement::Contiguous),
);
const READV_4K: RxCase = case(
    "readv-4k-pages",
    "bare TAP readv into 17 random 4 KiB pages",
    ReceivePath::Bare(Placement::Scattered),
);
const OURS: RxCase = case(
    "ours",
    "this receiver",
    ReceivePath::Ours(NiovSize::DEFAULT),
);
const OURS_4K: RxCase = case(
    "ours-4k-niovs",
    "this receiver with 4 KiB net_iovs",
    ReceivePath::Ours(NiovSize::MIN),
);

const OURS_PACKET: RxCase = case(
    "ours/packet",
    "this receiver over a packet socket and veth",
    ReceivePath::OursOverVeth(VethLink::Packet),
);

const OURS_MACVTAP: RxCase = case(
    "ours/macvtap",
    "this receiver over a macvtap interface and veth",
    ReceivePath::OursOverVeth(VethLink::Macvtap),
);

/// Every row, in the order of the table.
pub const CASES: &[RxCase] = &[
    KERNEL_COPY,
    KERNEL_DIRECT,
    READV,
    READV_4K,
    OURS,
    OURS_4K,
    OURS_PACKET,
    OURS_MACVTAP,
    #[cfg(feature = "bench-smoltcp")]
    case(
        "smoltcp",
        "smoltcp with a vnet/TSO device, then copy",
        ReceivePath::Smoltcp,
    ),
    one_core(KERNEL_COPY, "kernel-copy/1core"),
    one_core(KERNEL_DIRECT, "kernel-direct/1core"),
    one_core(READV, "readv/1core"),
    one_core(OURS, "ours/1core"),
    one_core(OURS_PACKET, "ours/packet/1core"),
    one_core(OURS_MACVTAP, "ours/macvtap/1core"),
    big_tcp(KERNEL_COPY, "kernel-copy/big-tcp"),
    big_tcp(OURS_PACKET, "ours/packet/big-tcp"),
    big_tcp(OURS_MACVTAP, "ours/macvtap/big-tcp"),
    one_core(big_tcp(KERNEL_DIRECT, ""), "kernel-direct/1core/big-tcp"),
    one_core(big_tcp(OURS_PACKET, ""), "ours/packet/1core/big-tcp"),
    one_core(big_tcp(OURS_MACVTAP, ""), "ours/macvtap/1core/big-tcp"),
    bbr(KERNEL_COPY, "kernel-copy/bbr"),
    bbr(READV, "readv/bbr"),
    bbr(OURS, "ours/bbr"),
    small_sends(KERNEL_COPY, "kernel-copy/64k-sends"),
    small_sends(READV, "readv/64k-sends"),
    small_sends(OURS, "ours/64k-sends"),
];

/// The rows of `--connections`.
pub const MANY_CASES: &[RxCase] = &[
    many(KERNEL_COPY, "kernel-copy/1", 1, 0),
    many(KERNEL_COPY, "kernel-copy/8", 8, 0),
    many(KERNEL_COPY, "kernel-copy/64", 64, 0),
    many(KERNEL_COPY, "kernel-copy/1000", 1000, 0),
    many(OURS, "ours/1", 1, 0),
    many(OURS, "ours/8", 8, 0),
    many(OURS, "ours/64", 64, 0),
    many(OURS, "ours/1000", 1000, 0),
    many(OURS, "ours/1+10000-idle", 1, 10_000),
    with_epoll(many(OURS, "", 1, 0), "ours/1/epoll"),
    with_epoll(many(OURS, "", 64, 0), "ours/64/epoll"),
    with_epoll(many(OURS, "", 1000, 0), "ours/1000/epoll"),
    offered(many(KERNEL_COPY, "", 1, 0), "kernel-copy/1/20g", 20),
    offered(many(KERNEL_COPY, "", 1000, 0), "kernel-copy/1000/20g", 20),
    offered(many(OURS, "", 1, 0), "ours/1/20g", 20),
    offered(many(OURS, "", 8, 0), "ours/8/20g", 20),
    offered(many(OURS, "", 64, 0), "ours/64/20g", 20),
    offered(many(OURS, "", 1000, 0), "ours/1000/20g", 20),
    steered(many(KERNEL_COPY, "", 1, 0), "kernel-copy/1/rps"),
    steered(many(KERNEL_COPY, "", 1000, 0), "kernel-copy/1000/rps"),
    steered(many(OURS, "", 1, 0), "ours/1/rps"),
    steered(many(OURS, "", 8, 0), "ours/8/rps"),
    steered(many(OURS, "", 64, 0), "ours/64/rps"),
    steered(many(OURS, "", 1000, 0), "ours/1000/rps"),
];

impl Case for RxCase {
    fn row_name(&self) -> RowName {
        RowName {
            name: self.name,
            what: self.what,
            variant: self.variant(),
        }
    }

    fn uses_tap(&self) -> bool {
        !self.receiver.uses_veth()
    }

    fn maps_memory(&self) -> bool {
        !matches!(
            self.receiver,
            ReceivePath::Ours(_) | ReceivePath::OursOverVeth(_)
        )
    }
}

impl RxCase {
    /// Returns the settings of the kernel's sender. It sends the same bytes again and again, because only the receiver is
    /// measured.
    pub fn sending(&self) -> Sending {
        Sending {
            congestion: self.congestion,
            write_bytes: self.write_bytes,
            source_bytes: self.write_bytes,
            mode: Mode::Copy,
            connections: self.connections,
            offered: self.offered,
            from: None,
        }
    }

    /// Returns the differences of the row from its plain form, as text.
    fn variant(&self) -> String {
        let mut parts = Vec::new();
        if self.cores == Cores::One {
            parts.push("one core for both ends".to_owned());
        }
        if self.congestion != CONGESTION {
            parts.push(format!("{} sender", self.congestion));
        }
        if self.write_bytes != WRITE_BYTES {
            parts.push(format!("{} KiB sends", self.write_bytes >> 10));
        }
        if let Some(Connections { busy, idle }) = self.connections {
            let waiting = match self.waiting {
                Waiting::Epoll => "epoll",
                Waiting::Poller => "poller",
            };
            parts.push(match idle {
                0 if busy == 1 => format!("one connection, {waiting}"),
                0 => format!("{busy} connections, {waiting}"),
                _ => format!("{busy} busy and {idle} idle connections, {waiting}"),
            });
        }
        if let Some(gbits) = self.offered {
            parts.push(format!("{gbits} Gbit/s offered"));
        }
        if self.packets == Packets::Big {
            parts.push("BIG TCP".to_owned());
        }
        if self.steering == Steering::Sender {
            parts.push("RPS to the sender's core".to_owned());
        }
        parts.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_unique_name() {
        let all: Vec<_> = CASES.iter().chain(MANY_CASES).collect();
        for (at, case) in all.iter().enumerate() {
            assert!(
                all[..at].iter().all(|earlier| earlier.name != case.name),
                "{}",
                case.name
            );
        }
    }

    #[test]
    fn a_variant_lists_the_differences() {
        let named = |name| CASES.iter().find(|case| case.name == name).unwrap();
        assert_eq!(named("kernel-copy").variant(), "");
        assert_eq!(
            named("kernel-copy/1core").variant(),
            "one core for both ends"
        );
        assert_eq!(named("ours/64k-sends").variant(), "64 KiB sends");
        assert_eq!(named("readv/bbr").variant(), "bbr sender");
        let steered = MANY_CASES.iter().find(|case| case.name == "ours/8/rps");
        assert_eq!(
            steered.unwrap().variant(),
            "8 connections, poller, RPS to the sender's core"
        );
    }
}
