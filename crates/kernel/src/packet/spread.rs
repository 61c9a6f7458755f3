//! The program that selects the socket of a packet in a group: the one of the shard that has its connection.
//!
//! It computes the same as `steer::shard_of`, which is made of operations that classic BPF has.

use super::filter::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, INDEX_IPV4_HEADER, LOAD_BYTE, LOAD_HALF, LOAD_HALF_INDEXED,
    LOAD_WORD, PROTOCOL_TCP, RETURN, Test, alternative, instruction,
};
use crate::sys::packet::Instruction;

/// Operations of 32 bits on the register A, and the index register X (linux include/uapi/linux/bpf_common.h): `BPF_ALU` with
/// `BPF_MUL | BPF_K`, `BPF_RSH | BPF_K`, `BPF_XOR | BPF_X` and `BPF_ADD | BPF_X`; `BPF_MISC | BPF_TAX`; `BPF_ST`;
/// `BPF_LDX | BPF_MEM`; `BPF_RET | BPF_A`.
pub(super) const MULTIPLY: u16 = 0x24;
pub(super) const SHIFT_RIGHT: u16 = 0x74;
pub(super) const XOR_INDEX: u16 = 0xac;
pub(super) const ADD_INDEX: u16 = 0x0c;
pub(super) const COPY_TO_INDEX: u16 = 0x07;
pub(super) const STORE: u16 = 0x02;
pub(super) const LOAD_STORED_TO_INDEX: u16 = 0x61;
pub(super) const RETURN_REGISTER: u16 = 0x16;

/// Where a program finds the protocol of the packet, as in the EtherType field: `SKF_AD_OFF + SKF_AD_PROTOCOL` (linux
/// include/uapi/linux/filter.h).
pub(super) const PROTOCOL: u32 = 0xffff_f000;
/// Offset of the IP header, `SKF_NET_OFF`: the program of a group is given a packet without its Ethernet header.
pub(super) const NETWORK: u32 = 0xfff0_0000;

/// 2^32 divided by the golden ratio, as in `steer::shard_of`.
const GOLDEN_RATIO: u32 = 0x9e37_79b9;

/// Offsets in the IPv4 header (RFC 791 3.1) and in the IPv6 header (RFC 8200 3); the ports are behind them.
const V4_PROTOCOL: u32 = NETWORK + 9;
const V4_SOURCE: u32 = NETWORK + 12;
const V4_DESTINATION: u32 = NETWORK + 16;
const V6_NEXT_HEADER: u32 = NETWORK + 6;
const V6_SOURCE: u32 = NETWORK + 8;
const V6_DESTINATION: u32 = NETWORK + 24;
const V6_PORTS: u32 = NETWORK + 40;

/// Returns the program for `shards` sockets. A packet without ports is for socket 0.
pub(super) fn by_flow(shards: u16) -> Vec<Instruction> {
    let port = |offset| {
        [
            instruction(INDEX_IPV4_HEADER, NETWORK),
            instruction(LOAD_HALF_INDEXED, NETWORK + offset),
        ]
    };
    let v4 = [
        endpoint(port(0), &[V4_SOURCE]),
        endpoint(port(2), &[V4_DESTINATION]),
    ];
    let port = |offset| [instruction(LOAD_HALF, V6_PORTS + offset)];
    let words = |address| [0, 4, 8, 12].map(|word| address + word);
    let v6 = [
        endpoint(port(0), &words(V6_SOURCE)),
        endpoint(port(2), &words(V6_DESTINATION)),
    ];
    let is = |ethertype, protocol_at| {
        [
            Test::of(LOAD_WORD, PROTOCOL).is(ethertype),
            Test::of(LOAD_BYTE, protocol_at).is(PROTOCOL_TCP),
        ]
    };
    let mut program = alternative(&is(ETHERTYPE_IPV4, V4_PROTOCOL), flow(v4, shards));
    program.extend(alternative(
        &is(ETHERTYPE_IPV6, V6_NEXT_HEADER),
        flow(v6, shards),
    ));
    program.push(instruction(RETURN, 0));
    program
}

/// Returns instructions that return the shard of a flow between two endpoints.
fn flow([source, destination]: [Vec<Instruction>; 2], shards: u16) -> Vec<Instruction> {
    let mut steps = source;
    steps.push(instruction(STORE, 0));
    steps.extend(destination);
    steps.extend([
        instruction(LOAD_STORED_TO_INDEX, 0),
        instruction(ADD_INDEX, 0),
    ]);
    steps.extend(mix());
    steps.extend([
        instruction(SHIFT_RIGHT, 16),
        instruction(MULTIPLY, shards.into()),
        instruction(SHIFT_RIGHT, 16),
        instruction(RETURN_REGISTER, 0),
    ]);
    steps
}

/// Returns instructions that leave the hash of a port and the words of an address in A. `port` loads the port to A.
fn endpoint(port: impl IntoIterator<Item = Instruction>, address: &[u32]) -> Vec<Instruction> {
    let mut steps: Vec<_> = port.into_iter().chain(mix()).collect();
    for word in address {
        steps.extend([
            instruction(COPY_TO_INDEX, 0),
            instruction(LOAD_WORD, *word),
            instruction(XOR_INDEX, 0),
        ]);
        steps.extend(mix());
    }
    steps
}

/// Returns instructions that distribute the bits of A over all bits.
fn mix() -> Vec<Instruction> {
    let fold = |bits| {
        [
            instruction(COPY_TO_INDEX, 0),
            instruction(SHIFT_RIGHT, bits),
            instruction(XOR_INDEX, 0),
        ]
    };
    let multiply = instruction(MULTIPLY, GOLDEN_RATIO);
    let mut steps = fold(16).to_vec();
    steps.push(multiply);
    steps.extend(fold(15));
    steps.push(multiply);
    steps.extend(fold(16));
    steps
}

#[cfg(test)]
mod tests {
    use super::by_flow;
    use crate::packet::machine::{self, Packet};

    /// A TCP segment from `source` to `destination`, with IPv4 options if there is room for some.
    fn segment(ethertype: [u8; 2], header: &[u8], ports: [u16; 2]) -> Vec<u8> {
        let mut frame = vec![0; 12];
        frame.extend(ethertype);
        frame.extend(header);
        for port in ports {
            frame.extend(port.to_be_bytes());
        }
        frame.resize(frame.len() + 16, 0);
        frame
    }

    fn v4(words: u8, [source, destination]: [[u8; 4]; 2], ports: [u16; 2]) -> Vec<u8> {
        let mut header = vec![0; usize::from(words) * 4];
        header[0] = 0x40 | words;
        header[9] = 6;
        header[12..16].copy_from_slice(&source);
        header[16..20].copy_from_slice(&destination);
        segment([0x08, 0x00], &header, ports)
    }

    fn v6([source, destination]: [&str; 2], ports: [u16; 2]) -> Vec<u8> {
        let octets = |text: &str| text.parse::<std::net::Ipv6Addr>().unwrap().octets();
        let mut header = vec![0; 8];
        header[6] = 6;
        header.extend(octets(source));
        header.extend(octets(destination));
        segment([0x86, 0xdd], &header, ports)
    }

    fn socket(frame: &[u8], shards: u16) -> u32 {
        let packet = Packet {
            frame,
            vlan_tag: 0,
            kind: 0,
        };
        machine::run(&by_flow(shards), packet)
    }

    /// The same flows are in the tests of `steer::shard_of`.
    #[test]
    fn a_flow_is_on_the_socket_of_its_shard() {
        let addresses = [[10, 77, 0, 1], [10, 77, 0, 2]];
        for words in [5, 8, 15] {
            let frame = v4(words, addresses, [40_000, 5201]);
            assert_eq!(socket(&frame, 1 << 15), 0xc350 >> 1, "{words}");
        }
        let addresses = ["fd77::1", "fd77::2"];
        let frame = v6(addresses, [40_001, 5202]);
        assert_eq!(socket(&frame, 1 << 15), 0x8baf >> 1);
        for shards in [2, 3, 64] {
            let frame = v6(addresses, [40_001, 5202]);
            assert_eq!(socket(&frame, shards), (0x8baf * u32::from(shards)) >> 16);
        }
    }

    #[test]
    fn both_directions_are_on_one_socket() {
        let [a, b] = [[192, 0, 2, 7], [198, 51, 100, 3]];
        let (c, d) = ("2001:db8::7:8", "fe80::1234:5678");
        for port in 1..500 {
            let there = socket(&v4(5, [a, b], [port, 80]), 4);
            assert_eq!(socket(&v4(5, [b, a], [80, port]), 4), there);
            let there = socket(&v6([c, d], [port, 80]), 4);
            assert_eq!(socket(&v6([d, c], [80, port]), 4), there);
        }
    }

    #[test]
    fn packets_without_ports_are_for_the_first_socket() {
        let mut icmp = v4(5, [[10, 0, 0, 1], [10, 0, 0, 2]], [0x0800, 1]);
        icmp[14 + 9] = 1;
        let mut arp = v4(5, [[10, 0, 0, 1], [10, 0, 0, 2]], [40_000, 5201]);
        arp[12..14].copy_from_slice(&[0x08, 0x06]);
        let short = &v4(5, [[10, 77, 0, 1], [10, 77, 0, 2]], [40_000, 5201])[..35];
        for frame in [&icmp[..], &arp, short] {
            assert_eq!(socket(frame, 1 << 15), 0);
        }
    }
}
