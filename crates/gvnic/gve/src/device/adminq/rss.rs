//! Commands for RSS.

use gve_defs::adminq::{AdminqStatus, ConfigureRss, QueriedRss, QueryRss, RSS_TOEPLITZ, rss_hash};
use gve_defs::device_option::{RSS_KEY_BYTES, RSS_LUT_ENTRIES};
use steer::{HashTypes, IndirectionTable, RxQueueId, ToeplitzKey};
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::U32;

use super::{answer_within, read_argument};
use crate::device::Gve;
use crate::env::GuestMemory;

/// Hash types of the gVNIC and those of `steer`; here the IPv6 hash does not depend on extension headers.
const TYPES: [(u32, HashTypes); 9] = [
    (rss_hash::IPV4, HashTypes::IPV4),
    (rss_hash::TCPV4, HashTypes::TCP4),
    (rss_hash::IPV6, HashTypes::IPV6),
    (rss_hash::IPV6_EX, HashTypes::IPV6),
    (rss_hash::TCPV6, HashTypes::TCP6),
    (rss_hash::TCPV6_EX, HashTypes::TCP6),
    (rss_hash::UDPV4, HashTypes::UDP4),
    (rss_hash::UDPV6, HashTypes::UDP6),
    (rss_hash::UDPV6_EX, HashTypes::UDP6),
];

/// An indirection table in the guest's format.
type Lut = [U32; RSS_LUT_ENTRIES as usize];

impl Gve {
    /// Sets all given parts, or on an error none.
    pub(super) fn configure_rss(
        &mut self,
        command: &ConfigureRss,
        memory: &dyn GuestMemory,
    ) -> Result<(), AdminqStatus> {
        // A table without an algorithm (0), as the driver of Linux 6.12 sends it, keeps the algorithm.
        if ![0, RSS_TOEPLITZ].contains(&command.hash_alg) {
            return Err(AdminqStatus::UNIMPLEMENTED);
        }
        let mut types = self.rss_types;
        let mut rss = self.steering.rss.clone();
        if command.hash_types.get() != 0 {
            types = command.hash_types.get();
            rss.types = hash_types(types)?;
        }
        match command.hash_key_size.get() {
            0 => {}
            RSS_KEY_BYTES => {
                let key = read_argument(memory, command.hash_key_addr.get())?;
                rss.key = ToeplitzKey(key);
            }
            _ => return Err(AdminqStatus::INVALID_ARGUMENT),
        }
        match command.hash_lut_size.get() {
            0 => {}
            RSS_LUT_ENTRIES => {
                let lut: Lut = read_argument(memory, command.hash_lut_addr.get())?;
                rss.table = table(&lut, self.config.queue_pairs)?;
            }
            _ => return Err(AdminqStatus::INVALID_ARGUMENT),
        }
        self.steering.rss = rss;
        self.rss_types = types;
        Ok(())
    }

    pub(super) fn query_rss(
        &self,
        command: &QueryRss,
        memory: &dyn GuestMemory,
    ) -> Result<(), AdminqStatus> {
        let rss = &self.steering.rss;
        let mut lut: Lut = [0.into(); RSS_LUT_ENTRIES as usize];
        for (entry, queue) in lut.iter_mut().zip(rss.table.entries()) {
            *entry = u32::from(queue.0).into();
        }
        let total = size_of::<QueriedRss>() + rss.key.0.len() + size_of::<Lut>();
        let header = QueriedRss {
            // 560.
            total_length: (total as u32).into(),
            hash_types: self.rss_types.into(),
            hash_alg: RSS_TOEPLITZ,
            reserved: 0,
        };
        let bytes = [header.as_bytes(), &rss.key.0, lut.as_bytes()].concat();
        let (addr, room) = (
            command.rss_descriptor_addr.get(),
            command.available_length.get(),
        );
        answer_within(memory, addr, room, &bytes)
    }
}

fn hash_types(bits: u16) -> Result<HashTypes, AdminqStatus> {
    let mut types = HashTypes::empty();
    let mut rest = bits;
    for (bit, hashed) in TYPES {
        if bits & 1 << bit != 0 {
            types |= hashed;
            rest &= !(1 << bit);
        }
    }
    match rest {
        0 => Ok(types),
        _ => Err(AdminqStatus::INVALID_ARGUMENT),
    }
}

fn table(lut: &Lut, queues: u16) -> Result<IndirectionTable, AdminqStatus> {
    let queue = |entry: &U32| u16::try_from(entry.get()).map(RxQueueId);
    let entries: Result<Vec<_>, _> = lut.iter().map(queue).collect();
    let entries = entries.map_err(|_| AdminqStatus::INVALID_ARGUMENT)?;
    IndirectionTable::new(&entries, queues).map_err(|_| AdminqStatus::INVALID_ARGUMENT)
}
