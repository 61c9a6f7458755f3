//! The admin queue: commands of 64 bytes and the structs that they point to (gve_adminq.h), all big-endian.

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of one entry.
pub const ENTRY_BYTES: usize = 64;
/// Bytes of an entry after opcode and status.
pub const BODY_BYTES: usize = 56;
/// Bytes of the queue in Linux: 64 entries (gve_adminq.c `gve_adminq_alloc`).
pub const ADMINQ_BYTES: u16 = 4096;

/// One command with its status.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
#[doc(alias = "gve_adminq_command")]
pub struct AdminqEntry {
    /// One of [`opcode`].
    pub opcode: U32,
    /// 0 from the driver; an [`AdminqStatus`] from the device.
    pub status: U32,
    /// The struct of the command; the remaining bytes are ignored.
    pub body: [u8; BODY_BYTES],
}
const _: () = assert!(size_of::<AdminqEntry>() == ENTRY_BYTES);
/// Offset of the status in an entry.
pub const STATUS_OFFSET: u64 = 4;

/// Opcodes of the commands.
#[doc(alias = "gve_adminq_opcodes")]
pub mod opcode {
    /// Get the device descriptor and options ([`DescribeDevice`](super::DescribeDevice)).
    pub const DESCRIBE_DEVICE: u32 = 0x1;
    /// Set the memory for indices of interrupt doorbells ([`ConfigureDeviceResources`](super::ConfigureDeviceResources)).
    pub const CONFIGURE_DEVICE_RESOURCES: u32 = 0x2;
    /// Register a queue page list; not used with RDA.
    pub const REGISTER_PAGE_LIST: u32 = 0x3;
    /// Unregister a queue page list; not used with RDA.
    pub const UNREGISTER_PAGE_LIST: u32 = 0x4;
    /// Create a TX queue ([`CreateTxQueue`](super::CreateTxQueue)).
    pub const CREATE_TX_QUEUE: u32 = 0x5;
    /// Create an RX queue ([`CreateRxQueue`](super::CreateRxQueue)).
    pub const CREATE_RX_QUEUE: u32 = 0x6;
    /// Destroy a TX queue ([`DestroyQueue`](super::DestroyQueue)).
    pub const DESTROY_TX_QUEUE: u32 = 0x7;
    /// Destroy an RX queue ([`DestroyQueue`](super::DestroyQueue)).
    pub const DESTROY_RX_QUEUE: u32 = 0x8;
    /// Stop using the memory of CONFIGURE_DEVICE_RESOURCES.
    pub const DECONFIGURE_DEVICE_RESOURCES: u32 = 0x9;
    /// Configure RSS ([`ConfigureRss`](super::ConfigureRss)).
    pub const CONFIGURE_RSS: u32 = 0xa;
    /// Set a parameter such as the MTU ([`SetDriverParameter`](super::SetDriverParameter)).
    pub const SET_DRIVER_PARAMETER: u32 = 0xb;
    /// Set the memory for statistics ([`ReportStats`](super::ReportStats)).
    pub const REPORT_STATS: u32 = 0xc;
    /// Get the link speed ([`ReportLinkSpeed`](super::ReportLinkSpeed)).
    pub const REPORT_LINK_SPEED: u32 = 0xd;
    /// Get the map of packet types ([`GetPtypeMap`](super::GetPtypeMap)).
    pub const GET_PTYPE_MAP: u32 = 0xe;
    /// Report version and capabilities of the driver ([`VerifyDriverCompatibility`](super::VerifyDriverCompatibility)).
    pub const VERIFY_DRIVER_COMPATIBILITY: u32 = 0xf;
    /// Get the flow rules ([`QueryFlowRules`](super::QueryFlowRules)).
    pub const QUERY_FLOW_RULES: u32 = 0x10;
    /// Get the time of the NIC's clock; this device has none.
    pub const REPORT_NIC_TIMESTAMP: u32 = 0x11;
    /// Get the RSS configuration ([`QueryRss`](super::QueryRss)).
    pub const QUERY_RSS: u32 = 0x12;
    /// Execute a command too long for an entry ([`ExtendedCommand`](super::ExtendedCommand)).
    pub const EXTENDED_COMMAND: u32 = 0xff;
    /// In an extended command: add or delete flow rules ([`ConfigureFlowRule`](super::ConfigureFlowRule)).
    pub const CONFIGURE_FLOW_RULE: u32 = 0x101;
}

/// Status of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "gve_adminq_statuses")]
pub struct AdminqStatus(pub u32);

impl AdminqStatus {
    /// Not executed yet.
    pub const UNSET: Self = Self(0);
    /// Success.
    pub const PASSED: Self = Self(1);
    /// The object already exists.
    pub const ALREADY_EXISTS: Self = Self(0xffff_fff1);
    /// Another command is required first.
    pub const FAILED_PRECONDITION: Self = Self(0xffff_fff5);
    /// A value is invalid.
    pub const INVALID_ARGUMENT: Self = Self(0xffff_fff7);
    /// The object does not exist.
    pub const NOT_FOUND: Self = Self(0xffff_fff8);
    /// The limit is reached.
    pub const RESOURCE_EXHAUSTED: Self = Self(0xffff_fffc);
    /// The device does not support the command or its arguments; EOPNOTSUPP in Linux.
    pub const UNIMPLEMENTED: Self = Self(0xffff_fffe);
}

/// Declares a struct of an admin command with its size.
macro_rules! command {
    ($(#[$meta:meta])* $name:ident, $size:literal, { $($(#[$field_meta:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
        #[repr(C)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
        }
        const _: () = assert!(size_of::<$name>() == $size);
    };
}

command!(
    /// DESCRIBE_DEVICE: the device writes descriptor and options.
    DescribeDevice, 16, {
        /// Address to write to.
        device_descriptor_addr: U64,
        /// Descriptor version that the driver supports.
        device_descriptor_version: U32,
        /// Bytes available there.
        available_length: U32,
    }
);
command!(
    /// CONFIGURE_DEVICE_RESOURCES: for notification block i, the device writes the index of its interrupt doorbell
    /// (32 bits) to `irq_db_addr + i * irq_db_stride`.
    ConfigureDeviceResources, 40, {
        /// Event counters, 32 bits each; DQO does not use them.
        counter_array: U64,
        /// Address of the first doorbell index.
        irq_db_addr: U64,
        /// Number of event counters in `counter_array`.
        num_counters: U32,
        /// Number of notification blocks.
        num_irq_dbs: U32,
        /// Bytes from one doorbell index to the next.
        irq_db_stride: U32,
        /// MSI-X vector of block 0.
        ntfy_blk_msix_base_idx: U32,
        /// [`QUEUE_FORMAT_DQO_RDA`] and others.
        queue_format: u8,
        /// Padding.
        padding: [u8; 7],
    }
);
command!(
    /// CREATE_TX_QUEUE.
    CreateTxQueue, 48, {
        /// Number of the queue.
        queue_id: U32,
        /// Reserved.
        reserved: U32,
        /// Address to which the device writes [`QueueResources`].
        queue_resources_addr: U64,
        /// Address of the descriptor ring.
        tx_ring_addr: U64,
        /// [`RAW_ADDRESSING_QPL_ID`].
        queue_page_list_id: U32,
        /// Notification block.
        ntfy_id: U32,
        /// Address of the completion ring.
        tx_comp_ring_addr: U64,
        /// Entries of the descriptor ring.
        tx_ring_size: U16,
        /// Entries of the completion ring.
        tx_comp_ring_size: U16,
        /// Padding.
        padding: [u8; 4],
    }
);
command!(
    /// CREATE_RX_QUEUE.
    CreateRxQueue, 56, {
        /// Number of the queue.
        queue_id: U32,
        /// Number of the queue again.
        index: U32,
        /// Reserved.
        reserved: U32,
        /// Notification block.
        ntfy_id: U32,
        /// Address to which the device writes [`QueueResources`].
        queue_resources_addr: U64,
        /// Address of the completion ring.
        rx_desc_ring_addr: U64,
        /// Address of the buffer ring.
        rx_data_ring_addr: U64,
        /// [`RAW_ADDRESSING_QPL_ID`].
        queue_page_list_id: U32,
        /// Entries of the completion ring.
        rx_ring_size: U16,
        /// Bytes of each packet buffer.
        packet_buffer_size: U16,
        /// Entries of the buffer ring.
        rx_buff_ring_size: U16,
        /// Not 0: coalesce segments.
        enable_rsc: u8,
        /// Padding.
        padding1: u8,
        /// Bytes of each header buffer; 0 means no header split.
        header_buffer_size: U16,
        /// Padding.
        padding2: [u8; 2],
    }
);
command!(
    /// Answer to the creation of a queue.
    QueueResources, 8, {
        /// Index of the queue's doorbell.
        db_index: U32,
        /// Index of the queue's event counter; DQO does not use it.
        counter_index: U32,
    }
);
command!(
    /// DESTROY_TX_QUEUE and DESTROY_RX_QUEUE: the device does not access memory of the queue after its answer.
    DestroyQueue, 4, {
        /// Number of the queue.
        queue_id: U32,
    }
);
command!(
    /// SET_DRIVER_PARAMETER. Linux 7.2 sends none.
    SetDriverParameter, 16, {
        /// [`PARAMETER_MTU`] and others.
        parameter_type: U32,
        /// Reserved.
        reserved: [u8; 4],
        /// Value.
        parameter_value: U64,
    }
);
command!(
    /// REPORT_STATS.
    ReportStats, 24, {
        /// Bytes of the area; 0 turns reports off.
        stats_report_len: U64,
        /// Address of the area: a [`StatsReport`], then [`Stat`]s.
        stats_report_addr: U64,
        /// Milliseconds between reports.
        interval: U64,
    }
);
command!(
    /// REPORT_LINK_SPEED: the device writes the speed in Mb/s (64 bits).
    ReportLinkSpeed, 8, {
        /// Address to write to.
        link_speed_address: U64,
    }
);
command!(
    /// GET_PTYPE_MAP: the device writes a [`PtypeEntry`] for each of 1,024 packet types.
    GetPtypeMap, 16, {
        /// Bytes available there.
        ptype_map_len: U64,
        /// Address to write to.
        ptype_map_addr: U64,
    }
);
command!(
    /// Layers of a packet type.
    PtypeEntry, 2, {
        /// One of [`l3_type`](crate::desc_dqo::l3_type).
        l3_type: u8,
        /// One of [`l4_type`](crate::desc_dqo::l4_type).
        l4_type: u8,
    }
);
command!(
    /// VERIFY_DRIVER_COMPATIBILITY.
    VerifyDriverCompatibility, 16, {
        /// Bytes of the [`DriverInfo`].
        driver_info_len: U64,
        /// Address of the [`DriverInfo`].
        driver_info_addr: U64,
    }
);
command!(
    /// Operating system, versions and capabilities of a driver.
    DriverInfo, 304, {
        /// Operating system; 1 is Linux.
        os_type: u8,
        /// Major version of the driver.
        driver_major: u8,
        /// Minor version of the driver.
        driver_minor: u8,
        /// Patch version of the driver.
        driver_sub: u8,
        /// Major version of the kernel.
        os_version_major: U32,
        /// Minor version of the kernel.
        os_version_minor: U32,
        /// Patch version of the kernel.
        os_version_sub: U32,
        /// Capability bits; bit 3 of the first word is [`CAPABILITY_DQO_RDA`].
        driver_capability_flags: [U64; 4],
        /// Version of the kernel as text.
        os_version_str1: [u8; 128],
        /// Version of the kernel as text.
        os_version_str2: [u8; 128],
    }
);
command!(
    /// QUERY_FLOW_RULES.
    QueryFlowRules, 24, {
        /// [`FLOW_RULE_QUERY_RULES`] and others.
        opcode: U16,
        /// Padding.
        padding: [u8; 2],
        /// First location of the answer.
        starting_rule_id: U32,
        /// Bytes available for the answer.
        available_length: U64,
        /// Address of the answer: [`QueriedFlowRules`], then rules or locations.
        rule_descriptor_addr: U64,
    }
);
command!(
    /// Header of the answer to QUERY_FLOW_RULES.
    QueriedFlowRules, 16, {
        /// Number of rules in the device.
        num_flow_rules: U32,
        /// Maximum number of rules.
        max_flow_rules: U32,
        /// Number of rules or locations in this answer.
        num_queried_rules: U32,
        /// Exact bytes of the answer, this header included: Linux checks it.
        total_length: U32,
    }
);
command!(
    /// One rule of an answer to QUERY_FLOW_RULES.
    QueriedFlowRule, 88, {
        /// Location of the rule.
        location: U32,
        /// The rule.
        flow_rule: FlowRule,
    }
);
command!(
    /// A flow rule: match and RX queue.
    FlowRule, 84, {
        /// One of [`flow_type`].
        flow_type: U16,
        /// The RX queue.
        action: U16,
        /// Values to compare with.
        key: FlowSpec,
        /// Bits that are compared.
        mask: FlowSpec,
    }
);
command!(
    /// Values or mask of a flow rule, in network byte order; an IPv4 address is in the first four bytes.
    FlowSpec, 40, {
        /// Source address.
        src_ip: [u8; 16],
        /// Destination address.
        dst_ip: [u8; 16],
        /// Source port; for AH and ESP, `src_port` and `dst_port` form the SPI.
        src_port: U16,
        /// Destination port.
        dst_port: U16,
        /// Type of service or traffic class.
        tos: u8,
        /// Padding.
        padding: [u8; 3],
    }
);
command!(
    /// CONFIGURE_FLOW_RULE, in an extended command.
    ConfigureFlowRule, 92, {
        /// [`FLOW_RULE_ADD`] and others.
        opcode: U16,
        /// Padding.
        padding: [u8; 2],
        /// The rule.
        rule: FlowRule,
        /// Location of the rule; of several rules that match, the lowest location decides.
        location: U32,
    }
);
command!(
    /// CONFIGURE_RSS. A field of 0 leaves its part unchanged: hash types, algorithm, key or table.
    ConfigureRss, 24, {
        /// Bits `1 <<` one of [`rss_hash`].
        hash_types: U16,
        /// [`RSS_TOEPLITZ`].
        hash_alg: u8,
        /// Reserved.
        reserved: u8,
        /// Bytes of the key.
        hash_key_size: U16,
        /// Entries of the table.
        hash_lut_size: U16,
        /// Address of the key.
        hash_key_addr: U64,
        /// Address of the table: queue numbers of 32 bits.
        hash_lut_addr: U64,
    }
);
command!(
    /// QUERY_RSS.
    QueryRss, 16, {
        /// Bytes available for the answer.
        available_length: U64,
        /// Address of the answer: [`QueriedRss`], key, table.
        rss_descriptor_addr: U64,
    }
);
command!(
    /// Header of the answer to QUERY_RSS.
    QueriedRss, 8, {
        /// Bytes of this header, the key and the table.
        total_length: U32,
        /// Bits `1 <<` one of [`rss_hash`].
        hash_types: U16,
        /// [`RSS_TOEPLITZ`].
        hash_alg: u8,
        /// Reserved.
        reserved: u8,
    }
);
command!(
    /// EXTENDED_COMMAND.
    ExtendedCommand, 16, {
        /// [`opcode::CONFIGURE_FLOW_RULE`].
        inner_opcode: U32,
        /// Bytes of its struct.
        inner_length: U32,
        /// Address of its struct.
        inner_command_addr: U64,
    }
);
command!(
    /// Header of the statistics area.
    StatsReport, 8, {
        /// Number of times that the driver has written its part.
        written_count: U64,
    }
);
command!(
    /// One statistic. Those of the driver come first; those of the device, four for each RX queue, are at the end of the area.
    Stat, 16, {
        /// One of [`stat_name`].
        stat_name: U32,
        /// Number of the queue.
        queue_id: U32,
        /// Value of the statistic.
        value: U64,
    }
);

/// `queue_format`: DQO with raw addresses.
#[doc(alias = "GVE_DQO_RDA_FORMAT")]
pub const QUEUE_FORMAT_DQO_RDA: u8 = 0x3;
/// `queue_page_list_id`: none, addresses are raw.
#[doc(alias = "GVE_RAW_ADDRESSING_QPL_ID")]
pub const RAW_ADDRESSING_QPL_ID: u32 = 0xffff_ffff;
/// `parameter_type`: MTU.
#[doc(alias = "GVE_SET_PARAM_MTU")]
pub const PARAMETER_MTU: u32 = 1;
/// Driver capability: DQO with raw addresses.
pub const CAPABILITY_DQO_RDA: u64 = 1 << 3;
/// Flow rules: add one.
pub const FLOW_RULE_ADD: u16 = 0;
/// Flow rules: delete one.
pub const FLOW_RULE_DEL: u16 = 1;
/// Flow rules: delete all.
pub const FLOW_RULE_RESET: u16 = 2;
/// Query: the rules themselves.
pub const FLOW_RULE_QUERY_RULES: u16 = 0;
/// Query: only their locations, 32 bits each.
pub const FLOW_RULE_QUERY_IDS: u16 = 1;
/// Query: only their number.
pub const FLOW_RULE_QUERY_STATS: u16 = 2;
/// `hash_alg`: Toeplitz (linux include/linux/ethtool.h `ETH_RSS_HASH_TOP`).
pub const RSS_TOEPLITZ: u8 = 1;

/// Kinds of packets of a flow rule.
#[doc(alias = "gve_adminq_flow_type")]
pub mod flow_type {
    /// TCP over IPv4.
    pub const TCPV4: u16 = 0;
    /// UDP over IPv4.
    pub const UDPV4: u16 = 1;
    /// SCTP over IPv4.
    pub const SCTPV4: u16 = 2;
    /// AH over IPv4.
    pub const AHV4: u16 = 3;
    /// ESP over IPv4.
    pub const ESPV4: u16 = 4;
    /// TCP over IPv6.
    pub const TCPV6: u16 = 5;
    /// UDP over IPv6.
    pub const UDPV6: u16 = 6;
    /// SCTP over IPv6.
    pub const SCTPV6: u16 = 7;
    /// AH over IPv6.
    pub const AHV6: u16 = 8;
    /// ESP over IPv6.
    pub const ESPV6: u16 = 9;
}

/// RSS hash types, as bit numbers.
#[doc(alias = "gve_rss_hash_type")]
pub mod rss_hash {
    /// Addresses of IPv4.
    pub const IPV4: u32 = 0;
    /// Addresses and ports of TCP over IPv4.
    pub const TCPV4: u32 = 1;
    /// Addresses of IPv6.
    pub const IPV6: u32 = 2;
    /// Addresses of IPv6 with extension headers.
    pub const IPV6_EX: u32 = 3;
    /// Addresses and ports of TCP over IPv6.
    pub const TCPV6: u32 = 4;
    /// Addresses and ports of TCP over IPv6 with extension headers.
    pub const TCPV6_EX: u32 = 5;
    /// Addresses and ports of UDP over IPv4.
    pub const UDPV4: u32 = 6;
    /// Addresses and ports of UDP over IPv6.
    pub const UDPV6: u32 = 7;
    /// Addresses and ports of UDP over IPv6 with extension headers.
    pub const UDPV6_EX: u32 = 8;
}

/// Names of the device's statistics; names below 65 are statistics of the driver.
#[doc(alias = "gve_stat_names")]
pub mod stat_name {
    /// Frames of the queue dropped.
    pub const RX_QUEUE_DROP_CNT: u32 = 65;
    /// Frames of the queue that arrived when no buffer was posted.
    pub const RX_NO_BUFFERS_POSTED: u32 = 66;
    /// Frames of the queue longer than its maximum.
    pub const RX_DROPS_PACKET_OVER_MRU: u32 = 67;
    /// Frames of the queue with a wrong checksum.
    pub const RX_DROPS_INVALID_CHECKSUM: u32 = 68;
    /// Number of statistics of the device for each RX queue.
    pub const PER_RX_QUEUE: usize = 4;
}
