//! What a hostile guest may post to an RX ring of the gVNIC, and what a good one gets meanwhile.

use std::num::NonZeroU32;

use gve::{Knobs, Received};
use gve_defs::desc_dqo::RX_BUFFER_DESC_BYTES;
use gve_driver::{Bus, QueueOptions, RxPacket};

use crate::common::RAM_BASE;
use crate::input::{Input, small_device_with};

/// Steps of one input.
const STEPS: usize = 200;

/// Reads `data` as how queues are made, then frames, knobs, buffers and doorbells. Queue 0 belongs to a good driver,
/// queue 1 to a hostile one.
///
/// # Panics
///
/// If the device does, or does to the good queue what no gVNIC may do, or damages a packet of it.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let shape = input.or_zero();
    let options = QueueOptions {
        buffer_bytes: if shape & 1 == 0 { 4096 } else { 2048 },
        header_bytes: [256, 0, 64, 1023][usize::from(shape >> 1 & 3)],
        rsc: shape & 8 != 0,
        ..QueueOptions::default()
    };
    let (mut bench, mut driver) = small_device_with(options);
    let mut expected = Vec::new();
    let mut got = Vec::new();
    let mut tail = 0u64;
    for _ in 0..STEPS {
        let Some(step) = input.byte() else { break };
        match step {
            0..=119 => {
                let frame = input.frame();
                let offload = input.offload(&frame);
                let bytes = match offload.checksum {
                    gve::ChecksumState::Partial(_) => frame.unfinished(),
                    _ => frame.bytes(),
                };
                let before = bench.stats().rx[0];
                let received = bench.receive(&bytes, offload);
                let after = bench.stats().rx[0];
                let to_good = after != before;
                let whole = offload.gso.is_none() || after.rsc > before.rsc;
                if to_good && whole && received == Received::Delivered && after.backlog == 0 {
                    expected.push((expected.len() + 1, frame.payload.clone()));
                }
            }
            120..=129 => {
                let mut frame = input.bytes(200).to_vec();
                frame.resize(frame.len().max(14), 0);
                bench.receive_plain(&frame);
            }
            130..=159 => {
                let (buffers, _) = driver.rx_rings(1);
                let mut desc = [0; RX_BUFFER_DESC_BYTES];
                let given = input.bytes(24);
                desc[..given.len()].copy_from_slice(given);
                if step < 150 {
                    let addr = RAM_BASE + u64::from(step);
                    desc[8..16].copy_from_slice(&addr.to_le_bytes());
                }
                if harms_the_good(&desc[8..16]) || harms_the_good(&desc[16..24]) {
                    continue;
                }
                bench
                    .ram
                    .put(buffers + tail * RX_BUFFER_DESC_BYTES as u64, &desc);
                tail = (tail + 1) % 256;
            }
            160..=179 => bench.write(2, 513 * 4, &(tail as u32).to_le_bytes()),
            180..=189 => bench.write(2, 513 * 4, &u32::from(input.word()).to_le_bytes()),
            190..=199 => driver
                .restart_rx(&mut bench, 1)
                .expect("a queue can be made again"),
            200..=209 => {
                let knobs = Knobs {
                    linear_bytes: input.word(),
                    unsplit_every: NonZeroU32::new(u32::from(input.or_zero())),
                    rx_buffers_kept: u16::from(input.or_zero()),
                };
                bench.set_knobs(knobs);
            }
            _ => got.extend(crate::common::take_rx(&mut bench, &mut driver, 0)),
        }
    }
    bench.set_knobs(Knobs::default());
    for _ in 0..20 {
        got.extend(crate::common::take_rx(&mut bench, &mut driver, 0));
    }
    for (_, payload) in &expected {
        let there = got
            .iter()
            .any(|packet: &RxPacket| packet.frame().ends_with(payload));
        assert!(there, "a packet of {} bytes is not there", payload.len());
    }
    assert!(got.iter().all(|packet| !packet.is_damaged()));
}

/// True for a buffer in memory of the good driver: all but the admin queue's page and what follows it, which it writes
/// anew for each command.
fn harms_the_good(addr: &[u8]) -> bool {
    let bytes = addr.iter().rev();
    let addr = bytes.fold(0u64, |addr, byte| addr << 8 | u64::from(*byte));
    (RAM_BASE + 256..RAM_BASE + (6 << 20)).contains(&addr)
}
