//! Urgent data: the byte stays in the stream, and sockets tell that it is there (POLLPRI).

use std::net::SocketAddr;

use devmem_uapi::{CmsgWriter, MsgFlags};
use netsim::{RawPeer, RawSegment, Side};
use stack::{Readiness, RecvMsg, SocketId};
use wire::TcpFlags;

use crate::scenarios::common::PORT;

struct Flow {
    peer: RawPeer,
    id: SocketId,
    ends: (SocketAddr, SocketAddr),
    seq: u32,
    ack: u32,
}

impl Flow {
    fn new() -> Self {
        let ends = (
            SocketAddr::new(Side::A.ipv4(), 4000),
            SocketAddr::new(Side::B.ipv4(), PORT),
        );
        let mut peer = RawPeer::new();
        peer.introduce();
        let listener = peer.stack.listen(ends.1, 4).unwrap();
        let syn = RawSegment {
            seq: 100,
            flags: TcpFlags::SYN,
            ..RawSegment::default()
        };
        peer.send_tcp(ends.0, ends.1, &syn);
        let (headers, _) = peer.receive_tcp().expect("a SYN-ACK");
        let (seq, ack) = (101, headers.tcp().unwrap().seq + 1);
        let last = RawSegment {
            seq,
            ack,
            ..RawSegment::default()
        };
        peer.send_tcp(ends.0, ends.1, &last);
        let (id, _) = peer.stack.accept(listener).unwrap();
        Self {
            peer,
            id,
            ends,
            seq,
            ack,
        }
    }

    /// Sends bytes; an urgent pointer of 0 is none.
    fn send(&mut self, payload: &[u8], urgent: u16) {
        let flags = match urgent {
            0 => TcpFlags::ACK,
            _ => TcpFlags::ACK | TcpFlags::URG,
        };
        let segment = RawSegment {
            seq: self.seq,
            ack: self.ack,
            flags,
            urgent,
            payload,
            ..RawSegment::default()
        };
        self.peer.send_tcp(self.ends.0, self.ends.1, &segment);
        self.seq += payload.len() as u32;
    }

    fn read(&mut self, len: usize) -> usize {
        let mut host = vec![0; len];
        let mut none = CmsgWriter::new(&mut []);
        let mut msg = RecvMsg::new(&mut host);
        let stack = &mut self.peer.stack;
        let read = stack.recvmsg(self.id, &mut msg, &mut none, MsgFlags::empty());
        read.expect("there are bytes").bytes
    }

    fn is_urgent(&self) -> bool {
        let readiness = self.peer.stack.readiness(self.id).unwrap();
        readiness.contains(Readiness::URGENT)
    }
}

#[test]
fn an_urgent_byte_is_told_from_its_arrival_until_it_is_read() {
    let mut flow = Flow::new();
    flow.send(b"ab", 0);
    assert!(!flow.is_urgent());
    // The byte before the one that the pointer names: `X`.
    flow.send(b"cXd", 2);
    assert!(flow.is_urgent());
    assert_eq!(flow.read(3), 3);
    assert!(flow.is_urgent(), "it is the next byte");
    assert_eq!(flow.read(1), 1);
    assert!(!flow.is_urgent(), "it was read");
    assert_eq!(flow.read(1), 1);
}

#[test]
fn an_urgent_byte_that_is_announced_is_not_told_before_it_arrives() {
    let mut flow = Flow::new();
    flow.send(b"ab", 4);
    assert!(!flow.is_urgent());
    flow.send(b"cX", 2);
    assert!(flow.is_urgent());
    // A later one takes its place.
    flow.send(b"dY", 2);
    assert_eq!(flow.read(4), 4);
    assert!(flow.is_urgent());
    assert_eq!(flow.read(2), 2);
    assert!(!flow.is_urgent());
}
