//! TCP headers (RFC 9293 3.1), with the options that we support: MSS, window scale, SACK, timestamps, AccECN, Fast Open (RFC 9293 3.2,
//! 7323, 2018, 9768, 7413). `emit.rs` writes them.

mod emit;
mod sack_blocks;

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::accecn::{ACCECN0, ACCECN1, AccEcn};
use crate::fast_open::{self, FastOpen};
use crate::head::Head;
use crate::parse_error::{ParseError, TcpOptionsError};
pub use sack_blocks::SackBlocks;

/// Largest window scale; a larger received value is replaced with this one (RFC 7323 2.3).
pub const MAX_WINDOW_SCALE: u8 = 14;

const END: u8 = 0;
const NOP: u8 = 1;
const MSS: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;

bitflags::bitflags! {
    /// Control bits of a TCP header.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct TcpFlags: u16 {
        /// No more data from the sender.
        const FIN = 0x01;
        /// Synchronize sequence numbers.
        const SYN = 0x02;
        /// Reset the connection.
        const RST = 0x04;
        /// Push the data to the application.
        const PSH = 0x08;
        /// The acknowledgment field is significant.
        const ACK = 0x10;
        /// The urgent pointer is significant.
        const URG = 0x20;
        /// ECN echo (RFC 3168).
        const ECE = 0x40;
        /// Congestion window reduced (RFC 3168).
        const CWR = 0x80;
        /// Accurate ECN; forms the ACE field together with CWR and ECE (RFC 9768). It is in the byte of the data offset.
        const AE = 0x100;
    }
}

impl TcpFlags {
    /// Returns the flags in byte 13 of the header: all but AE.
    pub const fn low_byte(self) -> u8 {
        self.bits() as u8
    }
}

/// A TCP header with parsed options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpHeader {
    /// Source port.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Sequence number of the first byte (of the SYN, if there is one).
    pub seq: u32,
    /// Next sequence number expected; meaningful with [`TcpFlags::ACK`].
    pub ack: u32,
    /// Control bits.
    pub flags: TcpFlags,
    /// Window as on the wire, not scaled.
    pub window: u16,
    /// Urgent pointer; meaningful with [`TcpFlags::URG`].
    pub urgent: u16,
    /// Options.
    pub options: TcpOptions,
    /// Bytes of header with options, as parsed: 20 to 60, a multiple of 4.
    pub header_len: usize,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    src_port: U16,
    dst_port: U16,
    seq: U32,
    ack: U32,
    data_offset: u8,
    flags: u8,
    window: U16,
    checksum: U16,
    urgent: U16,
}
const _: () = assert!(size_of::<Raw>() == TcpHeader::LEN);

impl TcpHeader {
    /// Bytes of a header without options.
    pub const LEN: usize = 20;
    /// Bytes of the longest header.
    pub const MAX_LEN: usize = 60;
    /// Offset of the checksum field in the header.
    pub const CHECKSUM_OFFSET: usize = 16;

    /// Returns the header length (20 to 60) that byte 12 of the header announces.
    #[inline]
    pub(crate) fn announced_len(data_offset: u8) -> Result<usize, ParseError> {
        let len = usize::from(data_offset >> 4) * 4;
        if len < Self::LEN {
            Err(ParseError::BadTcpOffset)
        } else {
            Ok(len)
        }
    }

    /// Parses the header at `at` of a packet. Does not verify the checksum, which covers payload that may be unreadable.
    ///
    /// # Errors
    /// [`ParseError::NeedMore`], [`ParseError::Truncated`] if there are fewer than [`TcpHeader::LEN`] bytes,
    /// [`ParseError::BadTcpOffset`] if the data offset is below 5 or past the end of the packet,
    /// [`ParseError::BadTcpOptions`].
    #[inline(always)]
    pub(crate) fn parse(packet: Head<'_>, at: usize) -> Result<Self, ParseError> {
        let header_len = Self::announced_len(packet.slice(at, Self::LEN)?[12])?;
        if at + header_len > packet.end {
            return Err(ParseError::BadTcpOffset);
        }
        let header = packet.slice(at, header_len)?;
        let (raw, options) = Raw::ref_from_prefix(header).map_err(|_| ParseError::Truncated)?;
        Ok(Self {
            src_port: raw.src_port.get(),
            dst_port: raw.dst_port.get(),
            seq: raw.seq.get(),
            ack: raw.ack.get(),
            flags: TcpFlags::from_bits_retain(u16::from_be_bytes([raw.data_offset & 1, raw.flags])),
            window: raw.window.get(),
            urgent: raw.urgent.get(),
            options: TcpOptions::parse(options)?,
            header_len,
        })
    }
}

/// The options of one TCP header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpOptions {
    /// Maximum segment size, only in a SYN.
    pub mss: Option<u16>,
    /// Window scale, only in a SYN; at most [`MAX_WINDOW_SCALE`] once parsed.
    pub window_scale: Option<u8>,
    /// The sender accepts SACK; only in a SYN.
    pub sack_permitted: bool,
    /// Timestamps.
    pub timestamps: Option<Timestamps>,
    /// Counters of ECN codepoints.
    pub accecn: Option<AccEcn>,
    /// SACK blocks.
    pub sack: SackBlocks,
    /// Fast Open's cookie, or the request for one; only in a SYN.
    pub fast_open: Option<FastOpen>,
}

/// The timestamps option (RFC 7323 3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timestamps {
    /// TSval: timestamp of the sender.
    pub value: u32,
    /// TSecr: echo of the latest TSval received; meaningful with [`TcpFlags::ACK`](crate::TcpFlags::ACK).
    pub echo: u32,
}

impl TcpOptions {
    /// Parses the bytes between the fixed header and the payload.
    ///
    /// Unknown options, and known ones with an unexpected length, are skipped; if a kind occurs twice,
    /// the later one counts (as in Linux, net/ipv4/tcp_input.c `tcp_parse_options`).
    ///
    /// # Errors
    /// A missing or invalid length (RFC 9293 MUST-7): the next option cannot be found.
    #[inline(always)]
    pub fn parse(bytes: &[u8]) -> Result<Self, TcpOptionsError> {
        // Fast path: most segments have only timestamps, laid out as in RFC 7323 appendix A.
        if let &[NOP, NOP, TIMESTAMPS, 10, v0, v1, v2, v3, e0, e1, e2, e3] = bytes {
            let value = u32::from_be_bytes([v0, v1, v2, v3]);
            let echo = u32::from_be_bytes([e0, e1, e2, e3]);
            return Ok(Self {
                timestamps: Some(Timestamps { value, echo }),
                ..Self::default()
            });
        }
        Self::parse_slow(bytes)
    }

    fn parse_slow(mut bytes: &[u8]) -> Result<Self, TcpOptionsError> {
        let mut options = Self::default();
        while let [kind, rest @ ..] = bytes {
            let kind = *kind;
            match kind {
                END => break,
                NOP => {
                    bytes = rest;
                    continue;
                }
                _ => {}
            }
            let &[len, ..] = rest else {
                return Err(TcpOptionsError::NoLength { kind });
            };
            let (option, rest) = (usize::from(len) >= 2)
                .then(|| bytes.split_at_checked(len.into()))
                .flatten()
                .ok_or(TcpOptionsError::BadLength { kind, len })?;
            options.set(kind, &option[2..]);
            bytes = rest;
        }
        Ok(options)
    }

    fn set(&mut self, kind: u8, body: &[u8]) {
        match (kind, body) {
            (MSS, &[a, b]) => self.mss = Some(u16::from_be_bytes([a, b])),
            (WINDOW_SCALE, &[shift]) => self.window_scale = Some(shift.min(MAX_WINDOW_SCALE)),
            (SACK_PERMITTED, []) => self.sack_permitted = true,
            (SACK, body) => {
                if let (blocks, []) = body.as_chunks::<8>() {
                    self.sack = SackBlocks::new();
                    for &[a, b, c, d, e, f, g, h] in blocks {
                        self.sack.push(
                            u32::from_be_bytes([a, b, c, d]),
                            u32::from_be_bytes([e, f, g, h]),
                        );
                    }
                }
            }
            (TIMESTAMPS, &[a, b, c, d, e, f, g, h]) => {
                let value = u32::from_be_bytes([a, b, c, d]);
                let echo = u32::from_be_bytes([e, f, g, h]);
                self.timestamps = Some(Timestamps { value, echo });
            }
            (ACCECN0 | ACCECN1, body) => self.accecn = AccEcn::parse(kind, body).or(self.accecn),
            (fast_open::KIND | fast_open::EXPERIMENT, body) => {
                self.fast_open = FastOpen::parse(kind, body).or(self.fast_open);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
