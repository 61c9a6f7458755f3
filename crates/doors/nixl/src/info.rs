//! What agents tell each other before they are connected: the connection information of an agent, and the public data of a region. NIXL
//! carries both as bytes, by whatever means its program has.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use zerocopy::byteorder::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::address::Address;
use crate::record::VERSION;
use crate::settings::Way;
use crate::status::{Failure, Status};

const AGENT: [u8; 6] = *b"dvmAGT";
const REGION: [u8; 6] = *b"dvmREG";

/// Most addresses of an agent.
const MAX_ADDRESSES: usize = 64;

/// How an agent is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AgentInfo {
    /// Random: a process that was restarted on the same port is another agent.
    pub(crate) cookie: u64,
    /// Of the machine, since it was started: peers on it may use its loopback address.
    pub(crate) boot: [u8; 16],
    /// Where the agent has its cookie in the memory of its process; 0: it takes no connections by UNIX socket.
    pub(crate) token: u64,
    pub(crate) port: u16,
    /// For connections for payload.
    pub(crate) payload_port: u16,
    pub(crate) addresses: Vec<IpAddr>,
}

/// Whose memory a region is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MemoryKind {
    /// The process's: others on its machine may be able to copy it.
    Host,
    Gpu,
}

/// What peers know of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RegionInfo {
    pub(crate) key: u64,
    /// Address in the process of the region, from which descriptors count.
    pub(crate) address: u64,
    pub(crate) len: u64,
    pub(crate) kind: MemoryKind,
}

/// What both begin with.
#[derive(FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHead {
    magic: [u8; 6],
    version: U16,
}

#[derive(FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct RawAgent {
    magic: [u8; 6],
    version: U16,
    cookie: U64,
    boot: [u8; 16],
    token: U64,
    port: U16,
    payload_port: U16,
}

#[derive(FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct RawRegion {
    magic: [u8; 6],
    version: U16,
    key: U64,
    address: U64,
    len: U64,
    is_gpu: U64,
}

/// Returns a random number.
pub(crate) fn random() -> Result<u64, Failure> {
    let mut bytes = [0; 8];
    let got = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    got.map_err(|error| Failure::system("getrandom", error))?;
    Ok(u64::from_le_bytes(bytes))
}

/// Returns the number of this machine's start, if `/proc` has it.
pub(crate) fn boot() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let hex: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&hex, 16)
        .unwrap_or_default()
        .to_le_bytes()
}

fn check(magic: [u8; 6], expected: [u8; 6], version: u16, what: &str) -> Result<(), Failure> {
    if magic != expected {
        let text = format!(
            "the bytes are not the {what} of this backend; pass on what the peer's agent has returned, unchanged"
        );
        return Err(Failure::new(Status::InvalidParam, text));
    }
    if version != VERSION {
        let text = format!(
            "the {what} have version {version} of the protocol, and this side has {VERSION}; use the same release on both sides"
        );
        return Err(Failure::new(Status::Mismatch, text));
    }
    Ok(())
}

fn short(what: &str) -> Failure {
    let text = format!(
        "the {what} of the peer are cut off or too long; pass on what its agent has returned, unchanged"
    );
    Failure::new(Status::InvalidParam, text)
}

impl AgentInfo {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let raw = RawAgent {
            magic: AGENT,
            version: VERSION.into(),
            cookie: self.cookie.into(),
            boot: self.boot,
            token: self.token.into(),
            port: self.port.into(),
            payload_port: self.payload_port.into(),
        };
        let mut bytes = raw.as_bytes().to_vec();
        for address in self.addresses.iter().take(MAX_ADDRESSES) {
            let ip = match address {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => *ip,
            };
            bytes.extend_from_slice(&ip.octets());
        }
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, Failure> {
        const WHAT: &str = "connection information";
        let (raw, rest) = RawAgent::ref_from_prefix(bytes).map_err(|_| short(WHAT))?;
        check(raw.magic, AGENT, raw.version.get(), WHAT)?;
        let (addresses, odd) = rest.as_chunks::<16>();
        if !odd.is_empty() || !(1..=MAX_ADDRESSES).contains(&addresses.len()) {
            return Err(short(WHAT));
        }
        let address = |octets: &[u8; 16]| Ipv6Addr::from(*octets).to_canonical();
        Ok(Self {
            cookie: raw.cookie.get(),
            boot: raw.boot,
            token: raw.token.get(),
            port: raw.port.get(),
            payload_port: raw.payload_port.get(),
            addresses: addresses.iter().map(address).collect(),
        })
    }

    /// Returns where to connect, in order: on the same machine its UNIX socket first, then its loopback address; from another machine neither.
    pub(crate) fn targets(&self, boot: [u8; 16], way: &Way) -> Vec<Address> {
        let is_here = self.boot == boot;
        let unix = is_here && self.token != 0 && way.is_near();
        let unix = unix.then_some(Address::Unix(self.cookie));
        let (loopback, others): (Vec<&IpAddr>, Vec<_>) =
            self.addresses.iter().partition(|ip| ip.is_loopback());
        let has_loopback = is_here && way.has_loopback();
        let loopback = loopback.into_iter().filter(|_| has_loopback);
        let tcp = loopback.chain(others).filter(|_| *way != Way::Unix);
        let tcp = tcp.map(|ip| Address::Tcp(SocketAddr::new(*ip, self.port)));
        unix.into_iter().chain(tcp).collect()
    }
}

impl RegionInfo {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let raw = RawRegion {
            magic: REGION,
            version: VERSION.into(),
            key: self.key.into(),
            address: self.address.into(),
            len: self.len.into(),
            is_gpu: u64::from(self.kind == MemoryKind::Gpu).into(),
        };
        raw.as_bytes().to_vec()
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, Failure> {
        const WHAT: &str = "public data of a region";
        let (head, _) = RawHead::ref_from_prefix(bytes).map_err(|_| short(WHAT))?;
        check(head.magic, REGION, head.version.get(), WHAT)?;
        let raw = RawRegion::ref_from_bytes(bytes).map_err(|_| short(WHAT))?;
        let it = Self {
            key: raw.key.get(),
            address: raw.address.get(),
            len: raw.len.get(),
            kind: match raw.is_gpu.get() {
                0 => MemoryKind::Host,
                _ => MemoryKind::Gpu,
            },
        };
        it.address
            .checked_add(it.len)
            .map(|_| it)
            .ok_or_else(|| short(WHAT))
    }

    /// Returns the offset of an address range of the peer's process, if all of it is in the region.
    pub(crate) fn offset_of(&self, address: u64, len: u64) -> Option<u64> {
        let offset = address.checked_sub(self.address)?;
        (offset.checked_add(len)? <= self.len).then_some(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agent(addresses: &[&str]) -> AgentInfo {
        let addresses = addresses.iter().map(|ip| ip.parse().unwrap()).collect();
        AgentInfo {
            cookie: 5,
            boot: [3; 16],
            token: 4096,
            port: 4000,
            payload_port: 4001,
            addresses,
        }
    }

    #[test]
    fn infos_survive_as_bytes() {
        let it = agent(&["10.0.0.1", "fd00::1", "127.0.0.1"]);
        assert_eq!(AgentInfo::from_bytes(&it.to_bytes()).unwrap(), it);
        let region = RegionInfo {
            key: u64::MAX,
            address: 4096,
            len: 1 << 40,
            kind: MemoryKind::Gpu,
        };
        assert_eq!(RegionInfo::from_bytes(&region.to_bytes()).unwrap(), region);
    }

    #[test]
    fn other_bytes_are_refused() {
        let good = agent(&["10.0.0.1"]).to_bytes();
        for bad in [
            &good[..0],
            &good[..20],
            &good[..good.len() - 1],
            b"UCX worker address of some length, which is longer",
        ] {
            assert_eq!(
                AgentInfo::from_bytes(bad).unwrap_err().status,
                Status::InvalidParam
            );
        }
        let mut other = good.clone();
        other[6] = 9;
        assert_eq!(
            AgentInfo::from_bytes(&other).unwrap_err().status,
            Status::Mismatch
        );
        let wrapped = RegionInfo {
            key: 1,
            address: u64::MAX,
            len: 2,
            kind: MemoryKind::Host,
        };
        assert!(RegionInfo::from_bytes(&wrapped.to_bytes()).is_err());
        assert!(AgentInfo::from_bytes(&agent(&[]).to_bytes()).is_err());
    }

    #[test]
    fn loopback_is_first_on_the_same_machine_and_unused_from_another() {
        let it = agent(&["10.0.0.1", "127.0.0.1"]);
        let tcp = |text: &str| Address::Tcp(text.parse().unwrap());
        let all = [
            Address::Unix(5),
            tcp("127.0.0.1:4000"),
            tcp("10.0.0.1:4000"),
        ];
        assert_eq!(it.targets([3; 16], &Way::Auto), all);
        assert_eq!(it.targets([3; 16], &Way::Sockets), all[1..]);
        assert_eq!(it.targets([3; 16], &Way::Unix), all[..1]);
        assert_eq!(it.targets([4; 16], &Way::Auto), all[2..]);
        assert_eq!(it.targets([4; 16], &Way::Unix), []);
    }

    #[test]
    fn ranges_of_a_region_are_checked() {
        let it = RegionInfo {
            key: 1,
            address: 100,
            len: 10,
            kind: MemoryKind::Host,
        };
        assert_eq!(it.offset_of(104, 6), Some(4));
        for (address, len) in [(99, 1), (104, 7), (u64::MAX, 1), (105, u64::MAX)] {
            assert_eq!(it.offset_of(address, len), None);
        }
    }
}
