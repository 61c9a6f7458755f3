//! Commands (Base, "Submission Queue Entry"; NVM Command Set, "Commands").

use std::ops::Range;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{field_of, text_of};

/// Opcodes of the admin queue.
pub const GET_LOG_PAGE: u8 = 0x02;
/// Identify.
pub const IDENTIFY: u8 = 0x06;
/// Set Features.
pub const SET_FEATURES: u8 = 0x09;
/// Asynchronous Event Request.
pub const ASYNC_EVENT: u8 = 0x0c;
/// Keep Alive.
pub const KEEP_ALIVE: u8 = 0x18;
/// All commands of fabrics; the type is another field.
pub const FABRICS: u8 = 0x7f;
/// Opcodes of an I/O queue: bring all completed writes to the medium.
pub const FLUSH: u8 = 0x00;
/// Write.
pub const WRITE: u8 = 0x01;
/// Read.
pub const READ: u8 = 0x02;
/// Write zeros, which are not sent.
pub const WRITE_ZEROES: u8 = 0x08;
/// Dataset Management, of which Deallocate is one attribute.
pub const DATASET_MANAGEMENT: u8 = 0x09;
/// Types of commands of fabrics.
pub const PROPERTY_SET: u8 = 0x00;
/// Connect.
pub const CONNECT: u8 = 0x01;
/// Property Get.
pub const PROPERTY_GET: u8 = 0x04;

/// Set Features: the number of queues.
const FEATURE_QUEUES: u32 = 0x07;
/// Set Features: the write protection of a namespace, and its state in which writes are refused.
const FEATURE_PROTECTION: u32 = 0x84;
const PROTECT: u32 = 1;
/// Identify: one namespace, the controller, the list of active namespaces.
pub const CNS_NAMESPACE: u8 = 0x00;
/// Identify: the controller.
pub const CNS_CONTROLLER: u8 = 0x01;
/// Identify: the active namespaces.
pub const CNS_ACTIVE: u8 = 0x02;
/// Identify: the identifiers of a namespace.
pub const CNS_DESCRIPTORS: u8 = 0x03;
/// Get Log Page: the discovery log.
pub const LOG_DISCOVERY: u8 = 0x70;

/// Byte 1: data are described by an SGL (the only way over fabrics).
const FLAG_SGL: u8 = 0x40;
/// Types of SGL descriptors: data in the capsule; data that the transport transfers.
const SGL_IN_CAPSULE: u8 = 0x01;
const SGL_TRANSPORT: u8 = 0x5a;
/// Attribute of Connect: no flow control of the submission queue.
const CONNECT_NO_FLOW_CONTROL: u32 = 1 << 2;
/// Bit 30 of the third dword of a write: on storage when it is acknowledged.
const FORCE_UNIT_ACCESS: u32 = 1 << 30;
/// Attribute of Dataset Management.
const DEALLOCATE: u32 = 1 << 2;

/// A submission queue entry.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Sqe {
    /// What to do.
    pub opcode: u8,
    flags: u8,
    /// Name of the command in its queue.
    pub command_id: U16,
    /// The namespace; the type of a command of fabrics.
    nsid: U32,
    reserved: [U32; 2],
    metadata: U64,
    sgl: Sgl,
    /// Dwords 10 to 15.
    dwords: [U32; 6],
}

/// Where the data of a command are.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
struct Sgl {
    address: U64,
    len: U32,
    reserved: [u8; 3],
    kind: u8,
}

const _: () = assert!(size_of::<Sqe>() == 64 && size_of::<Sgl>() == 16);

/// The data of a Connect (Base, "Connect Command Data").
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ConnectLayout {
    host_id: [u8; 16],
    controller_id: U16,
    reserved: [u8; 238],
    subsystem_nqn: [u8; 256],
    host_nqn: [u8; 256],
    reserved2: [u8; 256],
}

const _: () = assert!(size_of::<ConnectLayout>() == CONNECT_BYTES);

/// Length of the data of a Connect.
pub const CONNECT_BYTES: usize = 1024;
/// Any controller, in the data of the Connect of an admin queue.
pub const ANY_CONTROLLER: u16 = 0xffff;

/// What a Connect says besides the names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect {
    /// The queue: 0 for the admin queue.
    pub queue: u16,
    /// Entries of the queue, at least 2.
    pub entries: u32,
    /// No flow control of the submission queue.
    pub without_flow_control: bool,
    /// Time without a Keep Alive after which the controller ends, in milliseconds; 0 for none.
    pub keep_alive_ms: u32,
}

/// The names in a Connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectData {
    /// Identifier of the host.
    pub host_id: [u8; 16],
    /// The controller, from the second queue on.
    pub controller_id: u16,
    /// Name of the subsystem.
    pub subsystem_nqn: String,
    /// Name of the host.
    pub host_nqn: String,
}

impl ConnectData {
    /// Returns the bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let layout = ConnectLayout {
            host_id: self.host_id,
            controller_id: self.controller_id.into(),
            reserved: [0; 238],
            subsystem_nqn: field_of(&self.subsystem_nqn, 0),
            host_nqn: field_of(&self.host_nqn, 0),
            reserved2: [0; 256],
        };
        layout.as_bytes().to_vec()
    }

    /// Parses the bytes; `None` if they are too few.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let (layout, _) = ConnectLayout::read_from_prefix(bytes).ok()?;
        Some(Self {
            host_id: layout.host_id,
            controller_id: layout.controller_id.get(),
            subsystem_nqn: text_of(&layout.subsystem_nqn),
            host_nqn: text_of(&layout.host_nqn),
        })
    }
}

/// A range of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// The first one.
    pub start: u64,
    /// Their number, from 1 to 65536.
    pub count: u32,
}

/// Where the data of a write are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataPlace {
    /// Behind the command.
    InCapsule,
    /// The controller requests them.
    OnRequest,
}

impl Sqe {
    fn new(opcode: u8, nsid: u32) -> Self {
        Self {
            opcode,
            flags: FLAG_SGL,
            command_id: U16::ZERO,
            nsid: nsid.into(),
            reserved: [U32::ZERO; 2],
            metadata: U64::ZERO,
            sgl: Sgl {
                address: U64::ZERO,
                len: U32::ZERO,
                reserved: [0; 3],
                kind: SGL_TRANSPORT,
            },
            dwords: [U32::ZERO; 6],
        }
    }

    fn with_data(mut self, len: u32, kind: u8) -> Self {
        self.sgl.len = len.into();
        self.sgl.kind = kind;
        self
    }

    fn with_dwords(mut self, dwords: [u32; 6]) -> Self {
        self.dwords = dwords.map(Into::into);
        self
    }

    /// Returns the same command with a name.
    #[must_use]
    pub fn named(mut self, command_id: u16) -> Self {
        self.command_id = command_id.into();
        self
    }

    /// Connects a queue. [`ConnectData`] are in the capsule.
    pub fn connect(connect: Connect) -> Self {
        let Connect {
            queue,
            entries,
            without_flow_control,
            keep_alive_ms,
        } = connect;
        let attributes = match without_flow_control {
            true => CONNECT_NO_FLOW_CONTROL,
            false => 0,
        };
        let size = entries.clamp(2, 0x1_0000) - 1;
        Self::new(FABRICS, CONNECT.into())
            .with_data(CONNECT_BYTES as u32, SGL_IN_CAPSULE)
            .with_dwords([
                u32::from(queue) << 16,
                size | attributes << 16,
                keep_alive_ms,
                0,
                0,
                0,
            ])
    }

    /// Reads a property of 4 or 8 bytes.
    pub fn property_get(offset: u32, is_long: bool) -> Self {
        Self::new(FABRICS, PROPERTY_GET.into()).with_dwords([is_long.into(), offset, 0, 0, 0, 0])
    }

    /// Writes a property of 4 bytes.
    pub fn property_set(offset: u32, value: u32) -> Self {
        Self::new(FABRICS, PROPERTY_SET.into()).with_dwords([0, offset, value, 0, 0, 0])
    }

    /// Reads a page of 4096 bytes.
    pub fn identify(cns: u8, nsid: u32) -> Self {
        Self::new(IDENTIFY, nsid)
            .with_data(crate::identify::PAGE_BYTES as u32, SGL_TRANSPORT)
            .with_dwords([cns.into(), 0, 0, 0, 0, 0])
    }

    /// Requests I/O queues, from 1 to 65535.
    pub fn set_queues(count: u16) -> Self {
        let least = u32::from(count.max(1)) - 1;
        Self::new(SET_FEATURES, 0).with_dwords([FEATURE_QUEUES, least | least << 16, 0, 0, 0, 0])
    }

    /// Makes a namespace read-only, for all hosts.
    pub fn protect(nsid: u32) -> Self {
        Self::new(SET_FEATURES, nsid).with_dwords([FEATURE_PROTECTION, PROTECT, 0, 0, 0, 0])
    }

    /// Tells the controller that the host is there.
    pub fn keep_alive() -> Self {
        Self::new(KEEP_ALIVE, 0)
    }

    /// Reads `len` bytes of the discovery log, a multiple of 4.
    pub fn discovery_log(offset: u64, len: u32) -> Self {
        let last = (len / 4).max(1) - 1;
        Self::new(GET_LOG_PAGE, 0)
            .with_data(len, SGL_TRANSPORT)
            .with_dwords([
                u32::from(LOG_DISCOVERY) | (last & 0xffff) << 16,
                last >> 16,
                offset as u32,
                (offset >> 32) as u32,
                0,
                0,
            ])
    }

    /// Reads blocks, of `len` bytes.
    pub fn read(nsid: u32, blocks: Blocks, len: u32) -> Self {
        Self::new(READ, nsid)
            .with_data(len, SGL_TRANSPORT)
            .with_dwords(of_blocks(blocks, 0))
    }

    /// Writes blocks, of `len` bytes.
    pub fn write(nsid: u32, blocks: Blocks, len: u32, place: DataPlace, is_durable: bool) -> Self {
        let kind = match place {
            DataPlace::InCapsule => SGL_IN_CAPSULE,
            DataPlace::OnRequest => SGL_TRANSPORT,
        };
        Self::new(WRITE, nsid)
            .with_data(len, kind)
            .with_dwords(of_blocks(blocks, durable(is_durable)))
    }

    /// Writes zeros, which are not sent.
    pub fn write_zeroes(nsid: u32, blocks: Blocks, is_durable: bool) -> Self {
        Self::new(WRITE_ZEROES, nsid).with_dwords(of_blocks(blocks, durable(is_durable)))
    }

    /// Deallocates one range, which is [described](deallocated) by data of 16 bytes.
    pub fn deallocate(nsid: u32, place: DataPlace) -> Self {
        let kind = match place {
            DataPlace::InCapsule => SGL_IN_CAPSULE,
            DataPlace::OnRequest => SGL_TRANSPORT,
        };
        Self::new(DATASET_MANAGEMENT, nsid)
            .with_data(DEALLOCATED_BYTES as u32, kind)
            .with_dwords([0, DEALLOCATE, 0, 0, 0, 0])
    }

    /// Brings all completed writes of a namespace to the medium.
    pub fn flush(nsid: u32) -> Self {
        Self::new(FLUSH, nsid)
    }

    /// Returns the namespace.
    pub fn nsid(&self) -> u32 {
        self.nsid.get()
    }

    /// Returns the type of a command of fabrics.
    pub fn fabrics_type(&self) -> u8 {
        self.nsid.get() as u8
    }

    /// Returns the length of the data.
    pub fn data_bytes(&self) -> u32 {
        self.sgl.len.get()
    }

    /// Returns whether the data are in the capsule.
    pub fn has_data_in_capsule(&self) -> bool {
        self.sgl.kind == SGL_IN_CAPSULE
    }

    /// Returns whether data are described as fabrics require.
    pub fn is_well_formed(&self) -> bool {
        let is_known = matches!(self.sgl.kind, SGL_IN_CAPSULE | SGL_TRANSPORT);
        self.flags == FLAG_SGL && is_known && self.sgl.address == U64::ZERO
    }

    /// Returns what a Connect says.
    pub fn as_connect(&self) -> Connect {
        let [first, second, third, ..] = self.dwords.map(U32::get);
        Connect {
            queue: (first >> 16) as u16,
            entries: (second & 0xffff) + 1,
            without_flow_control: second >> 16 & CONNECT_NO_FLOW_CONTROL != 0,
            keep_alive_ms: third,
        }
    }

    /// Returns the offset of a property, and the value to write.
    pub fn as_property(&self) -> (u32, u32) {
        (self.dwords[1].get(), self.dwords[2].get())
    }

    /// Returns the page that an Identify asks for.
    pub fn as_cns(&self) -> u8 {
        self.dwords[0].get() as u8
    }

    /// Returns how many I/O queues are requested; `None` if another feature is set.
    pub fn as_queues(&self) -> Option<u16> {
        let [feature, counts, ..] = self.dwords.map(U32::get);
        (feature as u8 == FEATURE_QUEUES as u8).then_some((counts as u16).saturating_add(1))
    }

    /// Returns the log, and its bytes that are read.
    pub fn as_log(&self) -> (u8, Range<u64>) {
        let [first, second, low, high, ..] = self.dwords.map(U32::get);
        let dwords = u64::from(first >> 16) | u64::from(second & 0xffff) << 16;
        let start = u64::from(low) | u64::from(high) << 32;
        let end = start.saturating_add((dwords + 1) * 4);
        (first as u8, start..end)
    }

    /// Returns the blocks of a read, a write or a write of zeros.
    pub fn as_blocks(&self) -> Blocks {
        let [low, high, third, ..] = self.dwords.map(U32::get);
        Blocks {
            start: u64::from(low) | u64::from(high) << 32,
            count: (third & 0xffff) + 1,
        }
    }

    /// Returns whether a write must be on storage when it is acknowledged.
    pub fn is_durable(&self) -> bool {
        self.dwords[2].get() & FORCE_UNIT_ACCESS != 0
    }
}

fn of_blocks(blocks: Blocks, flags: u32) -> [u32; 6] {
    let Blocks { start, count } = blocks;
    let last = count.clamp(1, 0x1_0000) - 1;
    [start as u32, (start >> 32) as u32, last | flags, 0, 0, 0]
}

fn durable(is_durable: bool) -> u32 {
    match is_durable {
        true => FORCE_UNIT_ACCESS,
        false => 0,
    }
}

/// Returns the result of Set Features for `count` queues.
pub fn queues_result(count: u16) -> u64 {
    let least = u64::from(count.max(1)) - 1;
    least | least << 16
}

/// Returns how many I/O queues a controller has granted by the result of Set Features.
pub fn granted_queues(result: u64) -> u16 {
    let submission = result as u16;
    let completion = (result >> 16) as u16;
    submission.min(completion).saturating_add(1)
}

/// Length of the description of a range to deallocate.
pub const DEALLOCATED_BYTES: usize = 16;

/// Returns the description of a range to deallocate.
pub fn deallocated(blocks: Blocks) -> [u8; DEALLOCATED_BYTES] {
    let mut bytes = [0; DEALLOCATED_BYTES];
    bytes[4..8].copy_from_slice(&blocks.count.to_le_bytes());
    bytes[8..].copy_from_slice(&blocks.start.to_le_bytes());
    bytes
}

/// Parses the description of a range to deallocate.
pub fn as_deallocated(bytes: &[u8]) -> Option<Blocks> {
    let (_, rest) = bytes.split_first_chunk::<4>()?;
    let (count, rest) = rest.split_first_chunk::<4>()?;
    let (start, _) = rest.split_first_chunk::<8>()?;
    Some(Blocks {
        start: u64::from_le_bytes(*start),
        count: u32::from_le_bytes(*count),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_their_fields_where_the_specification_has_them() {
        let blocks = Blocks {
            start: 0x1_0000_0002,
            count: 2048,
        };
        let read = Sqe::read(7, blocks, 1 << 20).named(0x1234);
        let bytes = read.as_bytes();
        assert_eq!(bytes[..8], [0x02, 0x40, 0x34, 0x12, 7, 0, 0, 0]);
        assert_eq!(bytes[32..40], [0, 0, 0x10, 0, 0, 0, 0, 0x5a]);
        assert_eq!(bytes[40..52], [2, 0, 0, 0, 1, 0, 0, 0, 0xff, 0x07, 0, 0]);
        assert_eq!((read.as_blocks(), read.nsid()), (blocks, 7));

        let connect = Connect {
            queue: 3,
            entries: 33,
            without_flow_control: true,
            keep_alive_ms: 120_000,
        };
        let sqe = Sqe::connect(connect);
        let bytes = sqe.as_bytes();
        assert_eq!((bytes[0], bytes[4], bytes[39]), (0x7f, 1, 0x01));
        assert_eq!(bytes[40..52], [0, 0, 3, 0, 32, 0, 4, 0, 0xc0, 0xd4, 1, 0]);
        assert_eq!(sqe.as_connect(), connect);

        let set = Sqe::property_set(0x14, 0x46_0001);
        assert_eq!(set.as_bytes()[44..52], [0x14, 0, 0, 0, 1, 0, 0x46, 0]);
        assert_eq!(
            (set.fabrics_type(), set.as_property()),
            (0, (0x14, 0x46_0001))
        );
        assert_eq!(Sqe::property_get(0, true).as_bytes()[40], 1);
        assert_eq!(Sqe::set_queues(4).as_queues(), Some(4));
        assert_eq!(Sqe::identify(2, 0).as_cns(), 2);
        let log = Sqe::discovery_log(1024, 4096);
        assert_eq!(log.as_log(), (LOG_DISCOVERY, 1024..5120));
        assert!(Sqe::flush(1).is_well_formed() && !Sqe::flush(1).has_data_in_capsule());
    }

    #[test]
    fn a_durable_write_says_so_and_zeros_and_deallocations_have_no_data_of_the_blocks() {
        let blocks = Blocks { start: 5, count: 1 };
        let write = Sqe::write(1, blocks, 512, DataPlace::InCapsule, true);
        assert!(write.is_durable() && write.has_data_in_capsule());
        assert_eq!(write.as_blocks(), blocks);
        let zeros = Sqe::write_zeroes(1, blocks, false);
        assert!(!zeros.is_durable() && zeros.data_bytes() == 0);
        assert_eq!(as_deallocated(&deallocated(blocks)), Some(blocks));
        assert_eq!(as_deallocated(&[0; 15]), None);
        let deallocate = Sqe::deallocate(1, DataPlace::OnRequest);
        assert_eq!(deallocate.as_bytes()[44], 4);
    }

    #[test]
    fn names_and_numbers_of_queues_are_those_that_were_sent() {
        let data = ConnectData {
            host_id: [7; 16],
            controller_id: ANY_CONTROLLER,
            subsystem_nqn: "nqn.2014-08.org.example:disk".to_owned(),
            host_nqn: "nqn.2014-08.org.nvmexpress:uuid:1".to_owned(),
        };
        let bytes = data.to_bytes();
        assert_eq!(bytes.len(), CONNECT_BYTES);
        assert_eq!(bytes[256..260], *b"nqn.");
        assert_eq!(ConnectData::parse(&bytes), Some(data));
        assert_eq!(ConnectData::parse(&bytes[1..]), None);
        assert_eq!(granted_queues(queues_result(4)), 4);
        assert_eq!(granted_queues(0x0001_0007), 2);
        assert_eq!(granted_queues(u64::MAX), u16::MAX);
    }
}
