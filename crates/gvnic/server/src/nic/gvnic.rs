//! The gVNIC as a PCI device: `gve` with configuration space, guest memory and interrupts.

use std::num::NonZeroU32;
use std::time::Instant as Clock;

use anyhow::Context;
use gve::{
    BadAddress, Config, Env, Faults, GuestAddr, GuestMemory, Gve, IrqSink, LinkState, RxOutcome,
};
use gve_defs::pci;
use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};
use steer::ToeplitzKey;
use vfio_user::{
    Bus, CONFIG_REGION, Device, DeviceError, DmaWindows, Irqs, Msix, PciConfig, PciIdentity,
    REGION_COUNT, Region,
};
use wire::Instant;

use super::port::OpenPort;
use super::wire::{BATCH_FRAMES, DeviceWire, IncomingBuffers};
use crate::plan::GvnicPlan;
use tool::capture::Capture;
use tool::output::Failure;

/// Bytes of a BAR, with the type of configuration space.
const BAR_BYTES: u32 = 4096;
const _: () = assert!(BAR_BYTES as u64 == pci::BAR_BYTES);

/// A gVNIC with its wire.
pub struct Gvnic {
    gve: Gve,
    config: PciConfig,
    wire: DeviceWire,
    incoming: IncomingBuffers,
    /// Up while the user has the cable plugged in.
    cable: LinkState,
    start: Clock,
    now: Instant,
    /// Number of delivered frames after which a reset is requested from the driver, for tests.
    reset_every: Option<NonZeroU32>,
    /// Frames delivered since the last such request.
    since_reset: u32,
}

impl Gvnic {
    /// Returns the device of `plan` on `port`.
    ///
    /// # Errors
    ///
    /// The configuration is invalid, or no random bytes are available.
    pub fn new(
        plan: &GvnicPlan,
        port: OpenPort,
        capture: Option<Capture>,
    ) -> Result<Self, Failure> {
        let mut key = ToeplitzKey::MICROSOFT;
        getrandom(&mut key.0, GetRandomFlags::empty()).context("getrandom")?;
        let config = Config {
            queue_pairs: plan.queues,
            mtu: plan.mtu,
            max_mtu: plan.max_mtu,
            rss_key: key,
            ..Config::new(plan.mac)
        };
        let identity = PciIdentity {
            vendor: pci::VENDOR_ID,
            device: pci::DEVICE_ID,
            revision: pci::REVISION,
            class: pci::CLASS_CODE,
            subsystem: (pci::VENDOR_ID, pci::DEVICE_ID),
        };
        let msix = Msix {
            vectors: config.vectors(),
            bar: pci::MSIX_BAR,
            table: pci::MSIX_TABLE_OFFSET,
            pending: pci::MSIX_PBA_OFFSET,
        };
        let mut gve = Gve::new(config)?;
        gve.set_faults(plan.faults);
        Ok(Self {
            gve,
            config: PciConfig::new(identity, [BAR_BYTES, BAR_BYTES, BAR_BYTES, 0, 0, 0], msix),
            wire: DeviceWire::new(port, plan.impairment, capture),
            incoming: IncomingBuffers::new(),
            cable: LinkState::Up,
            start: Clock::now(),
            now: Instant::ZERO,
            reset_every: plan.reset_every,
            since_reset: 0,
        })
    }

    pub fn gve(&self) -> &Gve {
        &self.gve
    }

    pub fn wire(&self) -> &DeviceWire {
        &self.wire
    }

    pub fn set_faults(&mut self, faults: Faults) {
        self.gve.set_faults(faults);
    }

    /// Plugs the cable in or out, with effect from the end of the round.
    pub fn set_cable(&mut self, cable: LinkState) {
        self.cable = cable;
    }

    /// Requests a reset from the driver.
    pub fn request_reset(&mut self, bus: &Bus) {
        self.with(bus, Gve::request_reset);
    }

    /// Begins a round of the loop: sets the time and the link state. The link state comes first, because a new peer at the
    /// other end may have sent frames already.
    pub fn begin(&mut self, bus: &Bus) {
        let nanos = self.start.elapsed().as_nanos();
        // 2^64 ns are 584 years.
        self.now = Instant::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        self.wire.begin(self.now);
        self.tell_link(bus);
    }

    fn tell_link(&mut self, bus: &Bus) {
        let link = match self.wire.port().is_up() {
            true => self.cable,
            false => LinkState::Down,
        };
        self.with(bus, |gve, env| gve.set_link(link, env));
    }

    /// Returns the origin of the device's clock.
    pub fn started(&self) -> Clock {
        self.start
    }

    /// Sends waiting frames after the wire got room again.
    pub fn wire_has_room(&mut self, bus: &Bus) {
        self.wire.port_has_room();
        if self.gve.tx_blocked() {
            self.with(bus, Gve::resume_tx);
        }
    }

    /// Delivers frames from the wire to the guest, a bounded number.
    ///
    /// # Errors
    ///
    /// The wire failed for good.
    pub fn receive(&mut self, bus: &Bus) -> Result<(), Errno> {
        for _ in 0..BATCH_FRAMES {
            let Some(frame) = self.wire.receive(&mut self.incoming)? else {
                break;
            };
            let mut env = Env {
                memory: &Memory(&bus.dma),
                irqs: &Interrupts(&bus.irqs),
                backend: &mut self.wire,
                now: self.now,
            };
            // The device counts dropped frames.
            match self.gve.receive(frame, &mut env) {
                RxOutcome::Delivered => self.note_delivered(bus),
                RxOutcome::Held | RxOutcome::Dropped(_) => {}
            }
        }
        Ok(())
    }

    /// Counts a delivered frame, and requests the reset of a test when it is due.
    fn note_delivered(&mut self, bus: &Bus) {
        let Some(every) = self.reset_every else {
            return;
        };
        self.since_reset += 1;
        if self.since_reset >= every.get() {
            self.since_reset = 0;
            self.request_reset(bus);
        }
    }

    /// Ends a round: sets the link state and serves timers that are due.
    pub fn settle(&mut self, bus: &Bus) {
        self.tell_link(bus);
        // After the other end has disconnected, a full wire has room again: it drops the frames.
        if self.gve.tx_blocked() && !self.wire.port().is_up() {
            self.wire_has_room(bus);
        }
        if self.gve.poll_at().is_some_and(|at| at <= self.now) {
            self.with(bus, Gve::poll);
        }
    }

    /// Returns the next deadline.
    pub fn next_due(&self) -> Option<Instant> {
        [self.gve.poll_at(), self.wire.next_due()]
            .into_iter()
            .flatten()
            .min()
    }

    fn with<T>(&mut self, bus: &Bus, call: impl FnOnce(&mut Gve, &mut Env<'_>) -> T) -> T {
        let mut env = Env {
            memory: &Memory(&bus.dma),
            irqs: &Interrupts(&bus.irqs),
            backend: &mut self.wire,
            now: self.now,
        };
        call(&mut self.gve, &mut env)
    }
}

impl Device for Gvnic {
    fn regions(&self) -> [Region; REGION_COUNT] {
        let bar = Region {
            size: pci::BAR_BYTES,
        };
        let mut regions = [Region::NONE; REGION_COUNT];
        regions[..3].fill(bar);
        regions[CONFIG_REGION as usize].size = PciConfig::BYTES;
        regions
    }

    fn vectors(&self) -> u16 {
        self.gve.config().vectors()
    }

    fn region_read(
        &mut self,
        _bus: &mut Bus,
        region: u32,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), DeviceError> {
        if region == CONFIG_REGION {
            return self.config.read(offset, out);
        }
        let bar = u8::try_from(region).map_err(|_| DeviceError)?;
        // Includes BAR 1, which reads as zeros: the client has the MSI-X table, and no vector is ever pending here.
        self.gve.read_bar(bar, offset, out);
        Ok(())
    }

    fn region_write(
        &mut self,
        bus: &mut Bus,
        region: u32,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), DeviceError> {
        if region == CONFIG_REGION {
            return self.config.write(offset, bytes);
        }
        let bar = u8::try_from(region).map_err(|_| DeviceError)?;
        self.with(bus, |gve, env| gve.write_bar(bar, offset, bytes, env));
        Ok(())
    }

    fn reset(&mut self, _bus: &mut Bus) {
        self.config.reset();
        self.gve.reset();
    }
}

/// Guest memory through the device's interface.
struct Memory<'a>(&'a DmaWindows);

impl GuestMemory for Memory<'_> {
    fn read(&self, addr: GuestAddr, out: &mut [u8]) -> Result<(), BadAddress> {
        let len = out.len();
        let read = self.0.read(addr.0, out);
        read.map_err(|_| BadAddress { addr, len })
    }

    fn write(&self, addr: GuestAddr, bytes: &[u8]) -> Result<(), BadAddress> {
        let len = bytes.len();
        let written = self.0.write(addr.0, bytes);
        written.map_err(|_| BadAddress { addr, len })
    }

    fn store_release_u16(&self, addr: GuestAddr, value: u16) -> Result<(), BadAddress> {
        // Two aligned bytes are one release store; an odd address is possible only if the guest has misaligned its ring.
        self.write(addr, &value.to_le_bytes())
    }
}

/// Interrupts through the device's interface.
struct Interrupts<'a>(&'a Irqs);

impl IrqSink for Interrupts<'_> {
    fn fire(&self, vector: u16) {
        // A vector without an eventfd is counted there.
        self.0.raise(vector);
    }
}
