//! Commands that describe the device to the driver, and the driver to the device.

use gve_defs::adminq::{
    AdminqStatus, CAPABILITY_DQO_RDA, DescribeDevice, DriverInfo, GetPtypeMap, PARAMETER_MTU,
    PtypeEntry, ReportLinkSpeed, SetDriverParameter, VerifyDriverCompatibility,
};
use gve_defs::desc_dqo::PTYPES;
use gve_defs::device_option::{
    BufferSizes, DEFAULT_RING_ENTRIES, DEVICE_DESCRIPTOR_VERSION, DeviceDescriptor, DqoRda,
    FEATURE_BUFFER_SIZES, FEATURE_FLOW_STEERING, FEATURE_JUMBO_FRAMES, FEATURE_MODIFY_RING,
    FEATURE_RSS_CONFIG, FEATURES, FlowSteering, ID_BUFFER_SIZES, ID_DQO_RDA, ID_FLOW_STEERING,
    ID_JUMBO_FRAMES, ID_MODIFY_RING, ID_RSS_CONFIG, JumboFrames, MAX_RING_ENTRIES,
    MIN_RING_ENTRIES, ModifyRing, OptionHeader, PACKET_BUFFER_BYTES, RSS_KEY_BYTES,
    RSS_LUT_ENTRIES, RssConfig,
};
use zerocopy::{Immutable, IntoBytes};

use super::{answer, answer_within, read_argument};
use crate::config::{Config, FLOW_RULES, HEADER_BUFFER, MIN_MTU};
use crate::device::Gve;
use crate::env::GuestMemory;
use crate::rx_frame::packet_types;

impl Gve {
    pub(super) fn describe_device(
        &self,
        command: &DescribeDevice,
        memory: &dyn GuestMemory,
    ) -> Result<(), AdminqStatus> {
        if command.device_descriptor_version.get() != DEVICE_DESCRIPTOR_VERSION {
            return Err(AdminqStatus::INVALID_ARGUMENT);
        }
        let room = command.available_length.get().into();
        let addr = command.device_descriptor_addr.get();
        answer_within(memory, addr, room, &description(&self.config))
    }

    pub(super) fn verify_driver(
        &self,
        command: &VerifyDriverCompatibility,
        memory: &dyn GuestMemory,
    ) -> Result<(), AdminqStatus> {
        if command.driver_info_len.get() < size_of::<DriverInfo>() as u64 {
            return Err(AdminqStatus::INVALID_ARGUMENT);
        }
        let info: DriverInfo = read_argument(memory, command.driver_info_addr.get())?;
        match info.driver_capability_flags[0].get() & CAPABILITY_DQO_RDA {
            // The driver does not support the only queue format of this device.
            0 => Err(AdminqStatus::FAILED_PRECONDITION),
            _ => Ok(()),
        }
    }

    pub(super) fn set_driver_parameter(
        &self,
        command: &SetDriverParameter,
    ) -> Result<(), AdminqStatus> {
        match (command.parameter_type.get(), command.parameter_value.get()) {
            // The value is not used: received frames are limited by the largest MTU, sent ones by their descriptors.
            (PARAMETER_MTU, mtu)
                if (u64::from(MIN_MTU)..=self.config.max_mtu.into()).contains(&mtu) =>
            {
                Ok(())
            }
            (PARAMETER_MTU, _) => Err(AdminqStatus::INVALID_ARGUMENT),
            _ => Err(AdminqStatus::UNIMPLEMENTED),
        }
    }

    pub(super) fn report_link_speed(
        &self,
        command: &ReportLinkSpeed,
        memory: &dyn GuestMemory,
    ) -> Result<(), AdminqStatus> {
        let mbps = self.config.link_mbps.to_be_bytes();
        answer(memory, command.link_speed_address.get(), &mbps)
    }

    pub(super) fn ptype_map(
        &self,
        command: &GetPtypeMap,
        memory: &dyn GuestMemory,
    ) -> Result<(), AdminqStatus> {
        let unknown = PtypeEntry {
            l3_type: 0,
            l4_type: 0,
        };
        let mut map = [unknown; PTYPES];
        for (entry, (l3_type, l4_type)) in map.iter_mut().zip(packet_types()) {
            *entry = PtypeEntry { l3_type, l4_type };
        }
        let (addr, room) = (command.ptype_map_addr.get(), command.ptype_map_len.get());
        answer_within(memory, addr, room, map.as_bytes())
    }
}

/// Returns device descriptor and options.
fn description(config: &Config) -> Vec<u8> {
    let mut options = OptionList::default();
    options.push(
        ID_DQO_RDA,
        &DqoRda {
            supported_features_mask: FEATURES.into(),
            reserved: 0.into(),
        },
    );
    options.push(
        ID_JUMBO_FRAMES,
        &JumboFrames {
            supported_features_mask: FEATURE_JUMBO_FRAMES.into(),
            max_mtu: config.max_mtu.into(),
            padding: [0; 2],
        },
    );
    options.push(
        ID_BUFFER_SIZES,
        &BufferSizes {
            supported_features_mask: FEATURE_BUFFER_SIZES.into(),
            packet_buffer_size: PACKET_BUFFER_BYTES.into(),
            header_buffer_size: HEADER_BUFFER.into(),
        },
    );
    options.push(
        ID_MODIFY_RING,
        &ModifyRing {
            supported_features_mask: FEATURE_MODIFY_RING.into(),
            max_rx_ring_size: MAX_RING_ENTRIES.into(),
            max_tx_ring_size: MAX_RING_ENTRIES.into(),
            min_rx_ring_size: MIN_RING_ENTRIES.into(),
            min_tx_ring_size: MIN_RING_ENTRIES.into(),
        },
    );
    options.push(
        ID_FLOW_STEERING,
        &FlowSteering {
            supported_features_mask: FEATURE_FLOW_STEERING.into(),
            reserved: 0.into(),
            max_flow_rules: FLOW_RULES.into(),
        },
    );
    options.push(
        ID_RSS_CONFIG,
        &RssConfig {
            supported_features_mask: FEATURE_RSS_CONFIG.into(),
            hash_key_size: RSS_KEY_BYTES.into(),
            hash_lut_size: RSS_LUT_ENTRIES.into(),
        },
    );
    options.describe(config)
}

/// Builder of the list of options.
#[derive(Default)]
struct OptionList {
    count: u16,
    bytes: Vec<u8>,
}

impl OptionList {
    fn push(&mut self, id: u16, body: &(impl IntoBytes + Immutable)) {
        let body = body.as_bytes();
        let header = OptionHeader {
            option_id: id.into(),
            // Every body is a struct of a dozen bytes.
            option_length: (body.len() as u16).into(),
            required_features_mask: 0.into(),
        };
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(body);
        self.count += 1;
    }

    fn describe(self, config: &Config) -> Vec<u8> {
        let total = size_of::<DeviceDescriptor>() + self.bytes.len();
        let descriptor = DeviceDescriptor {
            max_registered_pages: 0.into(),
            reserved1: 0.into(),
            tx_queue_entries: DEFAULT_RING_ENTRIES.into(),
            rx_queue_entries: DEFAULT_RING_ENTRIES.into(),
            default_num_queues: config.queue_pairs.into(),
            mtu: config.mtu.into(),
            // Linux requires as many as it has queues; they are never used.
            counters: (4 * config.queue_pairs).into(),
            tx_pages_per_qpl: 0.into(),
            rx_pages_per_qpl: 0.into(),
            mac: config.mac.0,
            num_device_options: self.count.into(),
            total_length: (total as u16).into(),
            reserved2: [0; 6],
        };
        [descriptor.as_bytes(), &self.bytes].concat()
    }
}
