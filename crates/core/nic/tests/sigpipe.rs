//! SIGPIPE ends a program that does not ignore it, so a UNIX wire must not raise it. Linux raises it for stream sockets
//! only. A separate test program, because a signal handler is for the whole process.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nic::{DropReason, HeadBuf, Nic, NicConfig, TxPacket, UnixLink, WireHello};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use signal_hook::consts::SIGPIPE;
use wire::Instant;

const HELLO: WireHello = WireHello {
    offloads: true,
    mtu: 1500,
    shares_memory: false,
    needs_offloads: false,
};

/// Headers of a frame that is not for the sender.
const HEAD: [u8; 14] = [2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1, 0x88, 0xb5];

fn pair(kind: SocketType) -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, kind, SocketFlags::NONBLOCK, None).unwrap()
}

#[test]
fn sending_on_a_unix_wire_whose_peer_has_left_raises_no_sigpipe() {
    let raised = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(SIGPIPE, Arc::clone(&raised)).unwrap();

    let (end, peer) = pair(SocketType::SEQPACKET);
    let link = UnixLink::new(end, HELLO, HELLO).unwrap();
    let mut nic = Nic::new(Box::new(link), NicConfig::default()).unwrap();
    drop(peer);
    let packet = TxPacket {
        head: HeadBuf::from_slice(&HEAD).unwrap(),
        payload: netmem::FragList::new(),
        checksum: None,
        gso_size: 0,
    };
    assert_eq!(
        nic.transmit(packet, Instant::ZERO),
        Err(DropReason::TxLinkDown)
    );
    assert!(!raised.load(Ordering::Relaxed));

    // The handler works: a stream socket raises the signal.
    let (end, peer) = pair(SocketType::STREAM);
    drop(peer);
    assert!(rustix::io::write(&end, b"x").is_err());
    assert!(raised.load(Ordering::Relaxed));
}
