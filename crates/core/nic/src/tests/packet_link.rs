//! The packet link over one end of a UNIX socket. Its end of file stands for the ENETDOWN of an interface that goes down.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use wire::Instant;

use super::harness::*;
use crate::*;

type Look = fn(BorrowedFd<'_>, u32) -> io::Result<InterfaceStatus>;

/// Returns our NIC on a link that asks `look`, and a peer that never asks.
fn pair(look: Look) -> (Nic, Nic) {
    let flags = SocketFlags::NONBLOCK;
    let kind = SocketType::SEQPACKET;
    let (ours, peers) = socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
    let nic = |socket, look: Look, mac| {
        let options = PacketLinkOptions {
            ifindex: 7,
            mtu: 1500,
            max_super_packet: MAX_PACKET_LEN,
            look,
        };
        let link = PacketLink::new(socket, options).unwrap();
        let config = NicConfig {
            mac,
            ..NicConfig::default()
        };
        Nic::new(Box::new(link), config).unwrap()
    };
    let never: Look = |_, _| panic!("the peer has received nothing");
    (nic(ours, look, OUR_MAC), nic(peers, never, PEER_MAC))
}

fn send(peer: &mut Nic) {
    let segment = tcp(&pattern(1, 3000));
    peer.transmit(packet(&segment, 1448), NOW).unwrap();
}

fn after(millis: u64) -> Instant {
    NOW + Duration::from_millis(millis)
}

fn status(state: LinkState, lost: u64) -> io::Result<InterfaceStatus> {
    Ok(InterfaceStatus { state, lost })
}

#[test]
fn lost_packets_are_asked_for_once_per_interval_and_only_after_packets() {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    let (mut ours, mut peer) = pair(|_, ifindex| {
        assert_eq!(ifindex, 7);
        ASKED.fetch_add(1, Ordering::Relaxed);
        status(LinkState::Up, 3)
    });
    assert!(ours.poll_rx(NOW).is_none());
    assert_eq!(ours.next_due(), None, "nothing was received");
    for _ in 0..3 {
        send(&mut peer);
        assert_eq!(ours.poll_rx(NOW).unwrap().segments, 3);
    }
    assert_eq!(ours.next_due(), Some(after(100)));
    assert!(ours.poll_rx(after(99)).is_none());
    assert_eq!(ASKED.load(Ordering::Relaxed), 0);
    for millis in [100, 101, 1000] {
        assert!(ours.poll_rx(after(millis)).is_none());
        assert_eq!(ASKED.load(Ordering::Relaxed), 1);
    }
    assert_eq!(ours.next_due(), None);
    assert_eq!(ours.drops().get(DropReason::RxLinkFull), 3);
}

#[test]
fn packets_that_the_kernel_cannot_describe_are_counted_and_do_not_take_the_link_down() {
    // Its reads fail as those of a packet socket with a packet of LRO: EINVAL.
    let descriptor = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let options = PacketLinkOptions {
        ifindex: 7,
        mtu: 1500,
        max_super_packet: MAX_PACKET_LEN,
        look: |_, _| status(LinkState::Up, 0),
    };
    let link = PacketLink::new(descriptor, options).unwrap();
    let mut ours = Nic::new(Box::new(link), NicConfig::default()).unwrap();
    assert!(ours.poll_rx(NOW).is_none());
    assert!(ours.drops().get(DropReason::RxLro) > 0);
    assert_eq!(ours.drops().get(DropReason::RxLinkError), 0);
    assert_eq!(ours.link_state(), LinkState::Up);
}

#[test]
fn a_link_that_is_down_asks_until_it_is_up() {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    let (mut ours, peer) = pair(|_, _| match ASKED.fetch_add(1, Ordering::Relaxed) {
        0 | 1 => status(LinkState::Down, 0),
        _ => status(LinkState::Up, 0),
    });
    assert_eq!(ours.link_state(), LinkState::Up);
    drop(peer);
    assert!(ours.poll_rx(NOW).is_none());
    assert_eq!(ours.link_state(), LinkState::Down);
    assert_eq!(ours.drops().get(DropReason::RxLinkError), 1);
    let mut states = Vec::new();
    for _ in 0..3 {
        let due = ours.next_due().expect("it asks again");
        // Only what was asked for matters here: this socket stays at its end of file.
        let link = ours.poll_rx(due);
        assert!(link.is_none());
        states.push(ASKED.load(Ordering::Relaxed));
    }
    assert_eq!(states, [1, 2, 3]);
}

#[test]
fn a_link_that_is_gone_stays_gone() {
    static ASKED: AtomicU32 = AtomicU32::new(0);
    let (mut ours, peer) = pair(|_, _| {
        ASKED.fetch_add(1, Ordering::Relaxed);
        status(LinkState::Gone, 0)
    });
    drop(peer);
    for millis in [0, 100, 200, 300] {
        assert!(ours.poll_rx(after(millis)).is_none());
    }
    assert_eq!(ours.link_state(), LinkState::Gone);
    assert_eq!(ASKED.load(Ordering::Relaxed), 1);
    assert_eq!(ours.next_due(), None);
    assert!(!ours.is_up());
}

/// Duplicates a descriptor of a link, as a driver does when it opens the link.
fn kept(fd: Option<BorrowedFd<'_>>) -> OwnedFd {
    fd.unwrap().try_clone_to_owned().unwrap()
}

fn is_readable(fd: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec::default())).unwrap() > 0
}

#[test]
fn room_in_a_full_socket_is_reported_by_a_descriptor_that_frames_do_not_make_readable() {
    let (mut ours, mut peer) = pair(|_, _| status(LinkState::Up, 0));
    let frames = kept(peer.link().poll_fd());
    let room = kept(peer.link().room_fd());
    assert!(!is_readable(&room), "a socket with room is no news");
    while !peer.is_told_of_room() {
        send(&mut peer);
    }
    assert!(!is_readable(&room) && !is_readable(&frames));
    while let Some(packet) = ours.poll_rx(NOW) {
        ours.recycle(packet.payload.into_frags());
    }
    assert!(is_readable(&room) && !is_readable(&frames));
    assert_eq!(peer.flush_tx(NOW), 0);
    assert!(!peer.is_told_of_room() && !is_readable(&room));
    send(&mut ours);
    assert!(is_readable(&frames) && !is_readable(&room));
}
