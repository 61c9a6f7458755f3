//! Two connections at the same time, from the kernel's sender and from ours.

use std::io::Read;
use std::net::{IpAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use pattern::{Expected, Verifier};
use serde::{Deserialize, Serialize};
use tool::sender::pattern_of;

use super::CHUNK;
use crate::sender::{SENDER, wait_for_sender};

/// What came on both within the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TwoReceived {
    /// Bytes from the address of the kernel's sender.
    pub kernel_bytes: u64,
    /// Bytes from another address.
    pub our_bytes: u64,
    /// The time.
    pub elapsed_ns: u64,
}

/// Takes two connections, checks all that comes on them, and counts the bytes of `time` once both have lasted for `warm_up`. The
/// connections stay open.
pub fn receive(listener: &TcpListener, warm_up: Duration, time: Duration) -> Result<TwoReceived> {
    let [first, second] = [accept(listener)?, accept(listener)?];
    let from_kernel = |peer: IpAddr| peer == IpAddr::V4(SENDER);
    let (kernel, ours) = match (from_kernel(first.1), from_kernel(second.1)) {
        (true, false) => (first.0, second.0),
        (false, true) => (second.0, first.0),
        _ => bail!("both connections are of {}", first.1),
    };
    let counts = [kernel, ours].map(|stream| {
        let count = Arc::new(Count::default());
        let counted = Arc::clone(&count);
        thread::spawn(move || counted.run(stream));
        count
    });
    thread::sleep(warm_up);
    let start = Instant::now();
    let before = counts.each_ref().map(|count| count.bytes());
    thread::sleep(time);
    let elapsed = start.elapsed();
    let after = counts.each_ref().map(|count| count.bytes());
    let bad: u64 = counts
        .iter()
        .map(|count| count.bad.load(Ordering::Relaxed))
        .sum();
    ensure!(bad == 0, "{bad} bytes are wrong");
    Ok(TwoReceived {
        kernel_bytes: after[0] - before[0],
        our_bytes: after[1] - before[1],
        elapsed_ns: u64::try_from(elapsed.as_nanos())?,
    })
}

fn accept(listener: &TcpListener) -> Result<(TcpStream, IpAddr)> {
    wait_for_sender(listener)?;
    let (stream, peer) = listener.accept().context("accept")?;
    Ok((stream, peer.ip()))
}

/// Bytes of one connection so far.
#[derive(Debug, Default)]
struct Count {
    bytes: AtomicU64,
    /// How many of them are wrong.
    bad: AtomicU64,
}

impl Count {
    fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Counts until the stream ends: both senders go on for longer than anybody counts.
    fn run(&self, mut stream: TcpStream) {
        let Ok(peer) = stream.peer_addr() else {
            return;
        };
        let mut verifier = Verifier::new(Expected::Position(pattern_of(peer.port())));
        let mut buffer = vec![0; CHUNK];
        while let Ok(len @ 1..) = stream.read(&mut buffer) {
            verifier.check(&buffer[..len]);
            self.bytes.fetch_add(len as u64, Ordering::Relaxed);
            self.bad.store(verifier.bad_bytes(), Ordering::Relaxed);
        }
    }
}
