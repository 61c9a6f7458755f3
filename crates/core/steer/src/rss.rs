//! Receive side scaling: a Toeplitz hash and a table of queues.

use wire::{Network, RxHeaders, Transport};

use crate::ids::RxQueueId;

/// Maximum number of entries of an [`IndirectionTable`].
pub const MAX_INDIRECTION_ENTRIES: usize = 512;

/// Bytes hashed of an IPv6 packet with ports, the longest input.
const MAX_INPUT: usize = 36;

/// Secret key of the hash.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ToeplitzKey(pub [u8; 40]);

impl ToeplitzKey {
    /// The key of Microsoft's RSS verification suite. It is public, so a peer could choose its queue: for
    /// tests and comparisons only.
    pub const MICROSOFT: Self = Self([
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ]);

    /// Returns the Toeplitz hash of `input`; ignores bytes after the first 36, the most that the key can hash.
    #[inline]
    pub fn hash(&self, input: &[u8]) -> u32 {
        let (first, later) = self.0.split_at(8);
        let mut window = first
            .iter()
            .fold(0u64, |window, byte| window << 8 | u64::from(*byte));
        let mut later = later.iter();
        let mut hash = 0;
        for byte in input.iter().take(MAX_INPUT) {
            for bit in 0..8 {
                // All ones if the bit of the input is set: no branch on bytes from the peer.
                let mask = 0u32.wrapping_sub(u32::from(byte >> (7 - bit) & 1));
                hash ^= (window >> (32 - bit)) as u32 & mask;
            }
            window = window << 8 | u64::from(later.next().copied().unwrap_or(0));
        }
        hash
    }
}

/// Omits the key, because a peer that knows it can choose its queue.
impl std::fmt::Debug for ToeplitzKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ToeplitzKey(..)")
    }
}

bitflags::bitflags! {
    /// Kinds of packets that are hashed, and the hashed fields.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct HashTypes: u8 {
        /// Addresses of IPv4 packets whose ports are not hashed.
        const IPV4 = 1 << 0;
        /// Addresses and ports of TCP over IPv4.
        const TCP4 = 1 << 1;
        /// Addresses and ports of UDP over IPv4.
        const UDP4 = 1 << 2;
        /// Addresses of IPv6 packets whose ports are not hashed.
        const IPV6 = 1 << 3;
        /// Addresses and ports of TCP over IPv6.
        const TCP6 = 1 << 4;
        /// Addresses and ports of UDP over IPv6.
        const UDP6 = 1 << 5;
    }
}

/// Table of queues, indexed by the low bits of the hash; its length is a power of two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndirectionTable {
    entries: Box<[RxQueueId]>,
    /// The queue, if all entries name the same one: then no hash is needed.
    only: Option<RxQueueId>,
}

/// Reason to refuse a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IndirectionTableError {
    /// The number of entries is not a power of two from 1 to [`MAX_INDIRECTION_ENTRIES`].
    #[error(
        "{entries} indirection entries: must be a power of two, at most {MAX_INDIRECTION_ENTRIES}"
    )]
    BadSize {
        /// Entries given.
        entries: usize,
    },
    /// An entry names a queue that does not exist.
    #[error("indirection entry {entry} names queue {queue} of {queues}")]
    NoSuchQueue {
        /// The first such entry.
        entry: usize,
        /// The queue it names.
        queue: RxQueueId,
        /// Queues there are.
        queues: u16,
    },
}

impl IndirectionTable {
    /// Returns a table of these entries for a NIC with `queues` RX queues.
    ///
    /// # Errors
    /// [`IndirectionTableError`].
    pub fn new(entries: &[RxQueueId], queues: u16) -> Result<Self, IndirectionTableError> {
        let size = entries.len();
        if !size.is_power_of_two() || size > MAX_INDIRECTION_ENTRIES {
            return Err(IndirectionTableError::BadSize { entries: size });
        }
        let first = entries[0];
        let only = entries.iter().all(|queue| *queue == first).then_some(first);
        let table = Self {
            entries: entries.into(),
            only,
        };
        table.check(queues)?;
        Ok(table)
    }

    /// Returns a table of `entries` entries that names queues 0 to `queues - 1` in turn (linux
    /// include/linux/ethtool.h `ethtool_rxfh_indir_default`).
    ///
    /// # Errors
    /// [`IndirectionTableError`]; also if `queues` is 0.
    pub fn round_robin(entries: usize, queues: u16) -> Result<Self, IndirectionTableError> {
        if entries > MAX_INDIRECTION_ENTRIES {
            return Err(IndirectionTableError::BadSize { entries });
        }
        let turn = (0..queues.max(1)).cycle().map(RxQueueId);
        Self::new(&turn.take(entries).collect::<Vec<_>>(), queues)
    }

    /// Checks that every entry names one of the first `queues` queues.
    ///
    /// # Errors
    /// [`IndirectionTableError::NoSuchQueue`].
    pub fn check(&self, queues: u16) -> Result<(), IndirectionTableError> {
        match self.entries.iter().position(|queue| queue.0 >= queues) {
            None => Ok(()),
            Some(entry) => Err(IndirectionTableError::NoSuchQueue {
                entry,
                queue: self.entries[entry],
                queues,
            }),
        }
    }

    /// Returns the queue for a hash.
    #[inline]
    pub fn queue(&self, hash: u32) -> RxQueueId {
        self.entries[hash as usize & (self.entries.len() - 1)]
    }

    /// Returns the entries.
    pub fn entries(&self) -> &[RxQueueId] {
        &self.entries
    }
}

/// Receive side scaling of one NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rss {
    /// The key.
    pub key: ToeplitzKey,
    /// The table.
    pub table: IndirectionTable,
    /// Kinds of packets that are hashed.
    pub types: HashTypes,
}

impl Rss {
    /// Returns RSS with all hash types.
    pub const fn new(key: ToeplitzKey, table: IndirectionTable) -> Self {
        Self {
            key,
            table,
            types: HashTypes::all(),
        }
    }

    /// Returns the hash of a packet: over addresses and ports if `types` says so and the packet has
    /// ports, else over the addresses if `types` says so, else `None`.
    ///
    /// All fragments are hashed over the addresses only, because only the first has ports.
    #[inline]
    pub fn hash(&self, headers: &RxHeaders) -> Option<u32> {
        let mut input = Input::default();
        match self.covers(headers)? {
            Covered::Addresses => input.put_addresses(headers),
            Covered::AddressesAndPorts => {
                input.put_addresses(headers);
                input.put_ports(headers);
            }
        }
        Some(self.key.hash(&input.bytes[..input.len]))
    }

    /// Returns the queue that the table names for a packet, `None` if it has no hash.
    #[inline]
    pub fn queue(&self, headers: &RxHeaders) -> Option<RxQueueId> {
        match self.table.only {
            Some(queue) => self.covers(headers).map(|_| queue),
            None => self.hash(headers).map(|hash| self.table.queue(hash)),
        }
    }

    #[inline]
    fn covers(&self, headers: &RxHeaders) -> Option<Covered> {
        let (with_ports, without) = match (&headers.network, &headers.transport) {
            (Network::Ipv4(_), Transport::Tcp(_)) => (HashTypes::TCP4, HashTypes::IPV4),
            (Network::Ipv4(_), Transport::Udp(_)) => (HashTypes::UDP4, HashTypes::IPV4),
            (Network::Ipv4(_), _) => (HashTypes::empty(), HashTypes::IPV4),
            (Network::Ipv6(_), Transport::Tcp(_)) => (HashTypes::TCP6, HashTypes::IPV6),
            (Network::Ipv6(_), Transport::Udp(_)) => (HashTypes::UDP6, HashTypes::IPV6),
            (Network::Ipv6(_), _) => (HashTypes::empty(), HashTypes::IPV6),
            (Network::Arp | Network::Other, _) => return None,
        };
        if self.types.intersects(with_ports) {
            Some(Covered::AddressesAndPorts)
        } else {
            self.types.intersects(without).then_some(Covered::Addresses)
        }
    }
}

/// Fields of one packet that are hashed.
enum Covered {
    Addresses,
    AddressesAndPorts,
}

/// The hashed bytes, in network byte order.
struct Input {
    bytes: [u8; MAX_INPUT],
    len: usize,
}

impl Default for Input {
    #[inline]
    fn default() -> Self {
        Self {
            bytes: [0; MAX_INPUT],
            len: 0,
        }
    }
}

impl Input {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    #[inline]
    fn put_addresses(&mut self, headers: &RxHeaders) {
        match &headers.network {
            Network::Ipv4(ip) => {
                self.put(&ip.src.octets());
                self.put(&ip.dst.octets());
            }
            Network::Ipv6(ip) => {
                self.put(&ip.src.octets());
                self.put(&ip.dst.octets());
            }
            Network::Arp | Network::Other => {}
        }
    }

    #[inline]
    fn put_ports(&mut self, headers: &RxHeaders) {
        if let Some((src, dst)) = headers.ports() {
            self.put(&src.to_be_bytes());
            self.put(&dst.to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests;
