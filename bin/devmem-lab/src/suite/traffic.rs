//! TCP streams between the guest's two network namespaces, over the two NICs and the wire between them. Every byte
//! depends on its position and is checked.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroU16;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, ensure};
use devmem_linux::netns::NetNs;

use super::report::{FarEndRequest, ask_for};
use lab::job::{GuestNic, PEER_NETNS};
use pattern::{Expected, PositionPattern, Verifier};

/// Time without progress after which a stream counts as stuck; longer than retransmission timers and device resets.
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

/// Direction of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the peer's NIC to ours.
    In,
    /// From our NIC to the peer's.
    Out,
}

/// Both network namespaces: our NIC is in this one, the peer's in another.
#[derive(Debug)]
pub struct Network {
    /// The peer's namespace.
    pub peer: NetNs,
    ours: NetNs,
}

/// Bytes and duration of a stream.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    /// Bytes received correctly.
    pub bytes: u64,
    /// Time from the connection to the end of the stream.
    pub elapsed: Duration,
}

impl Rate {
    /// Returns the rate in 10^6 bytes per second.
    pub fn mb_per_s(&self) -> f64 {
        self.bytes as f64 / self.elapsed.as_secs_f64().max(1e-9) / 1e6
    }
}

impl Network {
    /// Opens both namespaces.
    ///
    /// # Errors
    ///
    /// There is no namespace of the peer.
    pub fn open() -> anyhow::Result<Self> {
        Ok(Self {
            peer: NetNs::open(PEER_NETNS)?,
            ours: NetNs::current()?,
        })
    }

    /// Listens at the receiving end of a stream.
    ///
    /// # Errors
    ///
    /// bind(2) or listen(2) failed.
    pub fn listen(&self, direction: Direction, family: Family) -> anyhow::Result<TcpListener> {
        let (namespace, address) = match direction {
            Direction::In => (&self.ours, address(1, family)),
            Direction::Out => (&self.peer, address(0, family)),
        };
        let listener = namespace.run(|| TcpListener::bind((address, 0)))?;
        listener.with_context(|| format!("listen on {address}"))
    }

    /// Connects from the sending end of a stream.
    ///
    /// # Errors
    ///
    /// connect(2) failed.
    pub fn connect(&self, direction: Direction, to: SocketAddr) -> anyhow::Result<TcpStream> {
        let namespace = match direction {
            Direction::In => &self.peer,
            Direction::Out => &self.ours,
        };
        let stream = namespace.run(|| TcpStream::connect_timeout(&to, STUCK))?;
        let stream = stream.with_context(|| format!("connect to {to}"))?;
        limit(&stream)?;
        Ok(stream)
    }

    /// Sends a stream from kernel socket to kernel socket, and counts the received bytes in `arrived`.
    ///
    /// # Errors
    ///
    /// A byte is missing or wrong, or the stream is stuck.
    pub fn stream(
        &self,
        direction: Direction,
        family: Family,
        bytes: u64,
        arrived: &AtomicU64,
    ) -> anyhow::Result<Rate> {
        let listener = self.listen(direction, family)?;
        let sender = self.connect(direction, listener.local_addr()?)?;
        let (mut receiver, _) = listener.accept()?;
        limit(&receiver)?;
        let start = Instant::now();
        thread::scope(move |scope| {
            let sending = scope.spawn(move || send(sender, bytes));
            let mut verifier = verifier();
            let mut buffer = vec![0; CHUNK_BYTES];
            loop {
                let count = read(&mut receiver, &mut buffer).context("receive")?;
                if count == 0 {
                    break;
                }
                verifier.check(&buffer[..count]);
                arrived.fetch_add(count as u64, Ordering::Relaxed);
            }
            let elapsed = start.elapsed();
            // The sender waits for the close.
            drop(receiver);
            join(sending)?;
            complete(&verifier, bytes)?;
            Ok(Rate { bytes, elapsed })
        })
    }
}

/// Opens a connection and returns both ends.
///
/// # Errors
///
/// A socket call failed.
pub fn pair(
    network: &Network,
    direction: Direction,
    listener: &TcpListener,
) -> anyhow::Result<(TcpStream, TcpStream)> {
    let sender = network.connect(direction, listener.local_addr()?)?;
    let (receiver, _) = listener.accept()?;
    limit(&receiver)?;
    Ok((sender, receiver))
}

/// Joins a thread and returns its result.
pub fn join<T>(thread: thread::ScopedJoinHandle<'_, anyhow::Result<T>>) -> anyhow::Result<T> {
    thread.join().map_err(|_| anyhow!("a thread panicked"))?
}

/// Returns the address of NIC `index`.
pub fn address(index: u8, family: Family) -> IpAddr {
    let addresses = GuestNic::standard(index, 2, 0).addresses;
    let of_family = |address: &IpAddr| address.is_ipv6() == (family == Family::V6);
    let found = addresses
        .into_iter()
        .map(|(address, _)| address)
        .find(of_family);
    found.expect("a NIC has an address of each family")
}

/// Requests a sender from the host and accepts its connection.
///
/// # Errors
///
/// There is no connection, or it has no local address.
pub fn ask_for_sender(listener: &TcpListener) -> anyhow::Result<TcpStream> {
    let port = NonZeroU16::new(listener.local_addr()?.port()).context("a listener has a port")?;
    ask_for(FarEndRequest::Send { port })?;
    let (stream, _) = listener.accept()?;
    limit(&stream)?;
    Ok(stream)
}

/// Sets timeouts, so that a stuck stream fails.
///
/// # Errors
///
/// setsockopt(2) failed.
pub fn limit(stream: &TcpStream) -> anyhow::Result<()> {
    stream.set_read_timeout(Some(STUCK))?;
    stream.set_write_timeout(Some(STUCK))?;
    Ok(())
}

/// Reads once. A signal interrupts a read of a socket with a timeout even if its handler has `SA_RESTART` (signal(7)).
///
/// # Errors
///
/// The read failed, or the timeout has passed.
pub fn read(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match from.read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Sends the pattern and ends the stream.
///
/// # Errors
///
/// A socket call failed.
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
    // Waits until the receiver has closed: an earlier close could reset the connection with data in flight.
    while read(&mut stream, &mut buffer).is_ok_and(|count| count > 0) {}
    Ok(())
}

/// Reads a stream of [`send`] to its end and checks it.
///
/// # Errors
///
/// A read failed; bytes are wrong or missing.
pub fn check_to_end(from: &mut impl Read, bytes: u64) -> anyhow::Result<()> {
    let mut verifier = verifier();
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        match read(from, &mut buffer).context("receive")? {
            0 => return complete(&verifier, bytes),
            count => verifier.check(&buffer[..count]),
        }
    }
}

/// Returns a verifier of the pattern of [`send`].
pub fn verifier() -> Verifier {
    verifier_of(0)
}

/// Returns a verifier of the pattern with another seed.
pub fn verifier_of(seed: u64) -> Verifier {
    Verifier::new(Expected::Position(PositionPattern::new(seed)))
}

/// Checks that a stream is complete and has no wrong bytes.
///
/// # Errors
///
/// Bytes are wrong or missing.
pub fn complete(verifier: &Verifier, bytes: u64) -> anyhow::Result<()> {
    let (good, bad) = (verifier.good_bytes(), verifier.bad_bytes());
    ensure!(
        bad == 0,
        "{bad} wrong bytes, the first at {:?}",
        verifier.first_bad()
    );
    ensure!(good == bytes, "{good} of {bytes} bytes received");
    Ok(())
}
