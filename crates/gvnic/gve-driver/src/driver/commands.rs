//! The driver's admin commands.

use gve_defs::adminq::{
    ADMINQ_BYTES, AdminqEntry, AdminqStatus, CAPABILITY_DQO_RDA, ConfigureDeviceResources,
    CreateRxQueue, CreateTxQueue, DescribeDevice, DestroyQueue, DriverInfo, ENTRY_BYTES,
    GetPtypeMap, QUEUE_FORMAT_DQO_RDA, QueueResources, RAW_ADDRESSING_QPL_ID, ReportStats,
    StatsReport, VerifyDriverCompatibility, opcode,
};
use gve_defs::desc_dqo::PTYPES;
use gve_defs::device_option::{DEVICE_DESCRIPTOR_VERSION, DeviceDescriptor};
use gve_defs::pci::REGISTER_BAR;
use gve_defs::registers::{
    ADMINQ_BASE_ADDRESS_HI, ADMINQ_BASE_ADDRESS_LO, ADMINQ_DOORBELL, ADMINQ_LENGTH, DRIVER_RUN,
    DRIVER_STATUS,
};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use super::{
    BarAccess, Driver, DriverError, IRQ_STRIDE, STATS_BYTES, adminq_entry, write_register,
};

impl Driver {
    pub(super) fn must(
        &mut self,
        bus: &mut impl BarAccess,
        opcode: u32,
        body: &(impl IntoBytes + Immutable + ?Sized),
    ) -> Result<(), DriverError> {
        match self.command(bus, opcode, body)? {
            AdminqStatus::PASSED => Ok(()),
            status => Err(DriverError::Refused { opcode, status }),
        }
    }

    /// Writes a command to the admin queue; returns its index.
    pub(super) fn push_command(&mut self, entry: &[u8; ENTRY_BYTES]) -> u64 {
        let entries = u32::from(ADMINQ_BYTES) / ENTRY_BYTES as u32;
        let at = u64::from(self.produced % entries) * ENTRY_BYTES as u64;
        let place = self.places.adminq + at;
        self.ram.put(place, entry);
        self.produced = self.produced.wrapping_add(1);
        place
    }

    pub(super) fn ring_adminq(&self, bus: &mut impl BarAccess) {
        write_register(bus, ADMINQ_DOORBELL, self.produced);
    }

    pub(super) fn status_at(&self, place: u64) -> AdminqStatus {
        let bytes = self.ram.get(place, ENTRY_BYTES);
        AdminqEntry::read_from_bytes(&bytes).map_or(AdminqStatus::UNSET, |entry| {
            AdminqStatus(entry.status.get())
        })
    }

    pub(super) fn start_adminq(&mut self, bus: &mut impl BarAccess) {
        self.produced = 0;
        let base = self.places.adminq;
        bus.write(REGISTER_BAR, ADMINQ_LENGTH, &ADMINQ_BYTES.to_be_bytes());
        write_register(bus, ADMINQ_BASE_ADDRESS_HI, (base >> 32) as u32);
        write_register(bus, ADMINQ_BASE_ADDRESS_LO, base as u32);
        write_register(bus, DRIVER_STATUS, DRIVER_RUN);
    }

    pub(super) fn verify(&mut self, bus: &mut impl BarAccess) -> Result<(), DriverError> {
        let mut info = DriverInfo::new_zeroed();
        info.os_type = 1;
        info.driver_capability_flags[0] = CAPABILITY_DQO_RDA.into();
        self.ram.put(self.places.argument, info.as_bytes());
        let command = VerifyDriverCompatibility {
            driver_info_len: (size_of::<DriverInfo>() as u64).into(),
            driver_info_addr: self.places.argument.into(),
        };
        self.must(bus, opcode::VERIFY_DRIVER_COMPATIBILITY, &command)
    }

    pub(super) fn describe(&mut self, bus: &mut impl BarAccess) -> Result<(), DriverError> {
        let command = DescribeDevice {
            device_descriptor_addr: self.places.argument.into(),
            device_descriptor_version: DEVICE_DESCRIPTOR_VERSION.into(),
            available_length: 4096.into(),
        };
        self.must(bus, opcode::DESCRIBE_DEVICE, &command)?;
        let bytes = self.ram.get(self.places.argument, 4096);
        let (descriptor, _) =
            DeviceDescriptor::read_from_prefix(&bytes).map_err(|_| DriverError::Description)?;
        let total = usize::from(descriptor.total_length.get());
        self.descriptor = bytes.get(..total).ok_or(DriverError::Description)?.to_vec();
        Ok(())
    }

    /// Configures interrupts, queries packet types and sets the statistics area.
    pub(super) fn set_up(&mut self, bus: &mut impl BarAccess) -> Result<(), DriverError> {
        let resources = ConfigureDeviceResources {
            counter_array: self.places.stats.into(),
            irq_db_addr: self.places.irq_doorbells.into(),
            num_counters: 1.into(),
            num_irq_dbs: (2 * u32::from(self.max_pairs)).into(),
            irq_db_stride: IRQ_STRIDE.into(),
            ntfy_blk_msix_base_idx: 0.into(),
            queue_format: QUEUE_FORMAT_DQO_RDA,
            padding: [0; 7],
        };
        self.must(bus, opcode::CONFIGURE_DEVICE_RESOURCES, &resources)?;
        let ptypes = GetPtypeMap {
            ptype_map_len: (2 * PTYPES as u64).into(),
            ptype_map_addr: self.places.argument.into(),
        };
        self.must(bus, opcode::GET_PTYPE_MAP, &ptypes)?;
        let report = ReportStats {
            stats_report_len: (STATS_BYTES as u64).into(),
            stats_report_addr: self.places.stats.into(),
            interval: 20_000.into(),
        };
        const _: () = assert!(STATS_BYTES > size_of::<StatsReport>());
        self.must(bus, opcode::REPORT_STATS, &report)
    }

    /// Creates all queues, TX in one batch as in Linux, then enables interrupts and posts buffers.
    pub(super) fn create_queues(&mut self, bus: &mut impl BarAccess) -> Result<(), DriverError> {
        let mut places = Vec::new();
        for id in 0..self.tx.len() as u16 {
            self.tx[usize::from(id)].restart(&self.ram);
            let command = self.create_tx_command(id);
            places.push(
                self.push_command(&adminq_entry(opcode::CREATE_TX_QUEUE, command.as_bytes())),
            );
        }
        self.ring_adminq(bus);
        for place in places {
            let (opcode, status) = (opcode::CREATE_TX_QUEUE, self.status_at(place));
            if status != AdminqStatus::PASSED {
                return Err(DriverError::Refused { opcode, status });
            }
        }
        for id in 0..self.tx.len() as u16 {
            self.tx[usize::from(id)].doorbell = self.doorbell_at(self.resources_of(id));
        }
        for id in 0..self.rx.len() as u16 {
            self.rx[usize::from(id)].restart(&self.ram);
            self.create_rx(bus, id)?;
        }
        for id in 0..self.tx.len() as u16 {
            self.enable_irq(bus, id, Some(0));
            self.enable_irq(bus, self.max_pairs + id, Some(0));
            self.refill(bus, id, usize::MAX);
        }
        Ok(())
    }

    pub(super) fn create_tx_command(&self, id: u16) -> CreateTxQueue {
        let ring = &self.tx[usize::from(id)];
        CreateTxQueue {
            queue_id: u32::from(id).into(),
            reserved: 0.into(),
            queue_resources_addr: self.resources_of(id).into(),
            tx_ring_addr: ring.ring.into(),
            queue_page_list_id: RAW_ADDRESSING_QPL_ID.into(),
            ntfy_id: u32::from(id).into(),
            tx_comp_ring_addr: ring.completions.into(),
            tx_ring_size: ring.entries.into(),
            tx_comp_ring_size: ring.entries.into(),
            padding: [0; 4],
        }
    }

    pub(super) fn create_rx(
        &mut self,
        bus: &mut impl BarAccess,
        id: u16,
    ) -> Result<(), DriverError> {
        let ring = &self.rx[usize::from(id)];
        let resources = self.resources_of(self.max_pairs + id);
        let command = CreateRxQueue {
            queue_id: u32::from(id).into(),
            index: u32::from(id).into(),
            reserved: 0.into(),
            ntfy_id: u32::from(self.max_pairs + id).into(),
            queue_resources_addr: resources.into(),
            rx_desc_ring_addr: ring.completions.into(),
            rx_data_ring_addr: ring.buffers.into(),
            queue_page_list_id: RAW_ADDRESSING_QPL_ID.into(),
            rx_ring_size: ring.entries.into(),
            packet_buffer_size: self.options.buffer_bytes.into(),
            rx_buff_ring_size: ring.entries.into(),
            enable_rsc: self.options.rsc.into(),
            padding1: 0,
            header_buffer_size: self.options.header_bytes.into(),
            padding2: [0; 2],
        };
        self.must(bus, opcode::CREATE_RX_QUEUE, &command)?;
        self.rx[usize::from(id)].doorbell = self.doorbell_at(resources);
        Ok(())
    }

    pub(super) fn destroy(
        &mut self,
        bus: &mut impl BarAccess,
        opcode: u32,
        id: u32,
    ) -> Result<(), DriverError> {
        let command = DestroyQueue {
            queue_id: id.into(),
        };
        self.must(bus, opcode, &command)
    }

    pub(super) fn resources_of(&self, index: u16) -> u64 {
        self.places.queue_resources + 64 * u64::from(index)
    }

    pub(super) fn doorbell_at(&self, resources: u64) -> u32 {
        let bytes = self.ram.get(resources, size_of::<QueueResources>());
        QueueResources::read_from_bytes(&bytes).map_or(0, |resources| resources.db_index.get())
    }
}
