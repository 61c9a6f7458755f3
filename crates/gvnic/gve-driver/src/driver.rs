//! The operations of Linux's `gve` on the device, in the same order.

mod commands;

use std::rc::Rc;

use gve_defs::adminq::{
    ADMINQ_BYTES, AdminqStatus, BODY_BYTES, ConfigureFlowRule, ConfigureRss, ENTRY_BYTES,
    ExtendedCommand, RSS_TOEPLITZ, ReportStats, Stat, opcode, stat_name,
};
use gve_defs::doorbell::{
    DOORBELL_BYTES, IRQ_ENABLE, IRQ_INTERVAL_MASK, IRQ_INTERVAL_SHIFT, IRQ_KEEP_INTERVAL,
};
use gve_defs::pci::{DOORBELL_BAR, REGISTER_BAR};
use gve_defs::registers::{
    ADMINQ_EVENT_COUNTER, DEVICE_STATUS, DRIVER_RESET, DRIVER_STATUS, DRIVER_VERSION,
    MAX_RX_QUEUES, STATUS_DEVICE_IS_RESET,
};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use crate::ram::GuestRam;
use crate::rx_ring::{RxPacket, RxRing, Violation};
use crate::tx_ring::{TxDone, TxRequest, TxRing};

/// Access of the driver to the device.
pub trait BarAccess {
    /// Reads a BAR.
    fn read(&mut self, bar: u8, offset: u64, out: &mut [u8]);
    /// Writes a BAR.
    fn write(&mut self, bar: u8, offset: u64, bytes: &[u8]);
}

/// Error of a driver operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// A command failed.
    #[error("admin command {opcode:#x} has status {status:#x}", status = status.0)]
    Refused {
        /// Opcode of the command.
        opcode: u32,
        /// Status of the command.
        status: AdminqStatus,
    },
    /// The event counter does not include the command.
    #[error("admin command {opcode:#x} was not executed")]
    Silent {
        /// Opcode of the command.
        opcode: u32,
    },
    /// The device does not report that the reset is done.
    #[error("the device does not report the end of its reset")]
    NotReset,
    /// The device descriptor is invalid.
    #[error("the device descriptor is invalid")]
    Description,
}

/// Options for creating queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueOptions {
    /// Queue pairs.
    pub pairs: u16,
    /// Entries of TX rings.
    pub tx_entries: u16,
    /// Entries of RX rings.
    pub rx_entries: u16,
    /// Bytes of an RX buffer.
    pub buffer_bytes: u16,
    /// Bytes of a header buffer, 0 for no split.
    pub header_bytes: u16,
    /// Coalesce segments.
    pub rsc: bool,
}

impl Default for QueueOptions {
    fn default() -> Self {
        Self {
            pairs: 4,
            tx_entries: 256,
            rx_entries: 256,
            buffer_bytes: 4096,
            header_bytes: 256,
            rsc: false,
        }
    }
}

/// Addresses in guest memory that the driver passes to the device.
#[derive(Clone, Copy, Debug)]
struct Places {
    adminq: u64,
    /// Memory for structs that a command points to.
    argument: u64,
    irq_doorbells: u64,
    queue_resources: u64,
    stats: u64,
}

/// Bytes of the memory for structs that a command points to.
const ARGUMENT_BYTES: usize = 16 * 1024;
/// Bytes from one interrupt doorbell index to the next.
const IRQ_STRIDE: u32 = 64;
/// Bytes of the statistics area.
const STATS_BYTES: usize = 8 + 16 * 256;

/// A driver and its rings.
#[derive(Debug)]
pub struct Driver {
    ram: Rc<GuestRam>,
    places: Places,
    produced: u32,
    max_pairs: u16,
    descriptor: Vec<u8>,
    options: QueueOptions,
    tx: Vec<TxRing>,
    rx: Vec<RxRing>,
}

impl Driver {
    /// Finds the device, as Linux does when its module is loaded.
    ///
    /// # Errors
    /// [`DriverError`].
    pub fn probe(ram: Rc<GuestRam>, bus: &mut impl BarAccess) -> Result<Self, DriverError> {
        let places = Places {
            adminq: ram.alloc(ADMINQ_BYTES.into()),
            argument: ram.alloc(ARGUMENT_BYTES),
            irq_doorbells: ram.alloc(4096),
            queue_resources: ram.alloc(64 * 64),
            stats: ram.alloc(STATS_BYTES),
        };
        for byte in b"GVE-1.0.0\n" {
            bus.write(REGISTER_BAR, DRIVER_VERSION, &[*byte]);
        }
        let max_pairs = read_register(bus, MAX_RX_QUEUES);
        let mut driver = Self {
            ram,
            places,
            produced: 0,
            max_pairs: u16::try_from(max_pairs).map_err(|_| DriverError::Description)?,
            descriptor: Vec::new(),
            options: QueueOptions::default(),
            tx: Vec::new(),
            rx: Vec::new(),
        };
        driver.start_adminq(bus);
        driver.verify(bus)?;
        driver.describe(bus)?;
        driver.set_up(bus)?;
        Ok(driver)
    }

    /// Returns the answer to DESCRIBE_DEVICE: descriptor and options.
    pub fn description(&self) -> &[u8] {
        &self.descriptor
    }

    /// Returns the number of queue pairs of the device.
    pub const fn max_pairs(&self) -> u16 {
        self.max_pairs
    }

    /// Returns the number of existing queue pairs.
    pub fn pairs(&self) -> u16 {
        // Their number was requested with 16 bits.
        self.rx.len() as u16
    }

    /// Creates queues and posts buffers, as Linux does when the interface is set up.
    ///
    /// # Errors
    /// [`DriverError`].
    pub fn up(
        &mut self,
        bus: &mut impl BarAccess,
        options: QueueOptions,
    ) -> Result<(), DriverError> {
        self.options = options;
        let ram = Rc::clone(&self.ram);
        let ids = 0..options.pairs;
        let tx = |id| TxRing::new(&ram, id, options.tx_entries);
        let rx = |_| {
            let QueueOptions {
                rx_entries,
                buffer_bytes,
                header_bytes,
                ..
            } = options;
            RxRing::new(&ram, rx_entries, buffer_bytes, header_bytes)
        };
        self.tx = ids.clone().map(tx).collect();
        self.rx = ids.map(rx).collect();
        self.create_queues(bus)
    }

    /// Destroys all queues, as Linux does when the interface is set down.
    ///
    /// # Errors
    /// [`DriverError`].
    pub fn down(&mut self, bus: &mut impl BarAccess) -> Result<(), DriverError> {
        for id in 0..self.tx.len() as u32 {
            self.destroy(bus, opcode::DESTROY_TX_QUEUE, id)?;
        }
        for id in 0..self.rx.len() as u32 {
            self.destroy(bus, opcode::DESTROY_RX_QUEUE, id)?;
        }
        self.tx.clear();
        self.rx.clear();
        Ok(())
    }

    /// Resets the device and creates everything again with the same rings, as in Linux's recovery.
    ///
    /// # Errors
    /// [`DriverError`].
    pub fn reset(&mut self, bus: &mut impl BarAccess) -> Result<(), DriverError> {
        write_register(bus, DRIVER_STATUS, DRIVER_RESET);
        if read_register(bus, DEVICE_STATUS) & STATUS_DEVICE_IS_RESET == 0 {
            return Err(DriverError::NotReset);
        }
        self.start_adminq(bus);
        self.verify(bus)?;
        self.set_up(bus)?;
        self.create_queues(bus)
    }

    /// Destroys one RX queue and creates it again, as bind-rx and unbinding do.
    ///
    /// # Errors
    /// [`DriverError`].
    pub fn restart_rx(&mut self, bus: &mut impl BarAccess, queue: u16) -> Result<(), DriverError> {
        self.destroy(bus, opcode::DESTROY_RX_QUEUE, queue.into())?;
        self.rx[usize::from(queue)].restart(&self.ram);
        self.create_rx(bus, queue)?;
        self.refill(bus, queue, usize::MAX);
        Ok(())
    }

    /// Destroys one RX queue.
    ///
    /// # Errors
    /// [`DriverError`].
    pub fn stop_rx(&mut self, bus: &mut impl BarAccess, queue: u16) -> Result<(), DriverError> {
        self.destroy(bus, opcode::DESTROY_RX_QUEUE, queue.into())
    }

    /// Releases the device, as Linux does when its module is unloaded.
    ///
    /// # Errors
    /// [`DriverError`].
    pub fn remove(mut self, bus: &mut impl BarAccess) -> Result<(), DriverError> {
        self.down(bus)?;
        let mut clear = ConfigureFlowRule::new_zeroed();
        clear.opcode = gve_defs::adminq::FLOW_RULE_RESET.into();
        self.flow_rule(bus, &clear)?;
        let detach = ReportStats::new_zeroed();
        self.must(bus, opcode::REPORT_STATS, &detach)?;
        self.must(bus, opcode::DECONFIGURE_DEVICE_RESOURCES, &[0u8; 0])?;
        write_register(bus, DRIVER_STATUS, DRIVER_RESET);
        Ok(())
    }

    /// Writes a packet into a TX ring without ringing; returns its tag, `None` if there is no room.
    pub fn push(&mut self, queue: u16, request: &TxRequest<'_>) -> Option<u16> {
        self.tx[usize::from(queue)].push(&self.ram, request)
    }

    /// Rings a TX doorbell for everything up to `less` descriptors before the tail.
    pub fn ring_tx(&mut self, bus: &mut impl BarAccess, queue: u16, less: u16) {
        let ring = &self.tx[usize::from(queue)];
        let tail = ring.tail.wrapping_sub(less) & (ring.entries - 1);
        let doorbell = ring.doorbell;
        ring_doorbell(bus, doorbell, tail.into());
    }

    /// Sends a packet; returns its tag, `None` if there is no room.
    pub fn send(
        &mut self,
        bus: &mut impl BarAccess,
        queue: u16,
        request: &TxRequest<'_>,
    ) -> Option<u16> {
        let tag = self.push(queue, request)?;
        self.ring_tx(bus, queue, 0);
        Some(tag)
    }

    /// Processes TX completions.
    ///
    /// # Errors
    /// [`Violation`].
    pub fn poll_tx(&mut self, queue: u16) -> Result<TxDone, Violation> {
        self.tx[usize::from(queue)].poll(&self.ram)
    }

    /// Processes RX completions. Buffers are not posted again before [`refill`](Self::refill).
    ///
    /// # Errors
    /// [`Violation`].
    pub fn poll_rx(&mut self, queue: u16) -> Result<Vec<RxPacket>, Violation> {
        self.rx[usize::from(queue)].poll(&self.ram)
    }

    /// Posts up to `limit` free buffers; rings the doorbell at every 32nd, as Linux does.
    pub fn refill(&mut self, bus: &mut impl BarAccess, queue: u16, limit: usize) {
        let ring = &mut self.rx[usize::from(queue)];
        if let Some(tail) = ring.post(&self.ram, limit) {
            ring_doorbell(bus, ring.doorbell, tail.into());
        }
    }

    /// Returns the number of posted buffers, including those not yet covered by a doorbell.
    pub fn posted(&self, queue: u16) -> usize {
        self.rx[usize::from(queue)].posted()
    }

    /// Enables the interrupt of a notification block; `interval_us` is the minimum time between two, `None` keeps it.
    pub fn enable_irq(&mut self, bus: &mut impl BarAccess, block: u16, interval_us: Option<u32>) {
        let value = match interval_us {
            None => IRQ_ENABLE | IRQ_KEEP_INTERVAL,
            Some(us) => IRQ_ENABLE | ((us / 2) & IRQ_INTERVAL_MASK) << IRQ_INTERVAL_SHIFT,
        };
        let at = u64::from(block) * u64::from(IRQ_STRIDE);
        let index = self.ram.get(self.places.irq_doorbells + at, 4);
        let index = u32::read_from_bytes(&index).map_or(0, u32::from_be);
        ring_doorbell(bus, index, value);
    }

    /// Executes an admin command; returns its status.
    ///
    /// # Errors
    /// [`DriverError::Silent`].
    pub fn command(
        &mut self,
        bus: &mut impl BarAccess,
        opcode: u32,
        body: &(impl IntoBytes + Immutable + ?Sized),
    ) -> Result<AdminqStatus, DriverError> {
        let place = self.push_command(&adminq_entry(opcode, body.as_bytes()));
        self.ring_adminq(bus);
        if read_register(bus, ADMINQ_EVENT_COUNTER) != self.produced {
            return Err(DriverError::Silent { opcode });
        }
        Ok(self.status_at(place))
    }

    /// Executes a flow rule command.
    ///
    /// # Errors
    /// [`DriverError`].
    pub fn flow_rule(
        &mut self,
        bus: &mut impl BarAccess,
        rule: &ConfigureFlowRule,
    ) -> Result<(), DriverError> {
        self.ram.put(self.places.argument, rule.as_bytes());
        let command = ExtendedCommand {
            inner_opcode: opcode::CONFIGURE_FLOW_RULE.into(),
            inner_length: (size_of::<ConfigureFlowRule>() as u32).into(),
            inner_command_addr: self.places.argument.into(),
        };
        self.must(bus, opcode::EXTENDED_COMMAND, &command)
    }

    /// Configures RSS; a part that is `None` is not changed.
    ///
    /// # Errors
    /// [`DriverError`].
    pub fn configure_rss(
        &mut self,
        bus: &mut impl BarAccess,
        key: Option<&[u8]>,
        lut: Option<&[u32]>,
    ) -> Result<(), DriverError> {
        let (key, lut) = (key.unwrap_or_default(), lut.unwrap_or_default());
        let lut_bytes: Vec<u8> = lut.iter().flat_map(|queue| queue.to_be_bytes()).collect();
        let lut_addr = self.places.argument + 1024;
        self.ram.put(self.places.argument, key);
        self.ram.put(lut_addr, &lut_bytes);
        let command = ConfigureRss {
            // TCP and UDP over IPv4 and IPv6, as in Linux.
            hash_types: 0xd2.into(),
            hash_alg: RSS_TOEPLITZ,
            reserved: 0,
            hash_key_size: (key.len() as u16).into(),
            hash_lut_size: (lut.len() as u16).into(),
            hash_key_addr: self.places.argument.into(),
            hash_lut_addr: lut_addr.into(),
        };
        self.must(bus, opcode::CONFIGURE_RSS, &command)
    }

    /// Returns address and length of the memory for structs that a command points to.
    pub const fn argument(&self) -> (u64, usize) {
        (self.places.argument, ARGUMENT_BYTES)
    }

    /// Returns the device's statistics for `queues` queues, located as `ethtool -S` does.
    pub fn device_stats(&self, queues: usize) -> Vec<Stat> {
        let bytes = self.ram.get(self.places.stats, STATS_BYTES);
        let len = queues * stat_name::PER_RX_QUEUE * size_of::<Stat>();
        let stats = bytes[STATS_BYTES - len..].chunks(size_of::<Stat>());
        stats.flat_map(Stat::read_from_bytes).collect()
    }

    /// Returns the addresses of the rings of an RX queue: buffers, completions.
    pub fn rx_rings(&self, queue: u16) -> (u64, u64) {
        let ring = &self.rx[usize::from(queue)];
        (ring.buffers, ring.completions)
    }

    /// Returns the address of the descriptor ring of a TX queue.
    pub fn tx_ring(&self, queue: u16) -> u64 {
        self.tx[usize::from(queue)].ring
    }
}

/// Returns an entry of the admin queue; a body that is too long is truncated.
pub fn adminq_entry(opcode: u32, body: &[u8]) -> [u8; ENTRY_BYTES] {
    let mut entry = [0; ENTRY_BYTES];
    entry[..4].copy_from_slice(&opcode.to_be_bytes());
    let len = body.len().min(BODY_BYTES);
    entry[8..8 + len].copy_from_slice(&body[..len]);
    entry
}

fn read_register(bus: &mut impl BarAccess, offset: u64) -> u32 {
    let mut bytes = [0; 4];
    bus.read(REGISTER_BAR, offset, &mut bytes);
    u32::from_be_bytes(bytes)
}

fn write_register(bus: &mut impl BarAccess, offset: u64, value: u32) {
    bus.write(REGISTER_BAR, offset, &value.to_be_bytes());
}

fn ring_doorbell(bus: &mut impl BarAccess, index: u32, value: u32) {
    let offset = u64::from(index) * DOORBELL_BYTES;
    bus.write(DOORBELL_BAR, offset, &value.to_le_bytes());
}
