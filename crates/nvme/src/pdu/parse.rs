//! From bytes to what a PDU says.

use zerocopy::FromBytes;

use super::layout::{
    BLOCK_BYTES, Block, C2H_DATA, C2H_TERM, CAPSULE_CMD, CAPSULE_RESP, CMD_BYTES, COMMON_BYTES,
    Common, Cqe, DDGST, H2C_DATA, H2C_TERM, HDGST, IC_BYTES, IC_REQ, IC_RESP, Ic, LAST, R2T,
    RESP_BYTES, SUCCESS, TERM_BYTES, Term,
};
use super::{
    DIGEST_BYTES, DataHeader, Digests, FatalStatus, FromController, FromHost, HandshakeAnswer,
    HandshakeRequest, MAX_TERMINATION_BYTES, Parsed, PduError, Termination, Transfer, digest_after,
};
use crate::command::Sqe;

/// Offsets of the fields of the common header.
const FLAGS_AT: u32 = 1;
const HLEN_AT: u32 = 2;
const PDO_AT: u32 = 3;
const PLEN_AT: u32 = 4;

/// Parses a PDU of a controller up to its data.
///
/// # Errors
/// No controller sends such a PDU.
pub fn parse_from_controller(
    bytes: &[u8],
    digests: Digests,
) -> Result<Parsed<FromController>, PduError> {
    // Every PDU of a controller has at least so many bytes: one read instead of two.
    if bytes.len() < BLOCK_BYTES {
        return Ok(Parsed::More(BLOCK_BYTES - bytes.len()));
    }
    let common = common(bytes)?;
    let shape = match common.kind {
        IC_RESP => Shape::bare(IC_BYTES),
        C2H_TERM => return termination(&common, bytes, FromController::Terminated),
        CAPSULE_RESP => Shape::header(RESP_BYTES, digests),
        C2H_DATA => Shape::data(BLOCK_BYTES, digests),
        R2T => Shape::header(BLOCK_BYTES, digests),
        _ => return Err(unexpected()),
    };
    if let Some(missing) = shape.check(&common, bytes)? {
        return Ok(Parsed::More(missing));
    }
    Ok(Parsed::Whole(match common.kind {
        IC_RESP => {
            let ic: Ic = fixed(bytes)?;
            FromController::Handshake(HandshakeAnswer {
                version: ic.version.get(),
                alignment: ic.alignment,
                digests: Digests::of_bits(ic.digests),
                most_data: ic.most.get(),
            })
        }
        CAPSULE_RESP => FromController::Response(fixed::<Cqe>(&bytes[COMMON_BYTES..])?),
        C2H_DATA => FromController::Data(data(&common, bytes, digests)?),
        _ => {
            let block: Block = fixed(bytes)?;
            if block.len.get() == 0 {
                return Err(invalid(16, "a request for no data"));
            }
            FromController::ReadyToTransfer(Transfer {
                command_id: block.command_id.get(),
                tag: block.transfer_tag.get(),
                offset: block.offset.get(),
                len: block.len.get(),
            })
        }
    }))
}

/// Parses a PDU of a host up to its data.
///
/// # Errors
/// No host sends such a PDU.
pub fn parse_from_host(bytes: &[u8], digests: Digests) -> Result<Parsed<FromHost>, PduError> {
    if bytes.len() < COMMON_BYTES {
        return Ok(Parsed::More(COMMON_BYTES - bytes.len()));
    }
    let common = common(bytes)?;
    let shape = match common.kind {
        IC_REQ => Shape::bare(IC_BYTES),
        H2C_TERM if bytes.len() < TERM_BYTES => {
            return Ok(Parsed::More(TERM_BYTES - bytes.len()));
        }
        H2C_TERM => return termination(&common, bytes, FromHost::Terminated),
        // Without data it has no offset of data, and no digest of them.
        CAPSULE_CMD if common.pdo == 0 => Shape::header(CMD_BYTES, digests),
        CAPSULE_CMD => Shape::data(CMD_BYTES, digests),
        H2C_DATA => Shape::data(BLOCK_BYTES, digests),
        _ => return Err(unexpected()),
    };
    if let Some(missing) = shape.check(&common, bytes)? {
        return Ok(Parsed::More(missing));
    }
    Ok(Parsed::Whole(match common.kind {
        IC_REQ => {
            let ic: Ic = fixed(bytes)?;
            FromHost::Handshake(HandshakeRequest {
                version: ic.version.get(),
                alignment: ic.alignment,
                digests: Digests::of_bits(ic.digests),
                most_transfers: ic.most.get(),
            })
        }
        CAPSULE_CMD => FromHost::Command {
            sqe: fixed::<Sqe>(&bytes[COMMON_BYTES..])?,
            data_bytes: match common.pdo {
                0 => 0,
                _ => data_len(&common, digests)?,
            },
        },
        _ => FromHost::Data(data(&common, bytes, digests)?),
    }))
}

/// The parts that a kind of PDU has.
#[derive(Clone, Copy)]
struct Shape {
    hlen: usize,
    has_digest: bool,
    has_data: bool,
}

impl Shape {
    /// A header without a digest, before any are agreed on.
    fn bare(hlen: usize) -> Self {
        Self {
            hlen,
            has_digest: false,
            has_data: false,
        }
    }

    fn header(hlen: usize, digests: Digests) -> Self {
        Self {
            hlen,
            has_digest: digests.header,
            has_data: false,
        }
    }

    fn data(hlen: usize, digests: Digests) -> Self {
        Self {
            has_data: true,
            ..Self::header(hlen, digests)
        }
    }

    /// Checks the common header, and the digest of the header. Returns how many bytes are missing before the data.
    fn check(self, common: &Common, bytes: &[u8]) -> Result<Option<usize>, PduError> {
        let digested = match self.has_digest {
            true => self.hlen + DIGEST_BYTES,
            false => self.hlen,
        };
        if usize::from(common.hlen) != self.hlen {
            return Err(invalid(
                HLEN_AT,
                "the length of a header is not that of its type",
            ));
        }
        if self.has_digest != (common.flags & HDGST != 0) {
            return Err(invalid(
                FLAGS_AT,
                "the digest of a header is there and was not agreed on, or is missing",
            ));
        }
        let whole = match self.has_data {
            true => usize::from(common.pdo),
            false => digested,
        };
        if whole < digested {
            return Err(invalid(PDO_AT, "data begin inside of their header"));
        }
        if !self.has_data && common.plen.get() as usize != digested {
            return Err(invalid(
                PLEN_AT,
                "a PDU without data is longer than its header",
            ));
        }
        if bytes.len() < whole {
            return Ok(Some(whole - bytes.len()));
        }
        if self.has_digest {
            let (header, rest) = bytes.split_at(self.hlen);
            let theirs = rest.first_chunk().map(|digest| u32::from_le_bytes(*digest));
            if theirs != Some(digest_after(0, header)) {
                return Err(PduError {
                    status: FatalStatus::HeaderDigest,
                    offset: 0,
                    problem: "the digest of a header is wrong",
                });
            }
        }
        Ok(None)
    }
}

fn common(bytes: &[u8]) -> Result<Common, PduError> {
    let common: Common = fixed(bytes)?;
    match common.plen.get() < u32::from(common.hlen) {
        true => Err(invalid(PLEN_AT, "a PDU is shorter than its header")),
        false => Ok(common),
    }
}

fn data(common: &Common, bytes: &[u8], digests: Digests) -> Result<DataHeader, PduError> {
    let block: Block = fixed(bytes)?;
    let len = block.len.get();
    if len == 0 || data_len(common, digests)? != len {
        return Err(invalid(
            PLEN_AT,
            "the length of a PDU is not that of its data",
        ));
    }
    let header = DataHeader {
        command_id: block.command_id.get(),
        transfer_tag: block.transfer_tag.get(),
        offset: block.offset.get(),
        len,
        is_last: common.flags & LAST != 0,
        is_success: common.flags & SUCCESS != 0,
    };
    match header.is_success && !header.is_last {
        true => Err(invalid(FLAGS_AT, "success, and more data follow")),
        false => Ok(header),
    }
}

/// Returns the length of the data of a PDU.
fn data_len(common: &Common, digests: Digests) -> Result<u32, PduError> {
    if digests.data != (common.flags & DDGST != 0) {
        return Err(invalid(
            FLAGS_AT,
            "the digest of data is there and was not agreed on, or is missing",
        ));
    }
    let around = u32::from(common.pdo) + digests.data_bytes() as u32;
    let len = common.plen.get().checked_sub(around);
    len.ok_or(invalid(
        PLEN_AT,
        "a PDU is shorter than its header and digests",
    ))
}

fn termination<T>(
    common: &Common,
    bytes: &[u8],
    of: impl FnOnce(Termination) -> T,
) -> Result<Parsed<T>, PduError> {
    let len = common.plen.get() as usize;
    if usize::from(common.hlen) != TERM_BYTES || len > MAX_TERMINATION_BYTES {
        return Err(invalid(PLEN_AT, "the length of a termination request"));
    }
    if bytes.len() < len {
        return Ok(Parsed::More(len - bytes.len()));
    }
    let term: Term = fixed(bytes)?;
    Ok(Parsed::Whole(of(Termination {
        status: term.status.get(),
        information: term.information.get(),
        header: bytes[TERM_BYTES..len].to_vec(),
    })))
}

/// Reads a layout from the first bytes, of which the caller has counted enough.
fn fixed<T: FromBytes>(bytes: &[u8]) -> Result<T, PduError> {
    let read = T::read_from_prefix(bytes);
    read.map(|(value, _)| value)
        .map_err(|_| invalid(PLEN_AT, "a PDU is shorter than its header"))
}

fn invalid(offset: u32, problem: &'static str) -> PduError {
    PduError {
        status: FatalStatus::InvalidField,
        offset,
        problem,
    }
}

fn unexpected() -> PduError {
    PduError {
        status: FatalStatus::InvalidField,
        offset: 0,
        problem: "a PDU of an unknown type, or of a type that only the other side sends",
    }
}
