//! The filters of packet sockets: classic BPF programs (linux Documentation/networking/filter.rst), which run in the kernel
//! before a packet is queued.

use crate::sys::packet::Instruction;

/// `BPF_LD | BPF_ABS` of four, two and one bytes (linux include/uapi/linux/bpf_common.h).
const LOAD_WORD: u16 = 0x20;
const LOAD_HALF: u16 = 0x28;
const LOAD_BYTE: u16 = 0x30;
/// `BPF_ALU | BPF_AND | BPF_K`, `BPF_JMP | BPF_JEQ | BPF_K` and `BPF_RET | BPF_K`.
const AND: u16 = 0x54;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;

/// Where a program finds the VLAN tag, which the kernel has removed from the frame: `SKF_AD_OFF + SKF_AD_VLAN_TAG` (linux
/// include/uapi/linux/filter.h). 0 for a frame without a tag.
const VLAN_TAG: u32 = 0xffff_f000 + 44;
/// VLAN identifier in the tag; 0 in a priority tag (IEEE 802.1Q 9.6).
const VLAN_ID_MASK: u32 = 0x0fff;
/// Group bit of the first byte of a MAC address (IEEE 802 8.2.2).
const GROUP_BIT: u32 = 1;
/// More than the length of any packet: nothing is cut off.
const WHOLE_PACKET: u32 = u32::MAX;

/// Returns a program that accepts untagged frames to `mac` and to multicast addresses.
pub(super) fn own_address(mac: [u8; 6]) -> Vec<Instruction> {
    let [a, b, c, d, e, f] = mac;
    let untagged = Test::of(LOAD_WORD, VLAN_TAG).masked(VLAN_ID_MASK).is(0);
    let to_a_group = Test::of(LOAD_BYTE, 0).masked(GROUP_BIT).is(GROUP_BIT);
    let to_us = [
        Test::of(LOAD_WORD, 0).is(u32::from_be_bytes([a, b, c, d])),
        Test::of(LOAD_HALF, 4).is(u32::from_be_bytes([0, 0, e, f])),
    ];
    accept_any(&[&[untagged, to_a_group], &[untagged, to_us[0], to_us[1]]])
}

/// A comparison of bytes of the frame with a value.
#[derive(Clone, Copy)]
struct Test {
    load: u16,
    offset: u32,
    mask: u32,
    value: u32,
}

impl Test {
    /// Starts a comparison of the bytes at `offset`, in network byte order; `load` has their number.
    const fn of(load: u16, offset: u32) -> Self {
        Self {
            load,
            offset,
            mask: u32::MAX,
            value: 0,
        }
    }

    const fn masked(self, mask: u32) -> Self {
        Self { mask, ..self }
    }

    const fn is(self, value: u32) -> Self {
        Self { value, ..self }
    }

    /// Appends the instructions. The last one is a jump to where the caller sets its `if_false`.
    fn emit(&self, out: &mut Vec<Instruction>) {
        out.push(instruction(self.load, self.offset));
        if self.mask != u32::MAX {
            out.push(instruction(AND, self.mask));
        }
        out.push(instruction(JUMP_IF_EQUAL, self.value));
    }
}

/// Returns a program that accepts a packet for which all tests of one of the `alternatives` are true. An alternative has at
/// most 255 instructions.
fn accept_any(alternatives: &[&[Test]]) -> Vec<Instruction> {
    let mut program = Vec::new();
    for tests in alternatives {
        let mut part = Vec::new();
        tests.iter().for_each(|test| test.emit(&mut part));
        part.push(instruction(RETURN, WHOLE_PACKET));
        let end = part.len();
        for (at, step) in part.iter_mut().enumerate() {
            if step.code == JUMP_IF_EQUAL {
                // To the next alternative; `end - at` is at least 2.
                step.if_false = u8::try_from(end - at - 1).unwrap_or(u8::MAX);
            }
        }
        program.extend(part);
    }
    program.push(instruction(RETURN, 0));
    program
}

const fn instruction(code: u16, value: u32) -> Instruction {
    Instruction {
        code,
        if_true: 0,
        if_false: 0,
        value,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a program as the kernel does; a load beyond the end of the frame rejects the packet.
    fn accepts(program: &[Instruction], frame: &[u8], vlan_tag: u32) -> bool {
        let load = |offset: u32, len: usize| {
            let at = offset as usize;
            let bytes = frame.get(at..at + len)?;
            Some(
                bytes
                    .iter()
                    .fold(0, |sum, byte| sum << 8 | u32::from(*byte)),
            )
        };
        let (mut at, mut register) = (0, 0);
        loop {
            let Instruction {
                code,
                if_true,
                if_false,
                value,
            } = program[at];
            at += 1;
            let loaded = match code {
                LOAD_WORD if value == VLAN_TAG => Some(vlan_tag),
                LOAD_WORD => load(value, 4),
                LOAD_HALF => load(value, 2),
                LOAD_BYTE => load(value, 1),
                AND => Some(register & value),
                JUMP_IF_EQUAL => {
                    at += usize::from(if register == value { if_true } else { if_false });
                    continue;
                }
                RETURN => return value != 0,
                other => panic!("instruction {other:#x}"),
            };
            let Some(loaded) = loaded else { return false };
            register = loaded;
        }
    }

    const OURS: [u8; 6] = [2, 0, 0x10, 0x20, 0x30, 0x40];

    fn frame_to(mac: [u8; 6]) -> Vec<u8> {
        [&mac[..], &[2, 0, 0, 0, 0, 9, 0x08, 0x00]].concat()
    }

    #[test]
    fn frames_to_our_address_and_to_groups_are_accepted() {
        let program = own_address(OURS);
        for mac in [OURS, [0xff; 6], [0x33, 0x33, 0xff, 0, 0, 2]] {
            assert!(accepts(&program, &frame_to(mac), 0), "{mac:x?}");
        }
    }

    #[test]
    fn frames_to_other_stations_are_rejected() {
        let program = own_address(OURS);
        for byte in 0..6 {
            let mut mac = OURS;
            mac[byte] ^= 0x80;
            assert!(!accepts(&program, &frame_to(mac), 0), "{mac:x?}");
        }
        assert!(!accepts(&program, &OURS[..5], 0), "a frame of five bytes");
    }

    #[test]
    fn frames_of_a_vlan_are_rejected_and_priority_tags_are_not() {
        const PRIORITY_7: u32 = 7 << 13;
        let program = own_address(OURS);
        for mac in [OURS, [0xff; 6]] {
            for vlan in [1, 100, 0xfff] {
                assert!(!accepts(&program, &frame_to(mac), vlan));
                assert!(!accepts(&program, &frame_to(mac), PRIORITY_7 | vlan));
            }
            assert!(accepts(&program, &frame_to(mac), PRIORITY_7));
        }
    }
}
