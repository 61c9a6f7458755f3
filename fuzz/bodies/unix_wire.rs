//! A UNIX wire to another process: its greeting, then packets of a virtio-net header and a frame.
//!
//! Input: the greeting (12 bytes), one byte of set-up, then packets: two bytes of length, one of flags, the packet.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixDatagram;

use nic::{Nic, NicConfig, UnixLink, WireHello};
use wire::{Instant, VnetHeader};

/// Set-up: this end supports super-packets, which are used only if both ends do.
const OFFLOADS: u8 = 1;
/// Set-up: an invalid greeting is replaced by a valid one, because random bytes seldom are one.
const GREETED: u8 = 2;
/// Packet: the frame has our destination address.
const FOR_US: u8 = 1;
/// Packet: shift of the number of blocks of 64 bytes to append.
const MORE_SHIFT: u8 = 2;

/// Place of the frame's destination address in a packet: the frame follows the virtio-net header.
const DESTINATION: std::ops::Range<usize> = VnetHeader::LEN..VnetHeader::LEN + 6;
/// Maximum number of packets of one run, limited by the socket's buffer.
const MAX_PACKETS: usize = 8;

/// Checks that a greeting is refused or accepted, and that every packet is a frame or one counted drop.
pub fn run(data: &[u8]) {
    let Some((greeting, [setup, packets @ ..])) = data.split_at_checked(WireHello::LEN) else {
        return;
    };
    let known = WireHello {
        offloads: setup & OFFLOADS != 0,
        mtu: 1500,
        // See the body `shared_wire`.
        shares_memory: false,
        needs_offloads: false,
    };
    let theirs = match WireHello::parse(greeting) {
        Ok(hello) => {
            assert_eq!(WireHello::parse(&hello.emit()), Ok(hello));
            hello
        }
        Err(_) if setup & GREETED != 0 => known,
        Err(_) => return,
    };
    let (ours, other) = UnixDatagram::pair().expect("two sockets");
    for socket in [&ours, &other] {
        socket
            .set_nonblocking(true)
            .expect("a socket can be non-blocking");
    }
    let link = UnixLink::new(OwnedFd::from(ours), known, theirs).expect("an epoll");
    let small = NicConfig {
        host_mem_bytes: 1 << 20,
        ..NicConfig::default()
    };
    let mut nic = Nic::new(Box::new(link), small).expect("a configuration that can be");
    let (mut sent, mut received) = (0, 0);
    for packet in packets_of(packets).take(MAX_PACKETS) {
        // An empty packet would end the wire; one that the socket refuses was not sent.
        if !packet.is_empty() && other.send(&packet).is_ok() {
            sent += 1;
        }
    }
    // Each call that returns nothing has dropped at least one packet, or none is left.
    for _ in 0..=sent {
        while let Some(packet) = nic.poll_rx(Instant::ZERO) {
            received += 1;
            let headers = packet.headers;
            assert_eq!(
                packet
                    .payload
                    .frags()
                    .unwrap()
                    .iter()
                    .map(netmem::Frag::len)
                    .sum::<usize>(),
                headers.payload_len
            );
            nic.recycle(packet.payload.into_frags());
        }
    }
    let dropped: u64 = nic.drops().iter().map(|(_, count)| count).sum();
    assert_eq!(
        received + dropped,
        sent,
        "a packet is neither a frame nor a counted drop"
    );
}

fn packets_of(mut input: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    std::iter::from_fn(move || {
        let [high, low, switches, rest @ ..] = input else {
            return None;
        };
        let len = usize::from(u16::from_be_bytes([*high, *low])).min(rest.len());
        let (bytes, after) = rest.split_at(len);
        input = after;
        let mut packet = bytes.to_vec();
        packet.resize(len + usize::from(switches >> MORE_SHIFT) * 64, 0x5a);
        if switches & FOR_US != 0
            && let Some(mac) = packet.get_mut(DESTINATION)
        {
            mac.copy_from_slice(&NicConfig::default().mac.0);
        }
        Some(packet)
    })
}
