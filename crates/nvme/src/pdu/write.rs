//! From what a PDU says to its bytes.

use zerocopy::IntoBytes;

use super::layout::{
    BLOCK_BYTES, Block, C2H_DATA, C2H_TERM, CAPSULE_CMD, CAPSULE_RESP, CMD_BYTES, Common, Cqe,
    DDGST, H2C_DATA, H2C_TERM, HDGST, IC_BYTES, IC_REQ, IC_RESP, Ic, LAST, R2T, RESP_BYTES,
    SUCCESS, TERM_BYTES, Term,
};
use super::{
    DIGEST_BYTES, DataHeader, Digests, HandshakeAnswer, HandshakeRequest, MAX_TERMINATION_BYTES,
    PduError, Transfer, digest_after,
};
use crate::command::Sqe;

/// The side that sends a PDU which both have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The host.
    Host,
    /// The controller.
    Controller,
}

/// The first PDUs of a connection.
pub struct Handshake;

impl Handshake {
    /// Returns an ICReq.
    pub fn request(request: HandshakeRequest) -> Vec<u8> {
        let HandshakeRequest {
            version,
            alignment,
            digests,
            most_transfers,
        } = request;
        ic(IC_REQ, version, alignment, digests, most_transfers)
    }

    /// Returns an ICResp.
    pub fn answer(answer: HandshakeAnswer) -> Vec<u8> {
        let HandshakeAnswer {
            version,
            alignment,
            digests,
            most_data,
        } = answer;
        ic(IC_RESP, version, alignment, digests, most_data)
    }
}

fn ic(kind: u8, version: u16, alignment: u8, digests: Digests, most: u32) -> Vec<u8> {
    let layout = Ic {
        common: common(kind, 0, IC_BYTES, 0, IC_BYTES as u32),
        version: version.into(),
        alignment,
        digests: digests.bits(),
        most: most.into(),
        reserved: [0; 112],
    };
    layout.as_bytes().to_vec()
}

/// A command.
#[derive(Clone, Copy, Debug)]
pub struct Capsule<'a> {
    /// The submission queue entry.
    pub sqe: &'a Sqe,
    /// Length of the data that follow in the capsule, or 0.
    pub data_bytes: u32,
}

impl Capsule<'_> {
    /// Appends the header of the capsule. Data and their digest follow it, if there are any.
    pub fn write(self, digests: Digests, out: &mut Vec<u8>) {
        let Self { sqe, data_bytes } = self;
        let common = match data_bytes {
            0 => without_data(CAPSULE_CMD, CMD_BYTES, digests),
            len => with_data(CAPSULE_CMD, 0, CMD_BYTES, len, digests),
        };
        header(&[common.as_bytes(), sqe.as_bytes()], digests, out);
    }

    /// Appends the capsule, and `data` in host memory.
    pub fn write_all(sqe: &Sqe, data: &[u8], digests: Digests, out: &mut Vec<u8>) {
        // The data of a command that the host makes are a few KiB at most.
        let data_bytes = u32::try_from(data.len()).unwrap_or(u32::MAX);
        Capsule { sqe, data_bytes }.write(digests, out);
        out.extend_from_slice(data);
        if digests.data && !data.is_empty() {
            out.extend_from_slice(&digest_after(0, data).to_le_bytes());
        }
    }
}

/// The header of data.
pub struct Data;

impl Data {
    /// Appends the header of data of a write. The data and their digest follow it.
    pub fn from_host(data: &DataHeader, digests: Digests, out: &mut Vec<u8>) {
        block(H2C_DATA, data, digests, out);
    }

    /// Appends the header of data of a read. The data and their digest follow it.
    pub fn from_controller(data: &DataHeader, digests: Digests, out: &mut Vec<u8>) {
        block(C2H_DATA, data, digests, out);
    }
}

fn block(kind: u8, data: &DataHeader, digests: Digests, out: &mut Vec<u8>) {
    let DataHeader {
        command_id,
        transfer_tag,
        offset,
        len,
        is_last,
        is_success,
    } = *data;
    let mut flags = 0;
    if is_last {
        flags |= LAST;
    }
    if is_success {
        flags |= SUCCESS;
    }
    let layout = Block {
        common: with_data(kind, flags, BLOCK_BYTES, len, digests),
        command_id: command_id.into(),
        transfer_tag: transfer_tag.into(),
        offset: offset.into(),
        len: len.into(),
        reserved: [0; 4],
    };
    header(&[layout.as_bytes()], digests, out);
}

/// Appends a request for data of a write.
pub fn ready_to_transfer(transfer: &Transfer, digests: Digests, out: &mut Vec<u8>) {
    let Transfer {
        command_id,
        tag,
        offset,
        len,
    } = *transfer;
    let layout = Block {
        common: without_data(R2T, BLOCK_BYTES, digests),
        command_id: command_id.into(),
        transfer_tag: tag.into(),
        offset: offset.into(),
        len: len.into(),
        reserved: [0; 4],
    };
    header(&[layout.as_bytes()], digests, out);
}

/// Appends a response.
pub fn response(cqe: &Cqe, digests: Digests, out: &mut Vec<u8>) {
    let common = without_data(CAPSULE_RESP, RESP_BYTES, digests);
    header(&[common.as_bytes(), cqe.as_bytes()], digests, out);
}

/// Appends the PDU that ends a connection for `error` in a PDU that begins with `of`.
pub fn terminate(from: Side, error: &PduError, of: &[u8], out: &mut Vec<u8>) {
    let of = &of[..of.len().min(MAX_TERMINATION_BYTES - TERM_BYTES)];
    let kind = match from {
        Side::Host => H2C_TERM,
        Side::Controller => C2H_TERM,
    };
    let layout = Term {
        common: common(kind, 0, TERM_BYTES, 0, (TERM_BYTES + of.len()) as u32),
        status: (error.status as u16).into(),
        information: error.offset.into(),
        reserved: [0; 10],
    };
    out.extend_from_slice(layout.as_bytes());
    out.extend_from_slice(of);
}

fn without_data(kind: u8, hlen: usize, digests: Digests) -> Common {
    let flags = if digests.header { HDGST } else { 0 };
    let plen = (hlen + digests.header_bytes()) as u32;
    common(kind, flags, hlen, 0, plen)
}

fn with_data(kind: u8, mut flags: u8, hlen: usize, len: u32, digests: Digests) -> Common {
    let pdo = hlen + digests.header_bytes();
    if digests.header {
        flags |= HDGST;
    }
    if digests.data {
        flags |= DDGST;
    }
    let around = (pdo + digests.data_bytes()) as u32;
    common(kind, flags, hlen, pdo, around.saturating_add(len))
}

fn common(kind: u8, flags: u8, hlen: usize, pdo: usize, plen: u32) -> Common {
    Common {
        kind,
        flags,
        // Headers have at most 128 bytes, and a digest.
        hlen: hlen as u8,
        pdo: pdo as u8,
        plen: plen.into(),
    }
}

/// Appends a header and its digest.
fn header(parts: &[&[u8]], digests: Digests, out: &mut Vec<u8>) {
    let mut digest = 0;
    for part in parts {
        out.extend_from_slice(part);
        digest = digest_after(digest, part);
    }
    if digests.header {
        out.extend_from_slice(&digest.to_le_bytes());
    }
}

const _: () = assert!(DIGEST_BYTES == size_of::<u32>());
