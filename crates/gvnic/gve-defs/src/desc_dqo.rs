//! Descriptors of the DQO queue format (gve_desc_dqo.h), all little-endian.
//!
//! Bit fields are plain bytes and words here, with constants for their bits.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a TX descriptor of any kind.
pub const TX_DESC_BYTES: usize = 16;
/// Bytes of a TX completion.
pub const TX_COMPLETION_BYTES: usize = 8;
/// Bytes of an RX buffer descriptor.
pub const RX_BUFFER_DESC_BYTES: usize = 32;
/// Bytes of an RX completion.
pub const RX_COMPLETION_BYTES: usize = 32;

/// Offset of the byte with the kind of a TX descriptor in its low bits.
pub const TX_DTYPE_OFFSET: usize = 8;
/// Bits of the kind in that byte.
pub const TX_DTYPE_MASK: u8 = 0x1f;
/// Kind: one buffer of a packet.
#[doc(alias = "GVE_TX_PKT_DESC_DTYPE_DQO")]
pub const TX_DTYPE_PACKET: u8 = 0xc;
/// Kind: segmentation parameters of the packet that follows.
#[doc(alias = "GVE_TX_TSO_CTX_DESC_DTYPE_DQO")]
pub const TX_DTYPE_TSO_CONTEXT: u8 = 0x5;
/// Kind: metadata of the packet that follows; not needed.
#[doc(alias = "GVE_TX_GENERAL_CTX_DESC_DTYPE_DQO")]
pub const TX_DTYPE_GENERAL_CONTEXT: u8 = 0x4;

/// Packet descriptor, kind byte: the last buffer of its packet.
pub const TX_END_OF_PACKET: u8 = 1 << 5;
/// Packet descriptor, kind byte: compute the transport checksum.
pub const TX_CHECKSUM_OFFLOAD: u8 = 1 << 6;
/// Packet descriptor, kind byte: request a completion when the descriptor was read.
pub const TX_REPORT_EVENT: u8 = 1 << 7;
/// Packet descriptor: bits of the length.
pub const TX_BUF_SIZE_MASK: u16 = (1 << 14) - 1;
/// TSO context: bits of the segment size.
pub const TX_MSS_MASK: u16 = (1 << 14) - 1;
/// TSO context: smallest segment size; Linux segments packets with a smaller one in software.
#[doc(alias = "GVE_TX_MIN_TSO_MSS_DQO")]
pub const TX_MIN_MSS: u16 = 88;
/// TSO context, kind byte: segment the packet; Linux always sets it.
pub const TX_TSO: u8 = 1 << 5;

/// One buffer of a packet to send.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[doc(alias = "gve_tx_pkt_desc_dqo")]
pub struct TxPacketDesc {
    /// Address of the buffer.
    pub buf_addr: U64,
    /// Kind, and `TX_` bits.
    pub dtype_flags: u8,
    /// Reserved.
    pub reserved0: u8,
    /// Reserved.
    pub reserved1: U16,
    /// Tag that the packet's completion returns.
    pub compl_tag: U16,
    /// Bytes of the buffer, in [`TX_BUF_SIZE_MASK`].
    pub buf_size: U16,
}
const _: () = assert!(size_of::<TxPacketDesc>() == TX_DESC_BYTES);

/// Segmentation parameters of the packet that follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[doc(alias = "gve_tx_tso_context_desc_dqo")]
pub struct TxTsoContextDesc {
    /// Payload bytes of the whole packet, 24 bits.
    pub tso_total_len: [u8; 3],
    /// Metadata.
    pub flex10: u8,
    /// Payload bytes of a segment, in [`TX_MSS_MASK`].
    pub mss: U16,
    /// Bytes of all headers.
    pub header_len: u8,
    /// Metadata.
    pub flex11: u8,
    /// Kind, and [`TX_TSO`].
    pub dtype_flags: u8,
    /// Reserved.
    pub reserved: u8,
    /// Metadata.
    pub flex: [u8; 6],
}
const _: () = assert!(size_of::<TxTsoContextDesc>() == TX_DESC_BYTES);

impl TxTsoContextDesc {
    /// Returns the payload bytes of the whole packet.
    pub const fn total_len(&self) -> u32 {
        let [a, b, c] = self.tso_total_len;
        u32::from_le_bytes([a, b, c, 0])
    }
}

/// Completion of sent packets or of read descriptors.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[doc(alias = "gve_tx_compl_desc")]
pub struct TxCompletion {
    /// Queue in [`TX_COMPLETION_QUEUE_MASK`], kind, and [`TX_COMPLETION_GENERATION`].
    pub id_type_generation: U16,
    /// Tag of the packet, or ring index after the last descriptor read.
    pub tag_or_head: U16,
    /// Reserved.
    pub reserved: U32,
}
const _: () = assert!(size_of::<TxCompletion>() == TX_COMPLETION_BYTES);

/// TX completion: bits of the queue.
pub const TX_COMPLETION_QUEUE_MASK: u16 = (1 << 11) - 1;
/// TX completion: lowest bit of the kind.
pub const TX_COMPLETION_TYPE_SHIFT: u32 = 11;
/// TX completion: bits of the kind, once shifted down.
pub const TX_COMPLETION_TYPE_MASK: u16 = 7;
/// TX completion: the generation bit.
pub const TX_COMPLETION_GENERATION: u16 = 1 << 15;
/// Offset of the word with the generation bit in a TX completion.
pub const TX_COMPLETION_GENERATION_OFFSET: u64 = 0;
/// TX completion kind: a packet was sent.
#[doc(alias = "GVE_COMPL_TYPE_DQO_PKT")]
pub const TX_COMPLETION_PACKET: u16 = 2;
/// TX completion kind: descriptors were read.
#[doc(alias = "GVE_COMPL_TYPE_DQO_DESC")]
pub const TX_COMPLETION_DESC: u16 = 4;

/// One buffer posted for receiving.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[doc(alias = "gve_rx_desc_dqo")]
pub struct RxBufferDesc {
    /// Id that the completion returns.
    pub buf_id: U16,
    /// Reserved.
    pub reserved0: U16,
    /// Reserved.
    pub reserved1: U32,
    /// Address of the buffer.
    pub buf_addr: U64,
    /// Address of the header buffer, if the queue has header split.
    pub header_buf_addr: U64,
    /// Reserved.
    pub reserved2: U64,
}
const _: () = assert!(size_of::<RxBufferDesc>() == RX_BUFFER_DESC_BYTES);

/// Completion of one filled buffer.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[doc(alias = "gve_rx_compl_desc_dqo")]
pub struct RxCompletion {
    /// [`RX_RXDID`] in the low half.
    pub rxdid: u8,
    /// Bits `RX_LOOPBACK`, `RX_IPV6_EX`, `RX_ERROR`.
    pub flags: u8,
    /// Packet type in [`RX_PACKET_TYPE_MASK`], and error bits.
    pub packet_type: U16,
    /// Length in [`RX_PACKET_LEN_MASK`], and [`RX_GENERATION`].
    pub packet_len: U16,
    /// Length in [`RX_HEADER_LEN_MASK`], [`RX_RSC`] and [`RX_SPLIT_HEADER`].
    pub header_len: U16,
    /// Bits `RX_DONE` to `RX_CSUM_L4_ERR`.
    pub status: u8,
    /// More bits; not used.
    pub status_error1: u8,
    /// Reserved; if the lowest bit of the upper byte is set, `timestamp` is valid.
    pub reserved5: U16,
    /// Id of the filled buffer.
    pub buf_id: U16,
    /// Payload bytes of each segment of a coalesced packet.
    pub rsc_seg_len: U16,
    /// RSS hash.
    pub hash: U32,
    /// Reserved.
    pub reserved6: U32,
    /// Reserved.
    pub reserved7: U32,
    /// Time of receipt; not used.
    pub timestamp: U32,
}
const _: () = assert!(size_of::<RxCompletion>() == RX_COMPLETION_BYTES);

/// RX completion: the only value of `rxdid`.
pub const RX_RXDID: u8 = 1;
/// RX completion, flags: the packet was looped back by the device.
pub const RX_LOOPBACK: u8 = 1 << 0;
/// RX completion, flags: IPv6 with destination options or a routing header. Linux then ignores the checksum status.
pub const RX_IPV6_EX: u8 = 1 << 1;
/// RX completion, flags: the packet is damaged; Linux drops it.
pub const RX_ERROR: u8 = 1 << 2;
/// RX completion: bits of the packet type, an index into the map of GET_PTYPE_MAP.
pub const RX_PACKET_TYPE_MASK: u16 = (1 << 10) - 1;
/// RX completion: bits of the bytes in this packet buffer.
pub const RX_PACKET_LEN_MASK: u16 = (1 << 14) - 1;
/// RX completion: the generation bit, in the word of the length.
pub const RX_GENERATION: u16 = 1 << 14;
/// Offset of the word with the generation bit in an RX completion.
pub const RX_GENERATION_OFFSET: u64 = 4;
/// RX completion: bits of the bytes in the header buffer.
pub const RX_HEADER_LEN_MASK: u16 = (1 << 10) - 1;
/// RX completion: the packet was coalesced.
pub const RX_RSC: u16 = 1 << 10;
/// RX completion: headers are in the header buffer.
pub const RX_SPLIT_HEADER: u16 = 1 << 11;
/// RX completion, status: the descriptor is filled.
pub const RX_DONE: u8 = 1 << 0;
/// RX completion, status: the last buffer of its packet.
pub const RX_END_OF_PACKET: u8 = 1 << 1;
/// RX completion, status: the headers are longer than the header buffer.
pub const RX_HEADER_BUFFER_OVERFLOW: u8 = 1 << 2;
/// RX completion, status: the checksums were verified.
pub const RX_L3_L4_PROCESSED: u8 = 1 << 3;
/// RX completion, status: the IPv4 header checksum is wrong.
pub const RX_CSUM_IP_ERR: u8 = 1 << 4;
/// RX completion, status: the transport checksum is wrong.
pub const RX_CSUM_L4_ERR: u8 = 1 << 5;

/// Number of packet types; a type has 10 bits.
pub const PTYPES: usize = 1 << 10;
/// Network layer of a packet type.
pub mod l3_type {
    /// Not known.
    pub const UNKNOWN: u8 = 0;
    /// Known to be something else.
    pub const OTHER: u8 = 1;
    /// IPv4.
    pub const IPV4: u8 = 2;
    /// IPv6.
    pub const IPV6: u8 = 3;
}
/// Transport layer of a packet type.
pub mod l4_type {
    /// Not known.
    pub const UNKNOWN: u8 = 0;
    /// Known to be something else.
    pub const OTHER: u8 = 1;
    /// TCP.
    pub const TCP: u8 = 2;
    /// UDP.
    pub const UDP: u8 = 3;
    /// ICMP of either version.
    pub const ICMP: u8 = 4;
    /// SCTP.
    pub const SCTP: u8 = 5;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_generation_words_lie_where_their_offsets_say() {
        let mut rx = RxCompletion::read_from_bytes(&[0; RX_COMPLETION_BYTES]).unwrap();
        rx.packet_len = RX_GENERATION.into();
        let at = RX_GENERATION_OFFSET as usize;
        assert_eq!(rx.as_bytes()[at..at + 2], [0, 0x40]);
        let mut tx = TxCompletion::read_from_bytes(&[0; TX_COMPLETION_BYTES]).unwrap();
        tx.id_type_generation = TX_COMPLETION_GENERATION.into();
        let at = TX_COMPLETION_GENERATION_OFFSET as usize;
        assert_eq!(tx.as_bytes()[at..at + 2], [0, 0x80]);
    }

    #[test]
    fn both_kinds_of_tx_descriptors_have_their_kind_at_one_offset() {
        let mut packet = TxPacketDesc::read_from_bytes(&[0; TX_DESC_BYTES]).unwrap();
        packet.dtype_flags = TX_DTYPE_PACKET | TX_END_OF_PACKET;
        let kind = packet.as_bytes()[TX_DTYPE_OFFSET];
        assert_eq!(kind & TX_DTYPE_MASK, TX_DTYPE_PACKET);
        let mut context = TxTsoContextDesc::read_from_bytes(&[0; TX_DESC_BYTES]).unwrap();
        context.dtype_flags = TX_DTYPE_TSO_CONTEXT | TX_TSO;
        let kind = context.as_bytes()[TX_DTYPE_OFFSET];
        assert_eq!(kind & TX_DTYPE_MASK, TX_DTYPE_TSO_CONTEXT);
    }

    #[test]
    fn the_total_length_of_a_tso_context_has_24_bits() {
        let mut context = TxTsoContextDesc::read_from_bytes(&[0xff; TX_DESC_BYTES]).unwrap();
        assert_eq!(context.total_len(), 0xff_ffff);
        context.tso_total_len = [1, 2, 3];
        assert_eq!(context.total_len(), 0x03_0201);
    }

    #[test]
    fn fields_of_an_rx_completion_lie_where_the_driver_reads_them() {
        let mut bytes = [0; RX_COMPLETION_BYTES];
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = at as u8;
        }
        let rx = RxCompletion::read_from_bytes(&bytes).unwrap();
        assert_eq!(rx.packet_type.get() & 0xff, 2);
        assert_eq!(rx.header_len.get() & 0xff, 6);
        assert_eq!(rx.status, 8);
        assert_eq!(rx.buf_id.get() & 0xff, 12);
        assert_eq!(rx.rsc_seg_len.get() & 0xff, 14);
        assert_eq!(rx.hash.get() & 0xff, 16);
        assert_eq!(rx.timestamp.get() & 0xff, 28);
    }
}
