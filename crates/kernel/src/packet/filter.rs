//! The filters of packet sockets: classic BPF programs (linux Documentation/networking/filter.rst), which run in the kernel
//! before a packet is queued.

use std::net::IpAddr;

use super::SharedStation;
use crate::sys::packet::Instruction;

/// `BPF_LD | BPF_ABS` of four, two and one bytes (linux include/uapi/linux/bpf_common.h).
pub(super) const LOAD_WORD: u16 = 0x20;
pub(super) const LOAD_HALF: u16 = 0x28;
pub(super) const LOAD_BYTE: u16 = 0x30;
/// `BPF_LD | BPF_IND` of two and one bytes, at an offset from the index register.
pub(super) const LOAD_HALF_INDEXED: u16 = 0x48;
pub(super) const LOAD_BYTE_INDEXED: u16 = 0x50;
/// `BPF_LDX | BPF_MSH`: sets the index register to the length of the IPv4 header at an offset.
pub(super) const INDEX_IPV4_HEADER: u16 = 0xb1;
/// `BPF_ALU | BPF_AND | BPF_K`, `BPF_JMP` with `BPF_JEQ`, `BPF_JGE` and `BPF_JGT`, and `BPF_RET | BPF_K`.
pub(super) const AND: u16 = 0x54;
pub(super) const JUMP_IF_EQUAL: u16 = 0x15;
pub(super) const JUMP_IF_AT_LEAST: u16 = 0x35;
pub(super) const JUMP_IF_GREATER: u16 = 0x25;
pub(super) const RETURN: u16 = 0x06;

/// Where a program finds the VLAN tag, which the kernel has removed from the frame: `SKF_AD_OFF + SKF_AD_VLAN_TAG` (linux
/// include/uapi/linux/filter.h). 0 for a frame without a tag.
pub(super) const VLAN_TAG: u32 = 0xffff_f000 + 44;
/// Where it finds the type of the packet: `SKF_AD_OFF + SKF_AD_PKTTYPE`.
pub(super) const PACKET_TYPE: u32 = 0xffff_f000 + 4;
/// The type of packets that this machine sends (linux include/uapi/linux/if_packet.h `PACKET_OUTGOING`). Those of packets that
/// it receives are smaller.
const TYPE_OUTGOING: u32 = 4;
/// VLAN identifier in the tag; 0 in a priority tag (IEEE 802.1Q 9.6).
const VLAN_ID_MASK: u32 = 0x0fff;
/// Group bit of the first byte of a MAC address (IEEE 802 8.2.2).
const GROUP_BIT: u32 = 1;
/// More than the length of any packet: nothing is cut off.
const WHOLE_PACKET: u32 = u32::MAX;
/// Bytes of the two addresses of a frame. No other frame of a packet socket is shorter than its Ethernet header.
const ADDRESSES: u32 = 12;

/// Offsets in an untagged Ethernet frame: EtherType (IEEE 802.3), ARP operation (RFC 826), fields of IPv4 (RFC 791 3.1) and
/// IPv6 (RFC 8200 3). The port is behind the IPv4 header, at its offset from the index register.
const ETHERTYPE: u32 = 12;
const IP: u32 = 14;
const ARP_OPERATION: u32 = IP + 6;
const V4_FRAGMENT: u32 = IP + 6;
const V4_PROTOCOL: u32 = IP + 9;
const V4_DESTINATION: u32 = IP + 16;
const V6_NEXT_HEADER: u32 = IP + 6;
const V6_DESTINATION: u32 = IP + 24;
const V6_PAYLOAD: u32 = IP + 40;
/// Offset of the destination port in a TCP header (RFC 9293 3.1) and in a UDP header (RFC 768).
const TCP_DESTINATION_PORT: u32 = 2;
const UDP_DESTINATION_PORT: u32 = 2;
/// Port of DHCP clients (RFC 2131 4.1).
const DHCP_CLIENT_PORT: u32 = 68;
/// Fragment offset of the IPv4 field: 0 in a packet with a transport header.
const FRAGMENT_OFFSET_MASK: u32 = 0x1fff;

pub(super) const ETHERTYPE_IPV4: u32 = 0x0800;
const ETHERTYPE_ARP: u32 = 0x0806;
pub(super) const ETHERTYPE_IPV6: u32 = 0x86dd;
const ARP_REPLY: u32 = 2;
const PROTOCOL_ICMP: u32 = 1;
pub(super) const PROTOCOL_TCP: u32 = 6;
const PROTOCOL_UDP: u32 = 17;
const PROTOCOL_ICMPV6: u32 = 58;
/// Destination unreachable, and packet too big among it (RFC 792, RFC 1191).
const ICMP_UNREACHABLE: u32 = 3;
/// Router advertisement, neighbour solicitation and advertisement (RFC 4861 4).
const DISCOVERY_TYPES: [u32; 3] = [134, 135, 136];
/// Destination unreachable, packet too big (RFC 4443 3), neighbour advertisement (RFC 4861 4.4).
const ICMPV6_TYPES: [u32; 3] = [1, 2, 136];

/// Returns a program that accepts untagged frames to `mac` and to multicast addresses, and of tagged ones the addresses, so that
/// they are counted.
pub(super) fn own_address(mac: [u8; 6]) -> Vec<Instruction> {
    let to_a_group = Test::of(LOAD_BYTE, 0).masked(GROUP_BIT).is(GROUP_BIT);
    let [untagged, first, second] = to(mac);
    let mut program = accept(&[vec![untagged, to_a_group], vec![untagged, first, second]]);
    for tests in [&[to_a_group][..], &[first, second]] {
        program.extend(alternative(tests, [instruction(RETURN, ADDRESSES)]));
    }
    program.extend(nothing());
    program
}

/// Returns a program that accepts what the station `mac` needs to get addresses: messages to DHCP clients, advertisements of
/// routers, and ARP and neighbour discovery, which tell whether an address is in use.
pub(super) fn auto(mac: [u8; 6]) -> Vec<Instruction> {
    let to_a_group = Test::of(LOAD_BYTE, 0).masked(GROUP_BIT).is(GROUP_BIT);
    let alternatives: Vec<_> = [vec![UNTAGGED, to_a_group], to(mac).to_vec()]
        .into_iter()
        .flat_map(|to_us| {
            let arp = Test::of(LOAD_HALF, ETHERTYPE).is(ETHERTYPE_ARP);
            let port = Test::of(LOAD_HALF_INDEXED, IP + UDP_DESTINATION_PORT);
            let message = [
                Test::of(LOAD_HALF, ETHERTYPE).is(ETHERTYPE_IPV4),
                Test::of(LOAD_BYTE, V4_PROTOCOL).is(PROTOCOL_UDP),
                Test::of(LOAD_HALF, V4_FRAGMENT)
                    .masked(FRAGMENT_OFFSET_MASK)
                    .is(0),
                port.is(DHCP_CLIENT_PORT),
            ];
            let discovery = |kind| {
                [
                    Test::of(LOAD_HALF, ETHERTYPE).is(ETHERTYPE_IPV6),
                    Test::of(LOAD_BYTE, V6_NEXT_HEADER).is(PROTOCOL_ICMPV6),
                    Test::of(LOAD_BYTE, V6_PAYLOAD).is(kind),
                ]
            };
            let with = |tests: &[Test]| [&to_us[..], tests].concat();
            let mut alternatives = vec![with(&[arp]), with(&message)];
            alternatives.extend(DISCOVERY_TYPES.map(|kind| with(&discovery(kind))));
            alternatives
        })
        .collect();
    accept_any(&alternatives)
}

/// Returns a program that accepts untagged frames, and of tagged ones the addresses.
pub(super) fn untagged() -> Vec<Instruction> {
    let mut program = accept(&[vec![UNTAGGED]]);
    program.push(instruction(RETURN, ADDRESSES));
    program
}

/// Returns a program that accepts what a stack needs that shares `mac` and addresses with the kernel: TCP segments to its
/// ports, the errors of ICMP, and answers to its questions for MAC addresses. Everything else is for the kernel alone.
pub(super) fn shared_address(mac: [u8; 6], station: &SharedStation) -> Vec<Instruction> {
    let with = |tests: &[Test]| [&to(mac)[..], tests].concat();
    let first = u32::from(*station.ports.start());
    let last = u32::from(*station.ports.end());
    let is_v4 = Test::of(LOAD_HALF, ETHERTYPE).is(ETHERTYPE_IPV4);
    let is_v6 = Test::of(LOAD_HALF, ETHERTYPE).is(ETHERTYPE_IPV6);
    let whole = Test::of(LOAD_HALF, V4_FRAGMENT)
        .masked(FRAGMENT_OFFSET_MASK)
        .is(0);
    let mut alternatives: Vec<_> = station
        .addresses
        .iter()
        .map(|address| match address {
            IpAddr::V4(address) => {
                let port = Test::of(LOAD_HALF_INDEXED, IP + TCP_DESTINATION_PORT);
                with(&[
                    is_v4,
                    Test::of(LOAD_BYTE, V4_PROTOCOL).is(PROTOCOL_TCP),
                    whole,
                    Test::of(LOAD_WORD, V4_DESTINATION).is(address.to_bits()),
                    port.at_least(first),
                    port.at_most(last),
                ])
            }
            IpAddr::V6(address) => {
                let port = Test::of(LOAD_HALF, V6_PAYLOAD + TCP_DESTINATION_PORT);
                let bits = address.to_bits();
                let words = [96, 64, 32, 0].map(|shift| (bits >> shift) as u32);
                let word =
                    |at: usize| Test::of(LOAD_WORD, V6_DESTINATION + 4 * at as u32).is(words[at]);
                with(&[
                    is_v6,
                    Test::of(LOAD_BYTE, V6_NEXT_HEADER).is(PROTOCOL_TCP),
                    word(3),
                    word(2),
                    word(1),
                    word(0),
                    port.at_least(first),
                    port.at_most(last),
                ])
            }
        })
        .collect();
    alternatives.push(with(&[
        is_v4,
        Test::of(LOAD_BYTE, V4_PROTOCOL).is(PROTOCOL_ICMP),
        whole,
        Test::of(LOAD_BYTE_INDEXED, IP).is(ICMP_UNREACHABLE),
    ]));
    alternatives.push(with(&[
        Test::of(LOAD_HALF, ETHERTYPE).is(ETHERTYPE_ARP),
        Test::of(LOAD_HALF, ARP_OPERATION).is(ARP_REPLY),
    ]));
    alternatives.extend(ICMPV6_TYPES.map(|kind| {
        with(&[
            is_v6,
            Test::of(LOAD_BYTE, V6_NEXT_HEADER).is(PROTOCOL_ICMPV6),
            Test::of(LOAD_BYTE, V6_PAYLOAD).is(kind),
        ])
    }));
    accept_any(&alternatives)
}

const UNTAGGED: Test = Test::of(LOAD_WORD, VLAN_TAG).masked(VLAN_ID_MASK).is(0);

/// Returns the tests of an untagged frame to `mac`.
fn to([a, b, c, d, e, f]: [u8; 6]) -> [Test; 3] {
    [
        UNTAGGED,
        Test::of(LOAD_WORD, 0).is(u32::from_be_bytes([a, b, c, d])),
        Test::of(LOAD_HALF, 4).is(u32::from_be_bytes([0, 0, e, f])),
    ]
}

/// A comparison of bytes of the frame with a value.
#[derive(Clone, Copy)]
pub(super) struct Test {
    load: u16,
    offset: u32,
    mask: u32,
    /// The instruction that compares: one of the three jumps.
    jump: u16,
    value: u32,
}

impl Test {
    /// Starts a comparison of the bytes at `offset`, in network byte order; `load` has their number.
    pub(super) const fn of(load: u16, offset: u32) -> Self {
        Self {
            load,
            offset,
            mask: u32::MAX,
            jump: JUMP_IF_EQUAL,
            value: 0,
        }
    }

    const fn masked(self, mask: u32) -> Self {
        Self { mask, ..self }
    }

    pub(super) const fn is(self, value: u32) -> Self {
        Self { value, ..self }
    }

    const fn at_least(self, value: u32) -> Self {
        let jump = JUMP_IF_AT_LEAST;
        Self {
            jump,
            value,
            ..self
        }
    }

    const fn at_most(self, value: u32) -> Self {
        let jump = JUMP_IF_GREATER;
        Self {
            jump,
            value,
            ..self
        }
    }

    /// Appends the instructions, the last of which is the jump.
    fn emit(&self, out: &mut Vec<Instruction>) {
        if matches!(self.load, LOAD_HALF_INDEXED | LOAD_BYTE_INDEXED) {
            out.push(instruction(INDEX_IPV4_HEADER, IP));
        }
        out.push(instruction(self.load, self.offset));
        if self.mask != u32::MAX {
            out.push(instruction(AND, self.mask));
        }
        out.push(instruction(self.jump, self.value));
    }
}

/// Returns a program that accepts a packet for which all tests of one of the `alternatives` are true. An alternative has at
/// most 255 instructions.
fn accept_any(alternatives: &[Vec<Test>]) -> Vec<Instruction> {
    let mut program = accept(alternatives);
    program.extend(nothing());
    program
}

/// Returns the part of such a program before what happens to other packets.
fn accept(alternatives: &[Vec<Test>]) -> Vec<Instruction> {
    let alternative = |tests: &Vec<Test>| alternative(tests, [instruction(RETURN, WHOLE_PACKET)]);
    alternatives.iter().flat_map(alternative).collect()
}

/// Returns a program that accepts what `filter` does, without packets that this machine sends. Before Linux 6.2 a group of
/// sockets gets them, although each of its sockets ignores them.
pub(super) fn incoming(filter: Vec<Instruction>) -> Vec<Instruction> {
    let outgoing = Test::of(LOAD_WORD, PACKET_TYPE).at_least(TYPE_OUTGOING);
    let mut program = alternative(&[outgoing], nothing());
    program.extend(filter);
    program
}

/// Returns a program that accepts no packet.
pub(super) fn nothing() -> Vec<Instruction> {
    vec![instruction(RETURN, 0)]
}

/// Returns a part of a program: if all tests are true, `then`, which returns; otherwise the part is left at its end. It has at
/// most 255 instructions.
pub(super) fn alternative(
    tests: &[Test],
    then: impl IntoIterator<Item = Instruction>,
) -> Vec<Instruction> {
    let mut part = Vec::new();
    tests.iter().for_each(|test| test.emit(&mut part));
    let tested = part.len();
    part.extend(then);
    let end = part.len();
    for (at, step) in part[..tested].iter_mut().enumerate() {
        // `end - at` is at least 2.
        let skip = u8::try_from(end - at - 1).unwrap_or(u8::MAX);
        match step.code {
            JUMP_IF_EQUAL | JUMP_IF_AT_LEAST => step.if_false = skip,
            JUMP_IF_GREATER => step.if_true = skip,
            _ => {}
        }
    }
    part
}

pub(super) const fn instruction(code: u16, value: u32) -> Instruction {
    Instruction {
        code,
        if_true: 0,
        if_false: 0,
        value,
    }
}

#[cfg(test)]
mod tests {
    use super::super::machine::{self, Packet};
    use super::*;

    fn accepts(program: &[Instruction], frame: &[u8], vlan_tag: u32) -> bool {
        accepted(program, frame, vlan_tag) == WHOLE_PACKET
    }

    /// Returns how many bytes a socket gets at most.
    fn accepted(program: &[Instruction], frame: &[u8], vlan_tag: u32) -> u32 {
        let packet = Packet {
            frame,
            vlan_tag,
            kind: 0,
        };
        machine::run(program, packet)
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
            for vlan in [0, 1] {
                assert_eq!(accepted(&program, &frame_to(mac), vlan), 0, "{mac:x?}");
            }
        }
        assert!(!accepts(&program, &OURS[..5], 0), "a frame of five bytes");
    }

    #[test]
    fn of_frames_of_a_vlan_only_the_addresses_are_accepted_and_priority_tags_are_none() {
        const PRIORITY_7: u32 = 7 << 13;
        for program in [own_address(OURS), untagged()] {
            for mac in [OURS, [0xff; 6]] {
                for vlan in [1, 100, 0xfff] {
                    assert_eq!(accepted(&program, &frame_to(mac), vlan), ADDRESSES);
                    let tag = PRIORITY_7 | vlan;
                    assert_eq!(accepted(&program, &frame_to(mac), tag), ADDRESSES);
                }
                assert!(accepts(&program, &frame_to(mac), PRIORITY_7));
            }
        }
        for program in [auto(OURS), shared_address(OURS, &station())] {
            assert_eq!(accepted(&program, &frame_to(OURS), 1), 0);
        }
    }

    #[test]
    fn a_group_gets_no_packets_that_this_machine_sends() {
        let program = incoming(own_address(OURS));
        for (kind, is_received) in [(0, true), (1, true), (3, true), (TYPE_OUTGOING, false)] {
            let packet = Packet {
                frame: &frame_to([0xff; 6]),
                vlan_tag: 0,
                kind,
            };
            assert_eq!(machine::run(&program, packet) != 0, is_received, "{kind}");
        }
    }

    fn station() -> SharedStation {
        SharedStation {
            addresses: vec!["10.0.0.2".parse().unwrap(), "fd00::2".parse().unwrap()],
            ports: 5201..=5299,
        }
    }

    /// An IPv4 packet to `to` with a header of `words` words, and its payload.
    fn ipv4(protocol: u8, to: [u8; 4], words: u8, payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0; usize::from(words) * 4];
        packet[0] = 0x40 | words;
        packet[9] = protocol;
        packet[16..20].copy_from_slice(&to);
        [&frame_to(OURS)[..12], &[8, 0], &packet, payload].concat()
    }

    fn ipv6(next: u8, to: &str, payload: &[u8]) -> Vec<u8> {
        let to: std::net::Ipv6Addr = to.parse().unwrap();
        let mut packet = vec![0; 40];
        packet[6] = next;
        packet[24..].copy_from_slice(&to.octets());
        [&frame_to(OURS)[..12], &[0x86, 0xdd], &packet, payload].concat()
    }

    fn segment_to(port: u16) -> Vec<u8> {
        let mut header = vec![0; 20];
        header[2..4].copy_from_slice(&port.to_be_bytes());
        header
    }

    #[test]
    fn a_shared_address_gets_segments_to_its_ports_only() {
        let program = shared_address(OURS, &station());
        for (port, ours) in [
            (5200, false),
            (5201, true),
            (5250, true),
            (5299, true),
            (5300, false),
        ] {
            let segment = segment_to(port);
            for words in [5, 8, 15] {
                let frame = ipv4(6, [10, 0, 0, 2], words, &segment);
                assert_eq!(accepts(&program, &frame, 0), ours, "{port}, {words} words");
            }
            assert!(!accepts(&program, &ipv4(17, [10, 0, 0, 2], 5, &segment), 0));
            assert!(!accepts(&program, &ipv4(6, [10, 0, 0, 3], 5, &segment), 0));
            assert_eq!(accepts(&program, &ipv6(6, "fd00::2", &segment), 0), ours);
            for other in ["fd01::2", "fd00::1:2", "fd00::1:0:2", "fd00::3"] {
                assert!(!accepts(&program, &ipv6(6, other, &segment), 0), "{other}");
            }
        }
    }

    #[test]
    fn a_shared_address_gets_errors_and_neighbours_but_no_questions() {
        let program = shared_address(OURS, &station());
        for (kind, ours) in [(0, false), (3, true), (8, false)] {
            assert_eq!(
                accepts(&program, &ipv4(1, [10, 0, 0, 2], 6, &[kind]), 0),
                ours
            );
        }
        for (kind, ours) in [
            (1, true),
            (2, true),
            (128, false),
            (135, false),
            (136, true),
        ] {
            assert_eq!(
                accepts(&program, &ipv6(58, "fd00::2", &[kind]), 0),
                ours,
                "{kind}"
            );
        }
        for (operation, ours) in [(1, false), (2, true)] {
            let arp = [
                &frame_to(OURS)[..12],
                &[8, 6, 0, 1, 8, 0, 6, 4, 0, operation],
            ]
            .concat();
            assert_eq!(accepts(&program, &arp, 0), ours);
        }
        let mut fragment = ipv4(6, [10, 0, 0, 2], 5, &segment_to(5201));
        fragment[21] = 1;
        assert!(
            !accepts(&program, &fragment, 0),
            "a later fragment has no ports"
        );
        let broadcast = frame_to([0xff; 6]);
        assert!(!accepts(&program, &broadcast, 0));
    }
}
