//! Layouts of headers (TCP Transport, figures of the PDUs' fields).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Status;

/// Types of PDUs.
pub(crate) const IC_REQ: u8 = 0x00;
pub(crate) const IC_RESP: u8 = 0x01;
pub(crate) const H2C_TERM: u8 = 0x02;
pub(crate) const C2H_TERM: u8 = 0x03;
pub(crate) const CAPSULE_CMD: u8 = 0x04;
pub(crate) const CAPSULE_RESP: u8 = 0x05;
pub(crate) const H2C_DATA: u8 = 0x06;
pub(crate) const C2H_DATA: u8 = 0x07;
pub(crate) const R2T: u8 = 0x09;

/// Flags of a header.
pub(crate) const HDGST: u8 = 1 << 0;
pub(crate) const DDGST: u8 = 1 << 1;
pub(crate) const LAST: u8 = 1 << 2;
pub(crate) const SUCCESS: u8 = 1 << 3;

/// The first 8 bytes of every PDU.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Common {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    /// Length of the header.
    pub(crate) hlen: u8,
    /// Offset of the data.
    pub(crate) pdo: u8,
    /// Length of the whole PDU.
    pub(crate) plen: U32,
}

/// ICReq and ICResp.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Ic {
    pub(crate) common: Common,
    pub(crate) version: U16,
    pub(crate) alignment: u8,
    pub(crate) digests: u8,
    /// Most transfers less one, or most data.
    pub(crate) most: U32,
    pub(crate) reserved: [u8; 112],
}

/// H2CTermReq and C2HTermReq.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Term {
    pub(crate) common: Common,
    pub(crate) status: U16,
    pub(crate) information: U32,
    pub(crate) reserved: [u8; 10],
}

/// H2CData, C2HData and R2T.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Block {
    pub(crate) common: Common,
    pub(crate) command_id: U16,
    pub(crate) transfer_tag: U16,
    pub(crate) offset: U32,
    pub(crate) len: U32,
    pub(crate) reserved: [u8; 4],
}

/// A completion queue entry (Base, "Completion Queue Entry").
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub struct Cqe {
    /// What the command returns.
    pub result: U64,
    /// How many entries of the submission queue are free again.
    pub sq_head: U16,
    /// The submission queue.
    pub sq_id: U16,
    /// The command.
    pub command_id: U16,
    /// Its [`Status`], and a bit that a transport does not use.
    pub status: U16,
}

impl Cqe {
    /// Returns how the command ended.
    pub fn status(&self) -> Status {
        Status::of_field(self.status.get())
    }
}

pub(crate) const COMMON_BYTES: usize = size_of::<Common>();
pub(crate) const IC_BYTES: usize = size_of::<Ic>();
pub(crate) const TERM_BYTES: usize = size_of::<Term>();
pub(crate) const BLOCK_BYTES: usize = size_of::<Block>();
pub(crate) const RESP_BYTES: usize = COMMON_BYTES + size_of::<Cqe>();
pub(crate) const CMD_BYTES: usize = COMMON_BYTES + size_of::<crate::command::Sqe>();

const _: () = assert!(COMMON_BYTES == 8 && IC_BYTES == 128 && TERM_BYTES == 24);
const _: () = assert!(BLOCK_BYTES == 24 && RESP_BYTES == 24 && CMD_BYTES == 72);
