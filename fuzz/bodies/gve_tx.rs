//! Writes of a hostile guest to a TX ring of the gVNIC.

use gve::{ChecksumState, WireFeatures};
use gve_defs::desc_dqo::TX_DESC_BYTES;
use gve_driver::{BarAccess, TxRequest};
use wire::RxHeaders;

use crate::common::frames::Frame;
use crate::common::{Outgoing, RAM_BASE};
use crate::input::{Input, small_device};

/// Maximum number of descriptors of one input.
const DESCS: usize = 600;
/// Maximum length of a sent frame.
const MAX_FRAME: usize = 65_535 + 18;

/// Parses `data` as the offloads of the wire, a frame in guest memory, then descriptors and doorbells.
///
/// # Panics
///
/// If the device panics, sends an invalid frame, or the queue does not work after a reset.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let (mut bench, mut driver) = small_device();
    bench.wire.features = WireFeatures::from_bits_truncate(input.or_zero());
    let frame = input.frame();
    let place = bench.ram.alloc(68 * 1024);
    bench.ram.put(place, &frame.for_tso());
    let ring = driver.tx_ring(0);
    let mut tail = 0u32;
    for _ in 0..DESCS {
        let Some(step) = input.byte() else { break };
        match step {
            0..=199 => {
                let desc = descriptor(&mut input, step, place);
                let at = ring + u64::from(tail) * TX_DESC_BYTES as u64;
                bench.ram.put(at, &desc);
                tail = (tail + 1) % 256;
            }
            200..=239 => bench.write(2, 256 * 4, &tail.to_le_bytes()),
            240..=249 => bench.write(2, 256 * 4, &u32::from(input.or_zero()).to_le_bytes()),
            room => {
                bench.wire.room = usize::from(room - 250);
                bench.resume_tx();
            }
        }
        bench.take_sent().iter().for_each(check);
    }
    bench.write(2, 256 * 4, &tail.to_le_bytes());
    bench.take_sent().iter().for_each(check);
    driver
        .reset(&mut bench)
        .expect("a reset succeeds in any state");
    bench.wire.room = usize::MAX;
    let frame = Frame::tcp4(100).bytes();
    let tag = driver.send(&mut bench, 0, &TxRequest::plain(&frame));
    assert_eq!(
        driver.poll_tx(0).map(|done| done.tags),
        Ok(vec![tag.expect("an empty ring")])
    );
    assert_eq!(bench.take_sent()[0].bytes, frame);
}

/// Returns a descriptor from the input. For a `step` below 100 its buffer is a part of the frame in memory, below 150 it has
/// the type bits of a packet or a context.
fn descriptor(input: &mut Input<'_>, step: u8, place: u64) -> [u8; TX_DESC_BYTES] {
    let mut desc = [0; TX_DESC_BYTES];
    let given = input.bytes(TX_DESC_BYTES);
    desc[..given.len()].copy_from_slice(given);
    if step < 100 && desc[8] & 0x1f != 0x5 {
        let offset = u64::from(u16::from_le_bytes([desc[0], desc[1]]));
        desc[..8].copy_from_slice(&(place + offset).to_le_bytes());
    } else if step < 120 {
        let addr = RAM_BASE.wrapping_add(u64::from(desc[0]));
        desc[..8].copy_from_slice(&addr.to_le_bytes());
    }
    if step < 150 {
        let kind = [0xc, 0xc, 0xc, 0xc, 0x5, 0x4][usize::from(step % 6)];
        desc[8] = desc[8] & 0xe0 | kind;
    }
    desc
}

fn check(sent: &Outgoing) {
    let Outgoing { bytes, offload } = sent;
    assert!((14..=MAX_FRAME).contains(&bytes.len()));
    if let ChecksumState::Partial(what) = offload.checksum {
        let field = usize::from(what.start) + usize::from(what.offset);
        assert!(field + 2 <= bytes.len());
    }
    match offload.gso {
        Some(_) => {
            let headers = RxHeaders::parse(bytes, bytes.len()).expect("the device parsed them");
            assert!(headers.ports().is_some() && headers.payload_len > 0);
            assert!(matches!(offload.checksum, ChecksumState::Partial(_)));
        }
        None => assert!(bytes.len() <= 9000 + 18),
    }
}
