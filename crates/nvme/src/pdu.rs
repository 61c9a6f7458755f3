//! PDUs (TCP Transport, "NVMe/TCP PDUs").
//!
//! A PDU is a header, perhaps its digest and padding, data and perhaps their digest. The parsers take the bytes up to the
//! data and say how many are missing; the data are left to the caller, and so is their digest.

mod layout;
mod parse;
mod write;

use thiserror::Error;

pub use layout::Cqe;
pub use parse::{parse_from_controller, parse_from_host};
pub use write::{Capsule, Data, Handshake, Side, ready_to_transfer, response, terminate};

/// Length of a digest.
pub const DIGEST_BYTES: usize = 4;
/// Longest PDU that ends a connection: its header, and the header that it complains about.
pub const MAX_TERMINATION_BYTES: usize = 152;
/// Longest data of a command that a controller of this library's targets takes in its capsule, and that a host asks for.
pub const MAX_CAPSULE_DATA_BYTES: usize = 16 << 10;

/// Which digests a connection has agreed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// A CRC-32C follows each header.
    pub header: bool,
    /// A CRC-32C follows data.
    pub data: bool,
}

impl Digests {
    /// Returns the digests that the bits of a handshake ask for.
    pub fn of_bits(bits: u8) -> Self {
        Self {
            header: bits & 1 != 0,
            data: bits & 2 != 0,
        }
    }

    /// Returns the bits of a handshake.
    pub fn bits(self) -> u8 {
        u8::from(self.header) | u8::from(self.data) << 1
    }

    pub(crate) fn header_bytes(self) -> usize {
        match self.header {
            true => DIGEST_BYTES,
            false => 0,
        }
    }

    /// Returns the length of the digest of data.
    pub fn data_bytes(self) -> usize {
        match self.data {
            true => DIGEST_BYTES,
            false => 0,
        }
    }
}

/// Returns the digest of data, or of a part of them that follows a part with the digest `before`; 0 if nothing is before.
pub fn digest_after(before: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(before, bytes)
}

/// The outcome of parsing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed<T> {
    /// At least this many more bytes are before the data.
    More(usize),
    /// All of it. The data, if there are any, come next.
    Whole(T),
}

/// What a controller sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromController {
    /// The answer to the first PDU of a connection.
    Handshake(HandshakeAnswer),
    /// A command has ended.
    Response(Cqe),
    /// Data of a read follow.
    Data(DataHeader),
    /// The controller takes data of a write.
    ReadyToTransfer(Transfer),
    /// The controller ends the connection.
    Terminated(Termination),
}

/// What a host sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromHost {
    /// The first PDU of a connection.
    Handshake(HandshakeRequest),
    /// A command, and perhaps data.
    Command {
        /// The submission queue entry.
        sqe: crate::command::Sqe,
        /// Length of the data that follow.
        data_bytes: u32,
    },
    /// Data of a write follow.
    Data(DataHeader),
    /// The host ends the connection.
    Terminated(Termination),
}

/// The first PDU of a connection: ICReq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeRequest {
    /// Version of the PDU format; 0 is the only one.
    pub version: u16,
    /// Alignment of data that the host wants, in units of 4 bytes, less one.
    pub alignment: u8,
    /// Digests that the host wants.
    pub digests: Digests,
    /// Most transfers of one command that the controller may request together, less one.
    pub most_transfers: u32,
}

/// Its answer: ICResp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HandshakeAnswer {
    /// Version of the PDU format.
    pub version: u16,
    /// Alignment of data that the controller wants, in units of 4 bytes, less one.
    pub alignment: u8,
    /// Digests from now on.
    pub digests: Digests,
    /// Most bytes of data in one PDU from the host.
    pub most_data: u32,
}

/// The header of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataHeader {
    /// The command.
    pub command_id: u16,
    /// The transfer, of data from the host.
    pub transfer_tag: u16,
    /// Where the data belong in those of the command.
    pub offset: u32,
    /// Their length.
    pub len: u32,
    /// No other data of the command, or of the transfer, follow.
    pub is_last: bool,
    /// The command has succeeded; no response follows.
    pub is_success: bool,
}

/// A request for data of a write: R2T.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The command.
    pub command_id: u16,
    /// Name of the transfer.
    pub tag: u16,
    /// First byte.
    pub offset: u32,
    /// Length.
    pub len: u32,
}

/// The end of a connection by one side, for a mistake of the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Termination {
    /// The kind of mistake: see [`FatalStatus`].
    pub status: u16,
    /// The offset in the header, or the other value that belongs to the kind.
    pub information: u32,
    /// The beginning of the header that it complains about.
    pub header: Vec<u8>,
}

/// Why a connection must end (TCP Transport, "Fatal Error Status").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum FatalStatus {
    /// A field of a header is invalid.
    InvalidField = 1,
    /// A PDU that may not come now.
    Sequence = 2,
    /// The digest of a header is wrong.
    HeaderDigest = 3,
    /// Data outside of those of the command.
    OutOfRange = 4,
    /// More data, or more transfers, than were agreed on.
    LimitExceeded = 5,
    /// A parameter is not supported.
    Unsupported = 6,
}

impl FatalStatus {
    /// Returns the meaning of a number.
    pub fn meaning(status: u16) -> &'static str {
        match status {
            1 => "invalid field in a header",
            2 => "PDU out of sequence",
            3 => "header digest error",
            4 => "data out of range",
            5 => "data or transfer limit exceeded",
            6 => "unsupported parameter",
            _ => "unknown reason",
        }
    }
}

/// A PDU is invalid; the connection must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{problem}")]
pub struct PduError {
    /// What to tell the other side.
    pub status: FatalStatus,
    /// Offset of the field in the header.
    pub offset: u32,
    /// The mistake.
    pub problem: &'static str,
}

#[cfg(test)]
mod tests;
