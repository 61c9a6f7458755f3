//! Writes of a hostile driver to an RX ring of the gVNIC, next to a queue of a correct driver.

use std::num::NonZeroU32;

use gve::{ChecksumState, Faults, RxOutcome};
use gve_defs::desc_dqo::RX_BUFFER_DESC_BYTES;
use gve_driver::{BarAccess, Driver, QueueOptions, RxPacket};

use crate::common::{Bench, RAM_BASE, take_rx};
use crate::input::{Input, small_device_with};

/// Steps of one input.
const STEPS: usize = 200;

/// Parses `data` as options of the queues, then frames, faults, buffers and doorbells. Queue 0 belongs to a correct driver,
/// queue 1 to a hostile one.
///
/// # Panics
///
/// If the device panics, violates the protocol on the queue of the correct driver, or damages one of its packets.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let shape = input.or_zero();
    let options = QueueOptions {
        buffer_bytes: if shape & 1 == 0 { 4096 } else { 2048 },
        header_bytes: [256, 0, 64, 1023][usize::from(shape >> 1 & 3)],
        rsc: shape & 8 != 0,
        ..QueueOptions::default()
    };
    let (bench, driver) = small_device_with(options);
    let mut guest = Guest {
        bench,
        driver,
        hostile_tail: 0,
        expected: Vec::new(),
        got: Vec::new(),
    };
    for _ in 0..STEPS {
        let Some(step) = input.byte() else { break };
        guest.step(step, &mut input);
    }
    guest.finish();
}

struct Guest {
    bench: Bench,
    driver: Driver,
    /// Tail of the hostile driver's buffer ring.
    hostile_tail: u16,
    /// Payloads that the correct driver must receive.
    expected: Vec<Vec<u8>>,
    /// Packets that it received.
    got: Vec<RxPacket>,
}

impl Guest {
    fn step(&mut self, step: u8, input: &mut Input<'_>) {
        let Self { bench, driver, .. } = self;
        match step {
            0..=119 => self.receive(input),
            120..=129 => {
                let mut frame = input.bytes(200).to_vec();
                frame.resize(frame.len().max(14), 0);
                bench.receive_plain(&frame);
            }
            130..=159 => self.post_hostile(step, input),
            160..=179 => bench.write(2, 513 * 4, &u32::from(self.hostile_tail).to_le_bytes()),
            180..=189 => bench.write(2, 513 * 4, &u32::from(input.word()).to_le_bytes()),
            190..=199 => driver
                .restart_rx(bench, 1)
                .expect("a queue can be created again"),
            200..=209 => bench.set_faults(Faults {
                linear_bytes: input.word(),
                unsplit_every: NonZeroU32::new(u32::from(input.or_zero())),
                rx_buffers_kept: u16::from(input.or_zero()),
            }),
            _ => self.got.extend(take_rx(bench, driver, 0)),
        }
    }

    fn receive(&mut self, input: &mut Input<'_>) {
        let frame = input.frame();
        let offload = input.offload(&frame);
        let bytes = match offload.checksum {
            ChecksumState::Partial(_) => frame.unfinished(),
            _ => frame.bytes(),
        };
        let before = self.bench.stats().rx[0];
        let received = self.bench.receive(&bytes, offload);
        let after = self.bench.stats().rx[0];
        // If no frame was waiting before, the counted packet is this frame. A segmented frame cannot be found as a whole.
        let alone = before.backlog == 0 && after.packets > before.packets;
        let whole = offload.gso.is_none() || after.rsc > before.rsc;
        if alone && whole && received == RxOutcome::Delivered {
            self.expected.push(frame.payload);
        }
    }

    fn post_hostile(&mut self, step: u8, input: &mut Input<'_>) {
        let mut desc = [0; RX_BUFFER_DESC_BYTES];
        let given = input.bytes(24);
        desc[..given.len()].copy_from_slice(given);
        if step < 150 {
            let addr = RAM_BASE + u64::from(step);
            desc[8..16].copy_from_slice(&addr.to_le_bytes());
        }
        if harms_the_good(&desc[8..16]) || harms_the_good(&desc[16..24]) {
            return;
        }
        let (buffers, _) = self.driver.rx_rings(1);
        let at = u64::from(self.hostile_tail) * RX_BUFFER_DESC_BYTES as u64;
        self.bench.ram.put(buffers + at, &desc);
        self.hostile_tail = (self.hostile_tail + 1) % 256;
    }

    /// Receives all packets, and checks that all expected ones are among them.
    fn finish(mut self) {
        self.bench.set_faults(Faults::default());
        for _ in 0..20 {
            let more = take_rx(&mut self.bench, &mut self.driver, 0);
            self.got.extend(more);
        }
        for payload in &self.expected {
            let holds = |packet: &RxPacket| packet.frame().ends_with(payload);
            let len = payload.len();
            assert!(
                self.got.iter().any(holds),
                "a payload of {len} bytes is missing"
            );
        }
        assert!(self.got.iter().all(|packet| !packet.is_damaged()));
    }
}

/// Returns whether a buffer is in memory of the correct driver: all except the page of the admin queue and the memory after
/// it, which the driver rewrites for each command.
fn harms_the_good(addr: &[u8]) -> bool {
    let bytes = addr.iter().rev();
    let addr = bytes.fold(0u64, |addr, byte| addr << 8 | u64::from(*byte));
    (RAM_BASE + 256..RAM_BASE + (6 << 20)).contains(&addr)
}
