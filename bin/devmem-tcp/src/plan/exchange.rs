//! A run of `demo --exchange`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use devmem_tcp::Impairment;
use pattern::floats::FLOAT_BYTES;
use tool::memory::MemoryKind;
use tool::output::Failure;
use tool::parse::{OutputArgs, check_mtu, parse_impairment, to_usize};
use tool::size::Size;

use crate::args;

/// Default of `--bytes`.
const BYTES: Size = Size(64 << 20);
/// Default of `--mtu`: cables between the processes carry single packets, so long ones cost less.
const MTU: u16 = 9000;

/// What joins two neighbours of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingWires {
    /// One socket: a rank listens, the next one connects, and both share memory.
    Shared,
    /// A process between the sockets of both, which passes frames on.
    Cables,
}

/// A run of `demo --exchange`.
#[derive(Clone, Debug)]
pub struct ExchangePlan {
    /// Length of the vector.
    pub floats: usize,
    /// Kind of memory of the vectors; `None`: that of a GPU that adds, if there is one.
    pub memory: Option<MemoryKind>,
    /// Use IPv6.
    pub ipv6: bool,
    /// Largest IP packet.
    pub mtu: u16,
    /// Impairments of each wire, in both directions.
    pub impairment: Impairment,
    /// How to print the report.
    pub form: OutputArgs,
}

impl ExchangePlan {
    /// Number of processes.
    pub const RANKS: u16 = 4;

    /// Returns what joins neighbours: a cable where the wires are impaired, because it works on single frames.
    pub fn wires(&self) -> RingWires {
        match self.impairment.is_none() {
            true => RingWires::Shared,
            false => RingWires::Cables,
        }
    }

    /// Validates the command line.
    ///
    /// # Errors
    ///
    /// A usage error that names the option.
    pub fn new(args: &args::Demo) -> Result<Self, Failure> {
        let bytes = args.bytes.unwrap_or(BYTES);
        let least = FLOAT_BYTES * usize::from(Self::RANKS);
        let len = to_usize("--bytes", bytes)?;
        if !(least..=4 << 30).contains(&len) || !len.is_multiple_of(FLOAT_BYTES) {
            return Err(Failure::usage(format!(
                "--bytes {bytes}: with --exchange a multiple of 4 bytes from {least} bytes to 4 GiB"
            )));
        }
        let mtu = args.nic.mtu.unwrap_or(MTU);
        let network: IpAddr = match args.ipv6 {
            true => Ipv6Addr::UNSPECIFIED.into(),
            false => Ipv4Addr::UNSPECIFIED.into(),
        };
        check_mtu(mtu, network)?;
        Ok(Self {
            floats: len / FLOAT_BYTES,
            memory: args.nic.memory,
            ipv6: args.ipv6,
            mtu,
            impairment: parse_impairment(&args.nic.impair)?,
            form: args.output,
        })
    }
}
