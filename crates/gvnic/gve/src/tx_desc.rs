//! TX descriptors, parsed from one copy.

use gve_defs::desc_dqo::{
    TX_BUF_SIZE_MASK, TX_CHECKSUM_OFFLOAD, TX_DESC_BYTES, TX_DTYPE_GENERAL_CONTEXT, TX_DTYPE_MASK,
    TX_DTYPE_OFFSET, TX_DTYPE_PACKET, TX_DTYPE_TSO_CONTEXT, TX_END_OF_PACKET, TX_MSS_MASK,
    TX_REPORT_EVENT, TxPacketDesc, TxTsoContextDesc,
};
use zerocopy::FromBytes;

use crate::env::{GuestAddr, GuestRange};

/// One descriptor of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TxDesc {
    /// A buffer of a packet.
    Packet(TxBuffer),
    /// The packet that follows is a super-packet.
    TsoContext(TsoContext),
    /// Metadata of the packet that follows; not needed.
    GeneralContext,
    /// Something else.
    Unknown,
}

/// A buffer of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TxBuffer {
    /// Address range, at most 16,383 bytes.
    pub(crate) range: GuestRange,
    /// Tag that the packet's completion returns.
    pub(crate) tag: u16,
    /// This is the last buffer of the packet.
    pub(crate) end_of_packet: bool,
    /// The device must complete the transport checksum.
    pub(crate) checksum: bool,
    /// The driver requests a completion when the descriptor was read.
    pub(crate) report: bool,
}

/// Segmentation parameters of a super-packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TsoContext {
    /// Payload bytes of the whole packet.
    pub(crate) total_len: u32,
    /// Payload bytes of a segment.
    pub(crate) mss: u16,
    /// Bytes of all headers.
    pub(crate) header_len: u8,
}

impl TxDesc {
    /// Parses a descriptor; never fails.
    #[inline]
    pub(crate) fn parse(bytes: &[u8; TX_DESC_BYTES]) -> Self {
        match bytes[TX_DTYPE_OFFSET] & TX_DTYPE_MASK {
            TX_DTYPE_PACKET => TxPacketDesc::read_from_bytes(bytes)
                .map_or(Self::Unknown, |desc| Self::Packet(TxBuffer::new(&desc))),
            TX_DTYPE_TSO_CONTEXT => TxTsoContextDesc::read_from_bytes(bytes)
                .map_or(Self::Unknown, |desc| {
                    Self::TsoContext(TsoContext::new(&desc))
                }),
            TX_DTYPE_GENERAL_CONTEXT => Self::GeneralContext,
            _ => Self::Unknown,
        }
    }
}

impl TxBuffer {
    #[inline]
    fn new(desc: &TxPacketDesc) -> Self {
        let len = desc.buf_size.get() & TX_BUF_SIZE_MASK;
        Self {
            range: GuestRange {
                addr: GuestAddr(desc.buf_addr.get()),
                len: len.into(),
            },
            tag: desc.compl_tag.get(),
            end_of_packet: desc.dtype_flags & TX_END_OF_PACKET != 0,
            checksum: desc.dtype_flags & TX_CHECKSUM_OFFLOAD != 0,
            report: desc.dtype_flags & TX_REPORT_EVENT != 0,
        }
    }
}

impl TsoContext {
    fn new(desc: &TxTsoContextDesc) -> Self {
        Self {
            total_len: desc.total_len(),
            mss: desc.mss.get() & TX_MSS_MASK,
            header_len: desc.header_len,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_descriptor_has_its_bits() {
        let mut bytes = [0; TX_DESC_BYTES];
        bytes[..8].copy_from_slice(&0x1122_3344_5566_7788u64.to_le_bytes());
        bytes[8] = TX_DTYPE_PACKET | TX_END_OF_PACKET | TX_REPORT_EVENT;
        bytes[12..14].copy_from_slice(&0x7abcu16.to_le_bytes());
        bytes[14..16].copy_from_slice(&0xffffu16.to_le_bytes());
        let TxDesc::Packet(buffer) = TxDesc::parse(&bytes) else {
            panic!("not a packet descriptor")
        };
        assert_eq!(buffer.range.addr, GuestAddr(0x1122_3344_5566_7788));
        assert_eq!(buffer.range.len, 16_383);
        assert_eq!(buffer.tag, 0x7abc);
        assert!(buffer.end_of_packet && buffer.report && !buffer.checksum);
    }

    #[test]
    fn a_tso_context_keeps_to_its_bits() {
        let mut bytes = [0xff; TX_DESC_BYTES];
        bytes[8] = TX_DTYPE_TSO_CONTEXT;
        let context = TsoContext {
            total_len: 0xff_ffff,
            mss: 16_383,
            header_len: 255,
        };
        assert_eq!(TxDesc::parse(&bytes), TxDesc::TsoContext(context));
    }

    #[test]
    fn other_kinds_are_unknown() {
        for kind in (0..32).filter(|kind| ![0x4, 0x5, 0xc].contains(kind)) {
            let mut bytes = [0; TX_DESC_BYTES];
            bytes[8] = kind | 0xe0;
            assert_eq!(TxDesc::parse(&bytes), TxDesc::Unknown, "{kind:#x}");
        }
    }
}
