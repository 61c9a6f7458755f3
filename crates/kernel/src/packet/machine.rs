//! Runs classic BPF programs as the kernel does, for tests.

use super::filter::*;
use super::spread::*;
use crate::sys::packet::Instruction;

/// Registers and memory of a program.
#[derive(Default)]
struct Machine {
    register: u32,
    index: u32,
    stored: u32,
}

/// A packet as a program sees it.
#[derive(Clone, Copy)]
pub(super) struct Packet<'a> {
    pub(super) frame: &'a [u8],
    /// The VLAN tag that the kernel has removed.
    pub(super) vlan_tag: u32,
    /// The type of packet(7): 0 for one to this station.
    pub(super) kind: u32,
}

/// Returns what the program returns for a packet; 0 after a load beyond the end of the frame.
pub(super) fn run(program: &[Instruction], packet: Packet<'_>) -> u32 {
    let (mut at, mut machine) = (0, Machine::default());
    loop {
        let step = program[at];
        at += 1;
        let jump = match step.code {
            JUMP_IF_EQUAL => machine.register == step.value,
            JUMP_IF_AT_LEAST => machine.register >= step.value,
            JUMP_IF_GREATER => machine.register > step.value,
            RETURN => return step.value,
            RETURN_REGISTER => return machine.register,
            _ => match machine.step(step, packet) {
                Some(()) => continue,
                None => return 0,
            },
        };
        at += usize::from(if jump { step.if_true } else { step.if_false });
    }
}

impl Machine {
    fn step(&mut self, step: Instruction, packet: Packet<'_>) -> Option<()> {
        let Packet {
            frame,
            vlan_tag,
            kind,
        } = packet;
        let Instruction { code, value, .. } = step;
        let loaded = match code {
            LOAD_WORD if value == VLAN_TAG => vlan_tag,
            LOAD_WORD if value == PACKET_TYPE => kind,
            LOAD_WORD if value == PROTOCOL => load(frame, 12, 2)?,
            LOAD_WORD => load(frame, value, 4)?,
            LOAD_HALF => load(frame, value, 2)?,
            LOAD_BYTE => load(frame, value, 1)?,
            LOAD_HALF_INDEXED => load(frame, value.wrapping_add(self.index), 2)?,
            LOAD_BYTE_INDEXED => load(frame, value.wrapping_add(self.index), 1)?,
            AND => self.register & value,
            MULTIPLY => self.register.wrapping_mul(value),
            SHIFT_RIGHT => self.register >> value,
            XOR_INDEX => self.register ^ self.index,
            ADD_INDEX => self.register.wrapping_add(self.index),
            INDEX_IPV4_HEADER => {
                self.index = 4 * (load(frame, value, 1)? & 15);
                self.register
            }
            COPY_TO_INDEX => {
                self.index = self.register;
                self.register
            }
            STORE => {
                assert_eq!(value, 0);
                self.stored = self.register;
                self.register
            }
            LOAD_STORED_TO_INDEX => {
                assert_eq!(value, 0);
                self.index = self.stored;
                self.register
            }
            other => panic!("instruction {other:#x}"),
        };
        self.register = loaded;
        Some(())
    }
}

/// Loads bytes of the frame, or of its IP header.
fn load(frame: &[u8], offset: u32, len: usize) -> Option<u32> {
    const ETHERNET: u32 = 14;
    let at = match offset.checked_sub(NETWORK) {
        Some(of_ip) => ETHERNET + of_ip,
        None => offset,
    };
    let at = usize::try_from(at).ok()?;
    let bytes = frame.get(at..at + len)?;
    Some(
        bytes
            .iter()
            .fold(0, |sum, byte| sum << 8 | u32::from(*byte)),
    )
}
