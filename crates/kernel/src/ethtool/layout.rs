//! The structures of the ethtool ioctl for flow rules and RSS (linux include/uapi/linux/ethtool.h).

use zerocopy::byteorder::network_endian::U16;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::sys::ethtool::{
    RXFH_INDIR_SIZE, RXFH_KEY_SIZE, RXFH_LEN, RXNFC_LEN, RXNFC_RULE_COUNT, RXNFC_RULE_LOCATIONS,
};

/// Size of `union ethtool_flow_union`.
pub(super) const FLOW_UNION_LEN: usize = 52;

/// `struct ethtool_rx_flow_spec`: one rule.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct FlowSpec {
    pub(super) flow_type: u32,
    /// Values to match the fields of a packet with.
    pub(super) value: [u8; FLOW_UNION_LEN],
    pub(super) value_extension: [u8; 20],
    /// Bits of the values that are compared.
    pub(super) mask: [u8; FLOW_UNION_LEN],
    pub(super) mask_extension: [u8; 20],
    padding: [u8; 4],
    pub(super) ring_cookie: u64,
    pub(super) location: u32,
    padding_at_end: u32,
}
const _: () = assert!(size_of::<FlowSpec>() == 168);
const _: () = assert!(std::mem::offset_of!(FlowSpec, value) == 4);
const _: () = assert!(std::mem::offset_of!(FlowSpec, mask) == 76);
const _: () = assert!(std::mem::offset_of!(FlowSpec, ring_cookie) == 152);
const _: () = assert!(std::mem::offset_of!(FlowSpec, location) == 160);

/// `struct ethtool_rxnfc`: a command on flow rules.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct RxClassifier {
    pub(super) command: u32,
    pub(super) flow_type: u32,
    pub(super) data: u64,
    pub(super) spec: FlowSpec,
    /// `rule_cnt`, or `rss_context` in commands on one rule.
    pub(super) count_or_context: u32,
    /// Padding; the ioctl that lists rules writes the first location to it.
    tail: [u8; 4],
}
const _: () = assert!(size_of::<RxClassifier>() == RXNFC_LEN);
const _: () = assert!(std::mem::offset_of!(RxClassifier, spec) == 16);
const _: () = assert!(std::mem::offset_of!(RxClassifier, count_or_context) == RXNFC_RULE_COUNT);
const _: () = assert!(std::mem::offset_of!(RxClassifier, tail) == RXNFC_RULE_LOCATIONS);

impl RxClassifier {
    /// Returns a command with all other fields 0.
    pub(super) fn new(command: u32) -> Self {
        Self {
            command,
            ..Self::new_zeroed()
        }
    }
}

/// `struct ethtool_tcpip4_spec` and `struct ethtool_tcpip6_spec`, which differ only in the length of an address.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct TcpSpec<const ADDRESS_LEN: usize> {
    pub(super) source: [u8; ADDRESS_LEN],
    pub(super) destination: [u8; ADDRESS_LEN],
    pub(super) source_port: U16,
    pub(super) destination_port: U16,
    /// Type of service, or traffic class.
    pub(super) tos: u8,
    pub(super) padding: [u8; 3],
}
const _: () = assert!(size_of::<TcpSpec<4>>() == 16);
const _: () = assert!(size_of::<TcpSpec<16>>() == 40);

/// `struct ethtool_rxfh` without its array.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct RssHeader {
    pub(super) command: u32,
    pub(super) context: u32,
    pub(super) table_entries: u32,
    pub(super) key_len: u32,
    pub(super) hash_function: u8,
    pub(super) input_transform: u8,
    reserved: [u8; 2],
    reserved2: u32,
}
const _: () = assert!(size_of::<RssHeader>() == RXFH_LEN);
const _: () = assert!(std::mem::offset_of!(RssHeader, table_entries) == RXFH_INDIR_SIZE);
const _: () = assert!(std::mem::offset_of!(RssHeader, key_len) == RXFH_KEY_SIZE);

impl RssHeader {
    /// Returns a command on `context` with all other fields 0.
    pub(super) fn new(command: u32, context: u32) -> Self {
        Self {
            command,
            context,
            ..Self::new_zeroed()
        }
    }
}
