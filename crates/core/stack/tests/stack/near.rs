//! A link to another process of this machine: what a connection keeps of the bytes that a program has sent.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use devmem_uapi::{CmsgWriter, MsgFlags};
use netsim::Side;
use nic::{
    Link, LinkCaps, LinkReceived, LinkSent, Nic, NicConfig, Posted, TxFrame, WireLink, WireOptions,
};
use stack::{RecvMsg, Secret, SendError, SendMsg, SocketId, Stack, StackConfig};
use wire::Instant;

const PORT: u16 = 80;

/// More than any send queue takes.
const BYTES: usize = 16 << 20;

/// A link that is near, or not, and notes in how many pieces the payload of a frame came at most.
struct Distance {
    wire: WireLink,
    is_near: bool,
    most_pieces: Arc<AtomicUsize>,
}

impl Link for Distance {
    fn caps(&self) -> LinkCaps {
        self.wire.caps()
    }

    fn receive(&mut self, posted: &mut Posted<'_>, now: Instant) -> io::Result<LinkReceived> {
        self.wire.receive(posted, now)
    }

    fn send(&mut self, frame: &TxFrame<'_>, now: Instant) -> io::Result<LinkSent> {
        self.most_pieces
            .fetch_max(frame.payload.frag_count(), Ordering::Relaxed);
        self.wire.send(frame, now)
    }

    fn is_near(&self) -> bool {
        self.is_near
    }
}

/// Two stacks, and a connection from the first to the second.
struct World {
    stacks: [Stack; 2],
    sockets: [SocketId; 2],
    now: Instant,
    most_pieces: Arc<AtomicUsize>,
}

fn stack(side: Side, link: impl Link + 'static) -> Stack {
    let nic = NicConfig {
        mac: side.mac(),
        ..NicConfig::default()
    };
    let nic = Nic::new(Box::new(link), nic).unwrap();
    let secret = Secret::from_seed(side as u64);
    Stack::new(nic, StackConfig::new(side.ipv4(), 24, secret)).unwrap()
}

impl World {
    fn new(is_near: bool) -> Self {
        let (wire, far) = WireLink::pair(WireOptions::default()).unwrap();
        let most_pieces = Arc::new(AtomicUsize::new(0));
        let link = Distance {
            wire,
            is_near,
            most_pieces: Arc::clone(&most_pieces),
        };
        let mut stacks = [stack(Side::A, link), stack(Side::B, far)];
        let any = SocketAddr::new([0, 0, 0, 0].into(), PORT);
        let listener = stacks[1].listen(any, 4).unwrap();
        let remote = SocketAddr::new(Side::B.ipv4(), PORT);
        let ours = stacks[0].connect(remote, Instant::ZERO).unwrap();
        let mut now = Instant::ZERO;
        for _ in 0..20 {
            now = turn(&mut stacks, now);
        }
        let theirs = stacks[1].accept(listener).unwrap().0;
        Self {
            stacks,
            sockets: [ours, theirs],
            now,
            most_pieces,
        }
    }

    /// Sends of `bytes` what the connection takes before anything is acknowledged.
    fn send(&mut self, bytes: &[u8]) -> usize {
        let mut sent = 0;
        while let Some(rest) = bytes.get(sent..).filter(|rest| !rest.is_empty()) {
            let piece = SendMsg::new(&rest[..rest.len().min(1 << 20)]);
            match self.stacks[0].sendmsg(self.sockets[0], &piece, MsgFlags::empty()) {
                Ok(more) => sent += more,
                Err(error) => {
                    assert_eq!(error, SendError::WouldBlock);
                    break;
                }
            }
        }
        sent
    }

    /// Receives `bytes` bytes, for as many turns as that takes at most.
    fn receive(&mut self, bytes: usize) -> Vec<u8> {
        let mut received = Vec::new();
        for _ in 0..10_000 {
            self.now = turn(&mut self.stacks, self.now);
            let mut buffer = vec![0; 1 << 20];
            let mut message = RecvMsg::with_len(&mut buffer, 1 << 20);
            let mut nothing = CmsgWriter::new(&mut []);
            let stack = &mut self.stacks[1];
            let outcome = stack.recvmsg(
                self.sockets[1],
                &mut message,
                &mut nothing,
                MsgFlags::empty(),
            );
            if let Ok(outcome) = outcome {
                received.extend_from_slice(&buffer[..outcome.bytes]);
            }
            if received.len() >= bytes {
                break;
            }
        }
        // The last bytes are acknowledged a little later.
        for _ in 0..100 {
            self.now = turn(&mut self.stacks, self.now);
        }
        received
    }
}

fn turn(stacks: &mut [Stack; 2], now: Instant) -> Instant {
    let now = now + Duration::from_millis(1);
    for stack in stacks {
        stack.poll(now);
    }
    now
}

#[test]
fn a_connection_to_another_process_keeps_fewer_bytes_in_longer_pieces() {
    let bytes: Vec<u8> = (0..BYTES).map(|at| (at ^ (at >> 9)) as u8).collect();
    let mut taken = Vec::new();
    for (is_near, pieces) in [(false, 16..=18), (true, 1..=3)] {
        let mut world = World::new(is_near);
        let mut sent = world.send(&bytes);
        taken.push(sent);
        assert!(world.receive(sent) == bytes[..sent]);
        let most = world.most_pieces.load(Ordering::Relaxed);
        assert!(pieces.contains(&most), "near: {is_near}, {most} pieces");
        // What was acknowledged makes room.
        let more = world.send(&bytes[sent..]);
        assert!(more > 0);
        assert!(world.receive(more) == bytes[sent..sent + more]);
        sent += more;
        assert!(sent <= BYTES);
        let [ours, _] = world.stacks;
        assert_eq!(ours.send_pool_stats().outstanding, 0);
    }
    // Up to the end of a segment.
    for (taken, most) in taken.into_iter().zip([8 << 20, 4 << 20]) {
        assert!((most - (64 << 10)..=most).contains(&taken), "{taken}");
    }
}
