//! TCP streams between the guest's two network namespaces, over the two NICs and the wire between them. Every byte
//! depends on its position and is checked.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use devmem_linux::netns::NetNs;

use crate::job::{GuestNic, PEER_NETNS};
use tool::pattern::{Expected, PositionPattern, Verifier};

/// A stream that does not move for so long is stuck: retransmission timers and device resets included.
pub const STUCK: Duration = Duration::from_secs(40);
/// Bytes of one write and of one read.
const CHUNK_BYTES: usize = 256 << 10;

/// IP version of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// Where a stream comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the peer's NIC to ours.
    In,
    /// From our NIC to the peer's.
    Out,
}

/// Both ends: our NIC is in this namespace, the peer's in another.
#[derive(Debug)]
pub struct Network {
    /// The peer's namespace.
    pub peer: NetNs,
    ours: NetNs,
}

/// How fast a stream was.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Bytes that arrived and were right.
    pub bytes: u64,
    /// From the connection to the end of the stream.
    pub elapsed: Duration,
}

impl Rate {
    /// Returns 10^6 bytes a second.
    pub fn mb_per_s(&self) -> f64 {
        self.bytes as f64 / self.elapsed.as_secs_f64().max(1e-9) / 1e6
    }
}

impl Network {
    /// Opens both namespaces.
    ///
    /// # Errors
    ///
    /// There is no peer's.
    pub fn open() -> anyhow::Result<Self> {
        Ok(Self {
            peer: NetNs::open(PEER_NETNS)?,
            ours: NetNs::current()?,
        })
    }

    /// Listens where a stream of that way ends.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub fn listen(&self, way: Way, family: Family) -> anyhow::Result<TcpListener> {
        let (namespace, address) = match way {
            Way::In => (&self.ours, address(1, family)),
            Way::Out => (&self.peer, address(0, family)),
        };
        let listener = namespace.run(|| TcpListener::bind((address, 0)))?;
        listener.with_context(|| format!("listen on {address}"))
    }

    /// Connects from where a stream of that way starts.
    ///
    /// # Errors
    ///
    /// What the kernel said.
    pub fn connect(&self, way: Way, to: SocketAddr) -> anyhow::Result<TcpStream> {
        let namespace = match way {
            Way::In => &self.peer,
            Way::Out => &self.ours,
        };
        let stream = namespace.run(|| TcpStream::connect_timeout(&to, STUCK))?;
        let stream = stream.with_context(|| format!("connect to {to}"))?;
        limit(&stream)?;
        Ok(stream)
    }

    /// Sends a stream from kernel socket to kernel socket, and counts what has arrived in `arrived` as it goes.
    ///
    /// # Errors
    ///
    /// A byte that is missing or wrong; a stream that is stuck.
    pub fn stream(
        &self,
        way: Way,
        family: Family,
        bytes: u64,
        arrived: &AtomicU64,
    ) -> anyhow::Result<Rate> {
        let listener = self.listen(way, family)?;
        let sender = self.connect(way, listener.local_addr()?)?;
        let (mut receiver, _) = listener.accept()?;
        limit(&receiver)?;
        let start = Instant::now();
        thread::scope(move |scope| {
            let sending = scope.spawn(move || send(sender, bytes));
            let mut verifier = verifier();
            let mut buffer = vec![0; CHUNK_BYTES];
            loop {
                let count = receiver.read(&mut buffer).context("receive")?;
                if count == 0 {
                    break;
                }
                verifier.check(&buffer[..count]);
                arrived.fetch_add(count as u64, Ordering::Relaxed);
            }
            let elapsed = start.elapsed();
            // The sender waits for it.
            drop(receiver);
            join(sending)?;
            complete(&verifier, bytes)?;
            Ok(Rate { bytes, elapsed })
        })
    }
}

/// Waits for a thread.
pub fn join<T>(thread: thread::ScopedJoinHandle<'_, anyhow::Result<T>>) -> anyhow::Result<T> {
    thread.join().map_err(|_| anyhow!("a thread panicked"))?
}

/// The address of NIC number `index`.
pub fn address(index: u8, family: Family) -> IpAddr {
    let addresses = GuestNic::standard(index, 2, 0).addresses;
    let of_family = |address: &IpAddr| address.is_ipv6() == (family == Family::V6);
    let found = addresses
        .into_iter()
        .map(|(address, _)| address)
        .find(of_family);
    found.expect("a NIC has an address of each family")
}

/// Has a stream that is stuck fail instead of wait.
///
/// # Errors
///
/// What the kernel said.
pub fn limit(stream: &TcpStream) -> anyhow::Result<()> {
    stream.set_read_timeout(Some(STUCK))?;
    stream.set_write_timeout(Some(STUCK))?;
    Ok(())
}

/// Sends the pattern and ends the stream.
///
/// # Errors
///
/// What the kernel said.
pub fn send(mut stream: TcpStream, bytes: u64) -> anyhow::Result<()> {
    let pattern = PositionPattern::new(0);
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut position = 0;
    while position < bytes {
        let count = usize::try_from(bytes - position)
            .unwrap_or(usize::MAX)
            .min(CHUNK_BYTES);
        pattern.fill(position, &mut buffer[..count]);
        stream
            .write_all(&buffer[..count])
            .with_context(|| format!("send after {position} bytes"))?;
        position += count as u64;
    }
    stream
        .shutdown(std::net::Shutdown::Write)
        .context("end the stream")?;
    // Until the receiver has closed: closing earlier could reset what is under way.
    while stream.read(&mut buffer).is_ok_and(|count| count > 0) {}
    Ok(())
}

/// Checks what [`send`] sends.
pub fn verifier() -> Verifier {
    verifier_of(0)
}

/// Checks a stream of another seed.
pub fn verifier_of(seed: u64) -> Verifier {
    Verifier::new(Expected::Position(PositionPattern::new(seed)))
}

/// Asserts that a whole stream arrived as it was sent.
///
/// # Errors
///
/// It did not.
pub fn complete(verifier: &Verifier, bytes: u64) -> anyhow::Result<()> {
    let (good, bad) = (verifier.good_bytes(), verifier.bad_bytes());
    ensure!(
        bad == 0,
        "{bad} wrong bytes, the first at {:?}",
        verifier.first_bad()
    );
    ensure!(good == bytes, "{good} of {bytes} bytes arrived");
    Ok(())
}
