//! A device with a guest's memory and a wire, in one process.

#![allow(dead_code, reason = "no test uses all of the test bench")]

pub mod frames;

use std::cell::RefCell;
use std::rc::Rc;

use gve::{
    Backend, BadAddress, ChecksumState, Config, Env, Faults, GuestAddr, GuestMemory, Gve, IrqSink,
    LinkState, Offload, RxFrame, RxOutcome, Stats, TxFrame, TxOutcome, WireFeatures,
};
use gve_driver::{BarAccess, Driver, GuestRam, QueueOptions, RxPacket, TxDone, TxRequest};
use wire::{Instant, MacAddr};

/// Guest memory for the device.
struct Memory<'a>(&'a GuestRam);

impl GuestMemory for Memory<'_> {
    fn read(&self, addr: GuestAddr, out: &mut [u8]) -> Result<(), BadAddress> {
        let bad = BadAddress {
            addr,
            len: out.len(),
        };
        self.0.read(addr.0, out).then_some(()).ok_or(bad)
    }

    fn write(&self, addr: GuestAddr, bytes: &[u8]) -> Result<(), BadAddress> {
        let bad = BadAddress {
            addr,
            len: bytes.len(),
        };
        self.0.write(addr.0, bytes).then_some(()).ok_or(bad)
    }

    fn store_release_u16(&self, addr: GuestAddr, value: u16) -> Result<(), BadAddress> {
        self.write(addr, &value.to_le_bytes())
    }
}

/// Vectors that were raised.
#[derive(Debug, Default)]
pub struct Irqs(RefCell<Vec<u16>>);

impl IrqSink for Irqs {
    fn fire(&self, vector: u16) {
        self.0.borrow_mut().push(vector);
    }
}

/// A frame that left the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outgoing {
    pub bytes: Vec<u8>,
    pub offload: Offload,
}

/// A wire that records its frames.
#[derive(Debug)]
pub struct TestWire {
    pub features: WireFeatures,
    pub sent: Vec<Outgoing>,
    /// Number of frames that it accepts before it is busy.
    pub room: usize,
}

impl Backend for TestWire {
    fn features(&self) -> WireFeatures {
        self.features
    }

    fn send(&mut self, frame: &TxFrame<'_>, memory: &dyn GuestMemory) -> TxOutcome {
        if self.room == 0 {
            return TxOutcome::Busy;
        }
        let mut bytes = Vec::new();
        if frame.append_to(memory, &mut bytes).is_err() {
            return TxOutcome::BadAddress;
        }
        assert_eq!(bytes.len(), frame.frame_len());
        self.room -= 1;
        self.sent.push(Outgoing {
            bytes,
            offload: frame.offload,
        });
        TxOutcome::Done
    }
}

/// First address of the guest's memory. Not 0, so that code that forgets the base fails.
pub const RAM_BASE: u64 = 0x10_0000;

/// The test bench, and the bus of the driver.
pub struct Bench {
    pub device: Gve,
    pub ram: Rc<GuestRam>,
    pub wire: TestWire,
    pub irqs: Irqs,
    pub now: Instant,
}

impl Bench {
    /// Returns a device with 4 queue pairs and a guest with 64 MiB.
    pub fn new() -> Self {
        Self::with(Config::new(MacAddr([2, 0, 0, 0, 0, 1])), 64 << 20)
    }

    pub fn with(config: Config, ram_bytes: usize) -> Self {
        Self {
            device: Gve::new(config).expect("the configuration is valid"),
            ram: Rc::new(GuestRam::new(RAM_BASE, ram_bytes)),
            wire: TestWire {
                features: WireFeatures::all(),
                sent: Vec::new(),
                room: usize::MAX,
            },
            irqs: Irqs::default(),
            now: Instant::from_millis(1),
        }
    }

    /// Calls `work` with the device and its environment.
    pub fn with_env<T>(&mut self, act: impl FnOnce(&mut Gve, &mut Env<'_>) -> T) -> T {
        let memory = Memory(&self.ram);
        let mut env = Env {
            memory: &memory,
            irqs: &self.irqs,
            backend: &mut self.wire,
            now: self.now,
        };
        act(&mut self.device, &mut env)
    }

    pub fn receive(&mut self, bytes: &[u8], offload: Offload) -> RxOutcome {
        self.with_env(|device, env| device.receive(RxFrame { bytes, offload }, env))
    }

    pub fn receive_plain(&mut self, bytes: &[u8]) -> RxOutcome {
        self.receive(bytes, Offload::default())
    }

    pub fn poll(&mut self) {
        self.with_env(|device, env| device.poll(env));
    }

    pub fn resume_tx(&mut self) {
        self.with_env(|device, env| device.resume_tx(env));
    }

    pub fn set_link(&mut self, link: LinkState) {
        self.with_env(|device, env| device.set_link(link, env));
    }

    pub fn set_faults(&mut self, faults: Faults) {
        self.device.set_faults(faults);
    }

    pub fn stats(&self) -> Stats {
        self.device.stats()
    }

    pub fn take_irqs(&self) -> Vec<u16> {
        self.irqs.0.take()
    }

    pub fn take_sent(&mut self) -> Vec<Outgoing> {
        std::mem::take(&mut self.wire.sent)
    }

    pub fn register(&self, offset: u64) -> u32 {
        let mut bytes = [0; 4];
        self.device.read_bar(0, offset, &mut bytes);
        u32::from_be_bytes(bytes)
    }
}

impl BarAccess for Bench {
    fn read(&mut self, bar: u8, offset: u64, out: &mut [u8]) {
        self.device.read_bar(bar, offset, out);
    }

    fn write(&mut self, bar: u8, offset: u64, bytes: &[u8]) {
        self.with_env(|device, env| device.write_bar(bar, offset, bytes, env));
    }
}

/// Returns a device with a driver; its queues are up.
pub fn up(options: QueueOptions) -> (Bench, Driver) {
    let mut bench = Bench::new();
    let mut driver = Driver::probe(Rc::clone(&bench.ram), &mut bench).expect("probe");
    driver.up(&mut bench, options).expect("up");
    (bench, driver)
}

/// Returns a device with a driver; its queues are up, split headers and do not coalesce.
pub fn up_default() -> (Bench, Driver) {
    up(QueueOptions::default())
}

/// Returns the packets that a queue received, and posts its buffers again.
pub fn take_rx(bench: &mut Bench, driver: &mut Driver, queue: u16) -> Vec<RxPacket> {
    let packets = driver.poll_rx(queue).expect("no gVNIC would do this");
    driver.refill(bench, queue, usize::MAX);
    packets
}

/// Returns the packets that all queues received, and posts their buffers again.
pub fn take_all_rx(bench: &mut Bench, driver: &mut Driver) -> Vec<RxPacket> {
    let queues = 0..driver.pairs();
    queues
        .flat_map(|queue| take_rx(bench, driver, queue))
        .collect()
}

/// Sends a packet and expects its completion.
pub fn send_done(bench: &mut Bench, driver: &mut Driver, request: &TxRequest<'_>) -> TxDone {
    let tag = driver.send(bench, 0, request).expect("room in the ring");
    let done = driver.poll_tx(0).expect("no gVNIC would do this");
    assert_eq!(done.tags, [tag]);
    done
}

/// Offload of a frame with a partial checksum.
pub fn partial(frame: &frames::Frame) -> Offload {
    Offload {
        checksum: ChecksumState::Partial(frame.checksum()),
        gso: None,
    }
}
