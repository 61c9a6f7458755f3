//! What a controller and a namespace are (Base, "Identify Controller"; NVM Command Set, "Identify Namespace").

use crate::{field_of, text_of};

/// Length of every page.
pub const PAGE_BYTES: usize = 4096;
/// Version of the pages that are written here: 1.3 has no command sets but NVM.
pub const VERSION: u32 = 0x0001_0300;
/// Length of a submission queue entry, which a capsule begins with.
const SQE_BYTES: u64 = 64;

/// Offsets in the page of a controller.
const SERIAL_AT: usize = 4;
const MODEL_AT: usize = 24;
const MDTS_AT: usize = 77;
const CONTROLLER_ID_AT: usize = 78;
const KEEP_ALIVE_AT: usize = 320;
const MAX_COMMANDS_AT: usize = 514;
const NAMESPACES_AT: usize = 516;
const ONCS_AT: usize = 520;
const VOLATILE_CACHE_AT: usize = 525;
const SGLS_AT: usize = 536;
const NQN_AT: usize = 768;
const CAPSULE_AT: usize = 1792;
const CAPSULE_OFFSET_AT: usize = 1800;
/// Bits of the optional commands.
const HAS_DATASET_MANAGEMENT: u16 = 1 << 2;
const HAS_WRITE_ZEROES: u16 = 1 << 3;

/// Offsets in the page of a namespace.
const SIZE_AT: usize = 0;
const CAPACITY_AT: usize = 8;
const FORMATS_AT: usize = 25;
const FORMAT_AT: usize = 26;
const PROTECTION_AT: usize = 29;
const ATTRIBUTES_AT: usize = 99;
const FORMAT_TABLE_AT: usize = 128;

/// A controller, as far as a host needs to know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Controller {
    /// Serial number.
    pub serial: String,
    /// Name of the product.
    pub model: String,
    /// Its number in the subsystem.
    pub id: u16,
    /// Longest transfer of a command, as a power of two of pages; 0 for no limit (MDTS).
    pub transfer_log2: u8,
    /// Length of a command with its data in a capsule of an I/O queue, in units of 16 bytes (IOCCSZ).
    pub capsule_units: u32,
    /// Where data begin in a capsule, in units of 16 bytes (ICDOFF).
    pub capsule_offset: u16,
    /// Whether ranges can be deallocated.
    pub deallocates: bool,
    /// Whether zeros can be written without sending them.
    pub writes_zeroes: bool,
    /// Whether writes may be lost until a flush.
    pub has_volatile_cache: bool,
    /// Most commands in flight that it wants; 0 for no limit.
    pub max_commands: u16,
    /// Name of its subsystem.
    pub subsystem_nqn: String,
}

impl Controller {
    /// Parses the page; `None` if it is too short.
    pub fn parse(page: &[u8]) -> Option<Self> {
        let page = page.first_chunk::<PAGE_BYTES>()?;
        let optional = u16_at(page, ONCS_AT)?;
        Some(Self {
            serial: text_of(&page[SERIAL_AT..MODEL_AT]),
            model: text_of(&page[MODEL_AT..64]),
            id: u16_at(page, CONTROLLER_ID_AT)?,
            transfer_log2: page[MDTS_AT],
            capsule_units: u32_at(page, CAPSULE_AT)?,
            capsule_offset: u16_at(page, CAPSULE_OFFSET_AT)?,
            deallocates: optional & HAS_DATASET_MANAGEMENT != 0,
            writes_zeroes: optional & HAS_WRITE_ZEROES != 0,
            has_volatile_cache: page[VOLATILE_CACHE_AT] & 1 != 0,
            max_commands: u16_at(page, MAX_COMMANDS_AT)?,
            subsystem_nqn: text_of(&page[NQN_AT..NQN_AT + 256]),
        })
    }

    /// Returns the page.
    pub fn to_page(&self) -> Vec<u8> {
        let mut page = vec![0; PAGE_BYTES];
        page[SERIAL_AT..MODEL_AT].copy_from_slice(&field_of::<20>(&self.serial, b' '));
        page[MODEL_AT..64].copy_from_slice(&field_of::<40>(&self.model, b' '));
        page[MDTS_AT] = self.transfer_log2;
        put(&mut page, CONTROLLER_ID_AT, &self.id.to_le_bytes());
        // An I/O controller, keep alive in steps of 100 ms.
        put(&mut page, 80, &VERSION.to_le_bytes());
        page[111] = 1;
        put(&mut page, KEEP_ALIVE_AT, &1u16.to_le_bytes());
        page[512] = 0x66;
        page[513] = 0x44;
        put(&mut page, MAX_COMMANDS_AT, &self.max_commands.to_le_bytes());
        put(&mut page, NAMESPACES_AT, &1024u32.to_le_bytes());
        let mut optional = 0;
        if self.deallocates {
            optional |= HAS_DATASET_MANAGEMENT;
        }
        if self.writes_zeroes {
            optional |= HAS_WRITE_ZEROES;
        }
        put(&mut page, ONCS_AT, &optional.to_le_bytes());
        page[VOLATILE_CACHE_AT] = self.has_volatile_cache.into();
        // SGLs, keyed ones aside, with an offset in the capsule and data blocks of the transport.
        put(&mut page, SGLS_AT, &(1u32 | 1 << 20).to_le_bytes());
        put(&mut page, NQN_AT, &field_of::<256>(&self.subsystem_nqn, 0));
        put(&mut page, CAPSULE_AT, &self.capsule_units.to_le_bytes());
        put(&mut page, CAPSULE_AT + 4, &1u32.to_le_bytes());
        put(
            &mut page,
            CAPSULE_OFFSET_AT,
            &self.capsule_offset.to_le_bytes(),
        );
        page
    }

    /// Returns the longest transfer of a command, in bytes, for a controller with pages of this size.
    pub fn transfer_bytes(&self, page_bytes: u64) -> u64 {
        match u32::from(self.transfer_log2) {
            0 => u64::MAX,
            log2 => page_bytes
                .checked_shl(log2)
                .unwrap_or(u64::MAX)
                .max(page_bytes),
        }
    }

    /// Returns the most data of a write in its capsule.
    pub fn capsule_data_bytes(&self) -> u64 {
        match self.capsule_offset {
            0 => (u64::from(self.capsule_units) * 16).saturating_sub(SQE_BYTES),
            _ => 0,
        }
    }
}

/// A namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Number of blocks.
    pub blocks: u64,
    /// Size of a block, as a power of two.
    pub block_log2: u8,
    /// Bytes of metadata of each block.
    pub metadata_bytes: u16,
    /// Whether blocks have protection information.
    pub is_protected: bool,
    /// Whether writes are refused now.
    pub is_read_only: bool,
}

/// Smallest and largest block, as powers of two, that a namespace may have.
pub const BLOCK_LOG2: std::ops::RangeInclusive<u8> = 9..=16;

impl Namespace {
    /// Parses the page; `None` if it is too short.
    pub fn parse(page: &[u8]) -> Option<Self> {
        let page = page.first_chunk::<PAGE_BYTES>()?;
        let format = page[FORMAT_AT];
        // Bits 5 and 6 are the upper ones of the index.
        let index = usize::from(format & 0xf | (format >> 5 & 0x3) << 4);
        let at = FORMAT_TABLE_AT + 4 * index;
        Some(Self {
            blocks: u64_at(page, SIZE_AT)?,
            block_log2: page[at + 2],
            metadata_bytes: u16_at(page, at)?,
            is_protected: page[PROTECTION_AT] & 0x7 != 0,
            is_read_only: page[ATTRIBUTES_AT] & 1 != 0,
        })
    }

    /// Returns the page.
    pub fn to_page(&self) -> Vec<u8> {
        let mut page = vec![0; PAGE_BYTES];
        for at in [SIZE_AT, CAPACITY_AT, CAPACITY_AT + 8] {
            put(&mut page, at, &self.blocks.to_le_bytes());
        }
        // One format.
        page[FORMATS_AT] = 0;
        page[PROTECTION_AT] = self.is_protected.into();
        page[ATTRIBUTES_AT] = self.is_read_only.into();
        put(
            &mut page,
            FORMAT_TABLE_AT,
            &self.metadata_bytes.to_le_bytes(),
        );
        page[FORMAT_TABLE_AT + 2] = self.block_log2;
        page
    }

    /// Returns the size of a block, in bytes; `None` if a block cannot have it.
    pub fn block_bytes(&self) -> Option<u64> {
        BLOCK_LOG2
            .contains(&self.block_log2)
            .then(|| 1 << self.block_log2)
    }

    /// Returns the size in bytes; `None` if no namespace is so large.
    pub fn bytes(&self) -> Option<u64> {
        self.blocks.checked_mul(self.block_bytes()?)
    }
}

/// Returns the namespaces in a list of active ones, in their order.
pub fn active_namespaces(page: &[u8]) -> Vec<u32> {
    let entries = page.chunks_exact(4);
    let ids = entries.map(|entry| u32_at(entry, 0).unwrap_or(0));
    ids.take_while(|id| *id != 0).collect()
}

/// Returns a list of active namespaces.
pub fn active_page(namespaces: impl IntoIterator<Item = u32>) -> Vec<u8> {
    let mut page = vec![0; PAGE_BYTES];
    for (entry, id) in page.chunks_exact_mut(4).zip(namespaces) {
        entry.copy_from_slice(&id.to_le_bytes());
    }
    page
}

/// Returns the list of identifiers of a namespace that has a UUID alone.
pub fn descriptor_page(uuid: [u8; 16]) -> Vec<u8> {
    let mut page = vec![0; PAGE_BYTES];
    // Type and length (Base, "Namespace Identification Descriptor").
    page[..2].copy_from_slice(&[3, 16]);
    put(&mut page, 4, &uuid);
    page
}

fn u16_at(page: &[u8], at: usize) -> Option<u16> {
    let bytes = page.get(at..)?.first_chunk()?;
    Some(u16::from_le_bytes(*bytes))
}

fn u32_at(page: &[u8], at: usize) -> Option<u32> {
    let bytes = page.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}

fn u64_at(page: &[u8], at: usize) -> Option<u64> {
    let bytes = page.get(at..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}

fn put(page: &mut [u8], at: usize, bytes: &[u8]) {
    page[at..at + bytes.len()].copy_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn controller() -> Controller {
        Controller {
            serial: "42".to_owned(),
            model: "target".to_owned(),
            id: 3,
            transfer_log2: 5,
            capsule_units: 4 + 1024,
            capsule_offset: 0,
            deallocates: true,
            writes_zeroes: true,
            has_volatile_cache: true,
            max_commands: 128,
            subsystem_nqn: "nqn.2014-08.org.example:disk".to_owned(),
        }
    }

    #[test]
    fn a_controller_is_the_one_that_was_written_and_its_limits_follow() {
        let controller = controller();
        let page = controller.to_page();
        assert_eq!((page[77], page[1792], page[1793]), (5, 4, 4));
        assert_eq!(Controller::parse(&page), Some(controller.clone()));
        assert_eq!(Controller::parse(&page[1..]), None);
        assert_eq!(controller.transfer_bytes(4096), 128 << 10);
        assert_eq!(controller.capsule_data_bytes(), 16 << 10);
        let other = Controller {
            transfer_log2: 0,
            capsule_offset: 1,
            ..controller.clone()
        };
        assert_eq!(other.transfer_bytes(4096), u64::MAX);
        assert_eq!(other.capsule_data_bytes(), 0);
        let odd = Controller {
            transfer_log2: 255,
            capsule_units: 1,
            ..controller
        };
        assert_eq!(
            (odd.transfer_bytes(4096), odd.capsule_data_bytes()),
            (u64::MAX, 0)
        );
        let huge = Controller {
            transfer_log2: 60,
            ..odd
        };
        assert!(huge.transfer_bytes(4096) >= 4096);
    }

    #[test]
    fn the_fields_of_a_controller_are_where_the_specification_has_them() {
        let mut page = vec![0; PAGE_BYTES];
        let nqn = &b"nqn.2014-08.org.example:disk"[..];
        for (at, bytes) in [
            (4, &b"42                  "[..]),
            (24, b"target                                  "),
            (77, &[5]),
            (78, &[3, 0]),
            (514, &[128, 0]),
            (520, &[0x0c, 0]),
            (525, &[1]),
            (768, nqn),
            (1792, &[4, 4, 0, 0]),
            (1800, &[0, 0]),
        ] {
            put(&mut page, at, bytes);
        }
        assert_eq!(Controller::parse(&page), Some(controller()));
        for (optional, expected) in [(0x04, (true, false)), (0x08, (false, true))] {
            page[520] = optional;
            let parsed = Controller::parse(&page).unwrap();
            assert_eq!((parsed.deallocates, parsed.writes_zeroes), expected);
        }
        page[1800] = 1;
        assert_eq!(Controller::parse(&page).unwrap().capsule_data_bytes(), 0);
        // SGLS: SGLs, an offset in the capsule, data blocks of the transport.
        assert_eq!(controller().to_page()[536..540], [1, 0, 0x10, 0]);
    }

    #[test]
    fn the_fields_of_a_namespace_are_where_the_specification_has_them() {
        let mut page = vec![0; PAGE_BYTES];
        put(&mut page, 0, &1000u64.to_le_bytes());
        // Format 1 of the table, and format 17, whose upper bits are others in FLBAS.
        put(&mut page, 132, &[8, 0, 9, 0]);
        put(&mut page, 128 + 4 * 17, &[0, 0, 12, 0]);
        let expected = |block_log2, metadata_bytes| Namespace {
            blocks: 1000,
            block_log2,
            metadata_bytes,
            is_protected: false,
            is_read_only: false,
        };
        for (flbas, expected) in [(0x11, expected(9, 8)), (0x21, expected(12, 0))] {
            page[26] = flbas;
            assert_eq!(Namespace::parse(&page), Some(expected));
        }
        page[29] = 0x09;
        assert!(Namespace::parse(&page).unwrap().is_protected);
        page[29] = 0x08;
        page[99] = 1;
        let parsed = Namespace::parse(&page).unwrap();
        assert_eq!((parsed.is_protected, parsed.is_read_only), (false, true));
    }

    #[test]
    fn a_namespace_is_the_one_that_was_written_and_an_odd_block_has_no_size() {
        for block_log2 in [9, 12] {
            let namespace = Namespace {
                blocks: 1000,
                block_log2,
                metadata_bytes: 0,
                is_protected: false,
                is_read_only: block_log2 == 12,
            };
            assert_eq!(Namespace::parse(&namespace.to_page()), Some(namespace));
            assert_eq!(namespace.bytes(), Some(1000 << block_log2));
            for block_log2 in [0, 8, 17, 64, 255] {
                let odd = Namespace {
                    block_log2,
                    ..namespace
                };
                assert_eq!((odd.block_bytes(), odd.bytes()), (None, None));
            }
            let huge = Namespace {
                blocks: u64::MAX,
                ..namespace
            };
            assert_eq!(huge.bytes(), None);
        }
    }

    #[test]
    fn any_index_of_a_format_is_inside_of_the_page() {
        for format in 0..=u8::MAX {
            let mut page = vec![0xff; PAGE_BYTES];
            page[26] = format;
            let namespace = Namespace::parse(&page).unwrap();
            assert_eq!(namespace.block_log2, 0xff);
        }
    }

    #[test]
    fn the_identifiers_of_a_namespace_are_its_uuid() {
        let page = descriptor_page([7; 16]);
        assert_eq!(page[..4], [3, 16, 0, 0]);
        assert_eq!((&page[4..20], page[20]), (&[7; 16][..], 0));
    }

    #[test]
    fn a_list_of_namespaces_ends_at_the_first_zero() {
        assert_eq!(active_namespaces(&active_page([1, 7, 9])), [1, 7, 9]);
        assert_eq!(active_namespaces(&active_page(1..5000)).len(), 1024);
        assert!(active_namespaces(&[]).is_empty());
    }
}
