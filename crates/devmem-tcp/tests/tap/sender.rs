//! Our side: a NIC, device memory used as a ring, and what every byte should be.

use std::collections::VecDeque;
use std::sync::LazyLock;

use devmem_tcp::{Dmabuf, Frag, Netdev, RxBatch, Stream};

/// The interface.
pub const TAP: &str = "dm0";

/// Device memory to send from, of each sender.
const RING: usize = 4 << 20;

/// What is written over memory whose send is complete.
const SCRIBBLE: u8 = 0xa5;

/// After so many bytes the stream repeats. It is prime: no two places in 256 MiB that are whole pages apart have the same bytes.
const PERIOD: usize = 65_537;

/// `len` bytes of a stream from `position` on: neighbours, and the same place of the next page or chunk, differ. One period is computed, the
/// rest copied.
pub fn expected(position: usize, len: usize) -> Vec<u8> {
    static STREAM: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let word = |at: u64| {
            let mixed = at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let same = 0x0101_0101_0101_0101 * (at & 0xff);
            (mixed ^ (mixed >> 29) ^ same).to_le_bytes()
        };
        let words = 0..PERIOD.div_ceil(8) as u64;
        let mut bytes: Vec<u8> = words.flat_map(word).collect();
        bytes.truncate(PERIOD);
        bytes
    });
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        let rest = &STREAM[(position + bytes.len()) % PERIOD..];
        bytes.extend_from_slice(&rest[..rest.len().min(len - bytes.len())]);
    }
    bytes
}

/// Returns where `bytes`, at `position` of a stream, first differ from what they should be.
pub fn first_wrong(bytes: &[u8], position: usize) -> Option<usize> {
    let right = expected(position, bytes.len());
    if bytes == right {
        return None;
    }
    let wrong = bytes
        .iter()
        .zip(&right)
        .position(|(is, should)| is != should);
    wrong.map(|at| position + at)
}

/// A NIC of ours with device memory to send from.
pub struct Nic {
    pub netdev: Netdev,
    pub ring: Dmabuf,
}

impl Nic {
    pub fn new(netdev: Netdev) -> Self {
        Self {
            netdev,
            ring: Dmabuf::anonymous(RING).expect("memory"),
        }
    }

    /// Fills the ring with the stream from `position` on.
    pub fn fill(&self, position: usize) {
        let bytes = expected(position, self.ring.size());
        self.ring.copy_in(0, &bytes).expect("it fits");
    }

    /// Sends `bytes` bytes in chunks, ends the stream, and waits until the peer has it all.
    pub fn send_all(&self, mut stream: Stream, bytes: usize, chunk: usize) {
        self.send(&mut stream, bytes, chunk);
        stream.shutdown_write().expect("open");
        // The peer's end comes when it has read ours.
        let nothing = Dmabuf::anonymous(4096).expect("memory");
        assert_eq!(receive_all(&mut stream, &nothing), 0);
    }

    /// Sends `bytes` bytes in chunks from a ring of device memory, and waits until all are acknowledged. A chunk is
    /// written over as soon as its send completes: memory that is reused too early is a wrong byte at the receiver.
    pub fn send(&self, stream: &mut Stream, bytes: usize, chunk: usize) {
        // A ring of the caller's own: many senders share a NIC. Its size is no multiple of most chunks.
        let ring =
            Dmabuf::anonymous((4 * chunk).next_multiple_of(4096).max(1 << 16)).expect("memory");
        let tx = self.netdev.bind_tx(&ring).expect("bound");
        let completions = stream.completions();
        let slots = ring.size() / chunk;
        let mut under_way = VecDeque::new();
        let mut position = 0;
        for slot in (0..slots).cycle() {
            if position == bytes {
                break;
            }
            if under_way.len() == slots {
                let (id, range): (_, std::ops::Range<usize>) =
                    under_way.pop_front().expect("it is full");
                completions.wait(id).expect("acknowledged");
                ring.fill(range, SCRIBBLE).expect("inside");
            }
            let len = chunk.min(bytes - position);
            let range = slot * chunk..slot * chunk + len;
            let content = expected(position, len);
            ring.copy_in(range.start, &content).expect("it fits");
            let mut rest = range.clone();
            while !rest.is_empty() {
                let id = stream
                    .send(&tx, std::slice::from_ref(&rest))
                    .expect("the peer reads");
                rest.start += id.bytes();
                if rest.is_empty() {
                    under_way.push_back((id, range.clone()));
                }
            }
            position += len;
        }
        completions.wait_all().expect("acknowledged");
        ring.fill(0..ring.size(), SCRIBBLE).expect("inside");
        assert_eq!(tx.in_flight(), 0);
    }
}

/// Receives to the end, from host memory or `memory`; every byte must be the one of its position.
pub fn receive_all(stream: &mut Stream, memory: &Dmabuf) -> usize {
    let mut batch = RxBatch::with_capacity(64);
    let mut position = 0;
    while stream.recv(&mut batch).expect("alive") > 0 {
        for frag in &batch {
            let bytes = match frag {
                Frag::Device { range, .. } => memory.slice(range).to_vec(),
                Frag::Linear(bytes) => bytes.to_vec(),
            };
            assert_eq!(first_wrong(&bytes, position), None, "the first wrong byte");
            position += bytes.len();
        }
    }
    position
}
