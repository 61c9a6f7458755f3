//! TCP headers (RFC 9293 3.1).

use zerocopy::byteorder::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::parse_error::ParseError;
use crate::tcp_options::TcpOptions;

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

    /// Parses the header at the start of `segment`. Does not verify the checksum, which covers payload
    /// that may be unreadable.
    ///
    /// # Errors
    /// [`ParseError::Truncated`] if there are fewer than [`TcpHeader::LEN`] bytes,
    /// [`ParseError::BadTcpOffset`] if the data offset is below 5 or past the end of `segment`,
    /// [`ParseError::BadTcpOptions`].
    #[inline(always)]
    pub fn parse(segment: &[u8]) -> Result<Self, ParseError> {
        let (raw, _) = Raw::ref_from_prefix(segment).map_err(|_| ParseError::Truncated)?;
        let header_len = Self::announced_len(raw.data_offset)?;
        let options = segment
            .get(Self::LEN..header_len)
            .ok_or(ParseError::BadTcpOffset)?;
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

    /// Returns the bytes that [`emit`](Self::emit) writes: the fixed header and `options`.
    pub fn emit_len(&self) -> usize {
        Self::LEN + self.options.emit_len()
    }

    /// Writes header and options to the start of `out` with a checksum field of 0; returns the bytes
    /// written (and ignores `header_len`).
    ///
    /// # Panics
    /// If `out` is shorter than [`emit_len`](Self::emit_len).
    pub fn emit(&self, out: &mut [u8]) -> usize {
        let Self {
            src_port,
            dst_port,
            seq,
            ack,
            flags,
            window,
            urgent,
            ref options,
            header_len: _,
        } = *self;
        let len = Self::LEN + options.emit(&mut out[Self::LEN..]);
        let raw = Raw {
            src_port: src_port.into(),
            dst_port: dst_port.into(),
            seq: seq.into(),
            ack: ack.into(),
            // At most 60 / 4 = 15, which fits the four bits.
            data_offset: (len as u8 / 4) << 4 | u8::from(flags.contains(TcpFlags::AE)),
            flags: flags.low_byte(),
            window: window.into(),
            checksum: 0.into(),
            urgent: urgent.into(),
        };
        out[..Self::LEN].copy_from_slice(raw.as_bytes());
        len
    }
}
