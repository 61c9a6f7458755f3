//! Links between two NICs.

mod impaired;
mod memory_wire;
mod tap;
mod unix;

use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use netmem::{MemoryProvider, NiovSize, PagePool, Payload};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use wire::Instant;

use super::harness::*;
use crate::*;

/// Two NICs, the second sends to the first.
fn nics(a: impl Link + 'static, b: impl Link + 'static) -> (Nic, Nic) {
    let config = NicConfig {
        mac: OUR_MAC,
        ..NicConfig::default()
    };
    let peer = NicConfig {
        mac: PEER_MAC,
        ..NicConfig::default()
    };
    (
        Nic::new(Box::new(a), config).unwrap(),
        Nic::new(Box::new(b), peer).unwrap(),
    )
}

fn bytes(payload: &netmem::FragList) -> Vec<u8> {
    let mut out = vec![0; payload.len()];
    let mut at = 0;
    for frag in payload {
        frag.copy_to(0, &mut out[at..at + frag.len()]).unwrap();
        at += frag.len();
    }
    out
}

fn receive_all(nic: &mut Nic, now: Instant) -> Vec<u8> {
    let mut all = Vec::new();
    while let Some(packet) = nic.poll_rx(now) {
        all.extend(bytes(packet.payload.frags().unwrap()));
        nic.recycle(packet.payload.into_frags());
    }
    all
}

fn readable(nic: &Nic) -> bool {
    let fd = nic.poll_fd().expect("the wire has a wakeup fd");
    let mut fds = [rustix::event::PollFd::new(
        &fd,
        rustix::event::PollFlags::IN,
    )];
    rustix::event::poll(&mut fds, Some(&rustix::event::Timespec::default())).unwrap() > 0
}

fn plain_wire() -> (WireLink, WireLink) {
    WireLink::pair(WireOptions {
        offload: false,
        ..WireOptions::default()
    })
    .unwrap()
}

fn raw<'a>(frame: &'a [u8], port: &'a netmem::DmaPort) -> TxFrame<'a> {
    static NOTHING: std::sync::LazyLock<Nothing> = std::sync::LazyLock::new(Nothing::default);
    TxFrame {
        head: frame,
        payload: &NOTHING.0,
        checksum: None,
        gso_size: 0,
        port,
    }
}

#[derive(Default)]
struct Nothing(netmem::FragList);

/// A TAP link over datagram sockets, which keep packet boundaries like a TAP; the test is the kernel.
fn fake_tap(queues: usize, options: TapOptions) -> (TapLink, Vec<OwnedFd>) {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let pairs: Vec<_> = (0..queues)
        .map(|_| socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap())
        .collect();
    let (ours, theirs): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    (TapLink::new(ours, options).unwrap(), theirs)
}

fn write_frame(kernel: &OwnedFd, vnet: &[u8], frame: &[u8]) {
    let message = [vnet, frame].concat();
    assert_eq!(rustix::io::write(kernel, &message), Ok(message.len()));
}

/// The ends of a UNIX wire, each with or without offloads.
fn unix_wire(ours: bool, theirs: bool) -> (UnixLink, UnixLink) {
    unix_wire_of([ours, theirs], false)
}

const HELLO: WireHello = WireHello {
    offloads: true,
    mtu: 1500,
    shares_memory: false,
    needs_offloads: false,
};

/// Returns both ends of a UNIX wire, which have offloads or not, and share memory or not.
fn unix_wire_of(offloads: [bool; 2], shares_memory: bool) -> (UnixLink, UnixLink) {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    let [ours, theirs] = offloads.map(|offloads| WireHello {
        offloads,
        shares_memory,
        ..HELLO
    });
    (
        UnixLink::new(a, ours, theirs).unwrap(),
        UnixLink::new(b, theirs, ours).unwrap(),
    )
}

/// Returns a function that tells whether a link's descriptor is readable.
fn watch(link: &dyn Link) -> impl Fn() -> bool + use<> {
    let fd = link.poll_fd().unwrap().try_clone_to_owned().unwrap();
    move || {
        let mut fds = [rustix::event::PollFd::new(
            &fd,
            rustix::event::PollFlags::IN,
        )];
        rustix::event::poll(&mut fds, Some(&rustix::event::Timespec::default())).unwrap() > 0
    }
}

/// Sends the same packet until one has to wait; returns the number of packets.
fn fill_up(nic: &mut Nic, segment: &Tcp) -> usize {
    let mut sent = 0;
    while nic.flush_tx(NOW) == 0 {
        let tx = packet(segment, 0);
        nic.transmit(tx, NOW).unwrap();
        sent += 1;
        assert!(sent < 100_000);
    }
    sent
}
