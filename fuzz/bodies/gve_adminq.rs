//! Writes of a hostile guest to the gVNIC's admin queue and registers.

use crate::common::frames::Frame;
use gve::RxOutcome;
use gve_defs::adminq::{AdminqStatus, BODY_BYTES, ConfigureFlowRule, FLOW_RULE_RESET};
use gve_driver::{BarAccess, Driver};
use zerocopy::FromZeros;

use crate::input::{Input, small_device};

/// Steps of one input.
const STEPS: usize = 64;

/// Parses `data` as steps: admin commands with valid or invalid addresses, register and doorbell writes, frames.
///
/// # Panics
///
/// If the device panics, leaves a command unanswered, or cannot be used by a correct driver after a reset.
pub fn run(data: &[u8]) {
    let mut input = Input(data);
    let (mut bench, mut driver) = small_device();
    let (argument, room) = driver.argument();
    for _ in 0..STEPS {
        let Some(kind) = input.byte() else { break };
        match kind {
            0xf0 => {
                let (bar, offset) = (input.or_zero() & 3, u64::from(input.word()));
                let width = usize::from(input.or_zero() % 9);
                let bytes: Vec<_> = (0..width).map(|_| input.or_zero()).collect();
                bench.write(bar, offset, &bytes);
                let mut out = vec![0; width];
                bench.read(bar, offset, &mut out);
            }
            0xf1 => {
                let frame = input.frame();
                bench.receive(&frame.unfinished(), frame.gso(1000));
            }
            0xf2 => {
                let len = usize::from(input.word()).min(room);
                let filled = input.bytes(len);
                bench.ram.put(argument, filled);
            }
            0xf3 => {
                if let Some(due) = bench.device.poll_at() {
                    bench.now = due;
                }
                bench.poll();
            }
            0xf4 => restart(&mut bench, &mut driver),
            _ => command(&mut bench, &mut driver, kind, &mut input),
        }
    }
    restart(&mut bench, &mut driver);
    let mut clear = ConfigureFlowRule::new_zeroed();
    clear.opcode = FLOW_RULE_RESET.into();
    driver
        .flow_rule(&mut bench, &clear)
        .expect("rules can be cleared");
    let frame = Frame::tcp4(100).bytes();
    assert_eq!(bench.receive_plain(&frame), RxOutcome::Delivered);
    let packets = crate::common::take_all_rx(&mut bench, &mut driver);
    assert_eq!(packets.len(), 1);
    assert_eq!(packets[0].frame(), frame);
}

/// Resets the device, as a correct driver does in an unknown state of the device.
fn restart(bench: &mut crate::common::Bench, driver: &mut Driver) {
    driver.reset(bench).expect("a reset succeeds in any state");
}

/// Executes a command with a body from the input, in which words may be replaced by valid addresses.
fn command(
    bench: &mut crate::common::Bench,
    driver: &mut Driver,
    opcode: u8,
    input: &mut Input<'_>,
) {
    let (argument, _) = driver.argument();
    let addresses = input.or_zero();
    let mut body = [0; BODY_BYTES];
    let given = input.bytes(BODY_BYTES);
    body[..given.len()].copy_from_slice(given);
    for (index, word) in body.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        if addresses & 1 << index != 0 {
            let offset = u64::from_be_bytes(*word) & 0xfff;
            *word = (argument + offset).to_be_bytes();
        }
    }
    // A register write may have removed the queue; then there is no answer.
    let status = driver.command(bench, u32::from(opcode), &body);
    if bench.stats().device.adminq_broken == 0 {
        assert_ne!(status, Ok(AdminqStatus::UNSET));
    }
}
