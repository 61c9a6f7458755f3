//! The device descriptor and the options after it (gve_adminq.h), all big-endian.

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of [`DeviceDescriptor`] that a driver requests.
#[doc(alias = "GVE_ADMINQ_DEVICE_DESCRIPTOR_VERSION")]
pub const DEVICE_DESCRIPTOR_VERSION: u32 = 1;

/// Description of the device, at the start of the answer to DESCRIBE_DEVICE.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[doc(alias = "gve_device_descriptor")]
pub struct DeviceDescriptor {
    /// Maximum pages of queue page lists; 0, because RDA has none.
    pub max_registered_pages: U64,
    /// Reserved.
    pub reserved1: U16,
    /// Default entries of a TX ring.
    pub tx_queue_entries: U16,
    /// Default entries of an RX ring.
    pub rx_queue_entries: U16,
    /// Number of queue pairs that the driver creates by default.
    pub default_num_queues: U16,
    /// Default MTU.
    pub mtu: U16,
    /// Number of event counters; must not be 0 for the driver, but DQO does not use them.
    pub counters: U16,
    /// Pages of a TX queue page list; 0.
    pub tx_pages_per_qpl: U16,
    /// Pages of an RX queue page list; 0.
    pub rx_pages_per_qpl: U16,
    /// Hardware address.
    pub mac: [u8; 6],
    /// Number of options that follow.
    pub num_device_options: U16,
    /// Bytes of this descriptor and all options.
    pub total_length: U16,
    /// Reserved.
    pub reserved2: [u8; 6],
}
const _: () = assert!(size_of::<DeviceDescriptor>() == 40);

/// Header of an option.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[doc(alias = "gve_device_option")]
pub struct OptionHeader {
    /// One of the `ID_` constants of this module.
    pub option_id: U16,
    /// Bytes of the body.
    pub option_length: U16,
    /// Features that a driver must support to use the option; 0 in all options that Linux knows.
    pub required_features_mask: U32,
}
const _: () = assert!(size_of::<OptionHeader>() == 8);

/// Option: queues in DQO format with raw addresses.
#[doc(alias = "GVE_DEV_OPT_ID_DQO_RDA")]
pub const ID_DQO_RDA: u16 = 0x4;
/// Option: ring sizes can be set.
#[doc(alias = "GVE_DEV_OPT_ID_MODIFY_RING")]
pub const ID_MODIFY_RING: u16 = 0x6;
/// Option: jumbo frames.
#[doc(alias = "GVE_DEV_OPT_ID_JUMBO_FRAMES")]
pub const ID_JUMBO_FRAMES: u16 = 0x8;
/// Option: sizes of RX buffers and header split.
#[doc(alias = "GVE_DEV_OPT_ID_BUFFER_SIZES")]
pub const ID_BUFFER_SIZES: u16 = 0xa;
/// Option: flow rules.
#[doc(alias = "GVE_DEV_OPT_ID_FLOW_STEERING")]
pub const ID_FLOW_STEERING: u16 = 0xb;
/// Option: the device stores the RSS key and table and can be queried for them.
#[doc(alias = "GVE_DEV_OPT_ID_RSS_CONFIG")]
pub const ID_RSS_CONFIG: u16 = 0xe;

/// Feature: ring sizes can be set.
#[doc(alias = "GVE_SUP_MODIFY_RING_MASK")]
pub const FEATURE_MODIFY_RING: u32 = 1 << 0;
/// Feature: jumbo frames.
#[doc(alias = "GVE_SUP_JUMBO_FRAMES_MASK")]
pub const FEATURE_JUMBO_FRAMES: u32 = 1 << 2;
/// Feature: buffer sizes and header split.
#[doc(alias = "GVE_SUP_BUFFER_SIZES_MASK")]
pub const FEATURE_BUFFER_SIZES: u32 = 1 << 4;
/// Feature: flow rules.
#[doc(alias = "GVE_SUP_FLOW_STEERING_MASK")]
pub const FEATURE_FLOW_STEERING: u32 = 1 << 5;
/// Feature: RSS key and table in the device.
#[doc(alias = "GVE_SUP_RSS_CONFIG_MASK")]
pub const FEATURE_RSS_CONFIG: u32 = 1 << 7;
/// All features of this device. Linux uses a feature only if the mask in the DQO RDA option has it, too.
pub const FEATURES: u32 = FEATURE_MODIFY_RING
    | FEATURE_JUMBO_FRAMES
    | FEATURE_BUFFER_SIZES
    | FEATURE_FLOW_STEERING
    | FEATURE_RSS_CONFIG;

/// Body of [`ID_DQO_RDA`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DqoRda {
    /// Features.
    pub supported_features_mask: U32,
    /// Reserved.
    pub reserved: U32,
}
const _: () = assert!(size_of::<DqoRda>() == 8);

/// Body of [`ID_MODIFY_RING`]; sizes are powers of two.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ModifyRing {
    /// Features.
    pub supported_features_mask: U32,
    /// Most entries of an RX ring.
    pub max_rx_ring_size: U16,
    /// Most entries of a TX ring.
    pub max_tx_ring_size: U16,
    /// Fewest entries of an RX ring.
    pub min_rx_ring_size: U16,
    /// Fewest entries of a TX ring.
    pub min_tx_ring_size: U16,
}
const _: () = assert!(size_of::<ModifyRing>() == 12);

/// Body of [`ID_JUMBO_FRAMES`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct JumboFrames {
    /// Features.
    pub supported_features_mask: U32,
    /// Largest MTU.
    pub max_mtu: U16,
    /// Padding.
    pub padding: [u8; 2],
}
const _: () = assert!(size_of::<JumboFrames>() == 8);

/// Body of [`ID_BUFFER_SIZES`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct BufferSizes {
    /// Features.
    pub supported_features_mask: U32,
    /// Bytes of the largest packet buffer.
    pub packet_buffer_size: U16,
    /// Bytes of a header buffer; header split is supported if not 0.
    pub header_buffer_size: U16,
}
const _: () = assert!(size_of::<BufferSizes>() == 8);

/// Body of [`ID_FLOW_STEERING`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct FlowSteering {
    /// Features.
    pub supported_features_mask: U32,
    /// Reserved.
    pub reserved: U32,
    /// Maximum number of flow rules.
    pub max_flow_rules: U32,
}
const _: () = assert!(size_of::<FlowSteering>() == 12);

/// Body of [`ID_RSS_CONFIG`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RssConfig {
    /// Features.
    pub supported_features_mask: U32,
    /// Bytes of the key.
    pub hash_key_size: U16,
    /// Entries of the table.
    pub hash_lut_size: U16,
}
const _: () = assert!(size_of::<RssConfig>() == 8);

/// Default entries of a ring.
pub const DEFAULT_RING_ENTRIES: u16 = 1024;
/// Most entries of a ring.
pub const MAX_RING_ENTRIES: u16 = 4096;
/// Fewest entries of a ring.
pub const MIN_RING_ENTRIES: u16 = 256;
/// Largest packet buffer a driver may post, in bytes.
pub const PACKET_BUFFER_BYTES: u16 = 4096;
/// Smallest packet buffer a driver may post, in bytes (gve.h `GVE_DEFAULT_RX_BUFFER_SIZE`).
pub const MIN_PACKET_BUFFER_BYTES: u16 = 2048;
/// Bytes of a header buffer: enough for Ethernet, IPv6, all TCP options and some extension headers.
pub const HEADER_BUFFER_BYTES: u16 = 256;
/// Maximum number of flow rules in the device.
pub const MAX_FLOW_RULES: u32 = 64;
/// Bytes of the RSS key (gve.h `GVE_RSS_KEY_SIZE`).
pub const RSS_KEY_BYTES: u16 = 40;
/// Entries of the RSS table (gve.h `GVE_RSS_INDIR_SIZE`).
pub const RSS_LUT_ENTRIES: u16 = 128;
