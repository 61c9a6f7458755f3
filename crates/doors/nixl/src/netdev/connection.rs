//! A connection of a NIC of the library, without waiting.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use devmem_tcp::memory::SteeredPeer;
use devmem_tcp::tcp::Keepalive;
use devmem_tcp::{ConnectOptions, Connecting, Interest, Netdev, Poller, Stream};
use rustix::net::sockopt;

use super::pool::Pool;
use super::sends::Sends;
use crate::raw::scatter::Scatter;
use crate::wire::{DISCARD_BYTES, GpuBytes, Ready, Wire};

/// Unanswered probes of a silent connection, after which it is broken.
const PROBES: u8 = 3;

/// In the key of a connection to the poller: it waits until there is room to write, or until it is made.
pub(super) const TO_WRITE: u64 = 1 << 63;

/// What the connections share.
#[derive(Debug)]
pub(super) struct Shared {
    /// What payload is received into, if it is memory of a GPU. Dropped before the NIC.
    pub(super) pool: Option<Pool>,
    pub(super) nic: Netdev,
    pub(super) poller: Poller,
    pub(super) timeout: Duration,
    /// Reports that have led to something: connections that were made, reads, and room to write.
    pub(super) used: AtomicU64,
}

impl Shared {
    fn note_used(&self) {
        self.used.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns the probes that find out within about `timeout` that a silent peer is gone.
pub(super) fn keepalive(timeout: Duration) -> Keepalive {
    let interval = (timeout / (u32::from(PROBES) + 1)).max(Duration::from_secs(1));
    Keepalive {
        idle: interval,
        interval,
        probes: PROBES,
    }
}

/// A connection of a NIC.
#[derive(Debug)]
pub(super) struct NicWire {
    shared: Arc<Shared>,
    state: State,
    number: u64,
    can_read: bool,
    can_write: bool,
    /// What ended the last call after it had moved something.
    failed: Option<io::Error>,
    /// From memory of GPUs.
    sends: Sends,
    received: GpuBytes,
    /// Dropped after the connection.
    _steered: Option<SteeredPeer>,
}

#[derive(Debug)]
enum State {
    Connecting(Connecting),
    Open(Stream),
    Over,
}

/// What calls have come to that were made until one of them moved nothing.
struct Moved {
    bytes: usize,
    /// The connection has nothing more, or no room, as yet.
    is_not_now: bool,
    failed: Option<io::Error>,
}

/// Calls until nothing more is moved: there is nothing left to do, or the connection is not ready.
fn repeat(mut once: impl FnMut(usize) -> io::Result<usize>) -> Moved {
    let mut moved = Moved {
        bytes: 0,
        is_not_now: false,
        failed: None,
    };
    loop {
        match once(moved.bytes) {
            Ok(0) => return moved,
            Ok(bytes) => moved.bytes += bytes,
            Err(error) if is_not_now(&error) => {
                moved.is_not_now = true;
                return moved;
            }
            Err(error) => {
                moved.failed = Some(error);
                return moved;
            }
        }
    }
}

impl NicWire {
    fn new(shared: &Arc<Shared>, number: u64, state: State) -> Self {
        Self {
            shared: Arc::clone(shared),
            state,
            number,
            can_read: false,
            can_write: false,
            failed: None,
            sends: Sends::default(),
            received: GpuBytes::default(),
            _steered: None,
        }
    }

    /// Begins to connect.
    pub(super) fn connect(shared: &Arc<Shared>, number: u64, to: SocketAddr) -> io::Result<Self> {
        let connecting = shared.nic.begin_connect(to, &ConnectOptions::new())?;
        shared.poller.add(number | TO_WRITE, &connecting.watch()?)?;
        Ok(Self::new(shared, number, State::Connecting(connecting)))
    }

    /// Keeps what the peer sends steered to the pool.
    pub(super) fn steered(mut self, steered: SteeredPeer) -> Self {
        self._steered = Some(steered);
        self
    }

    /// Takes a connection that is made.
    pub(super) fn accepted(shared: &Arc<Shared>, number: u64, stream: Stream) -> io::Result<Self> {
        let mut it = Self::new(shared, number, State::Over);
        it.begin(stream)?;
        Ok(it)
    }

    /// The connection is made.
    fn begin(&mut self, mut stream: Stream) -> io::Result<()> {
        stream.set_nonblocking(true);
        if let Some(pool) = &self.shared.pool {
            stream.set_placement(pool.placement());
        }
        if self.shared.nic.interface().is_some() {
            // A NIC in user space has these from its options.
            stream.set_nodelay(true)?;
            stream.set_keepalive(Some(keepalive(self.shared.timeout)))?;
            let millis = u32::try_from(self.shared.timeout.as_millis()).unwrap_or(u32::MAX);
            sockopt::set_tcp_user_timeout(stream.readiness_fd()?, millis)?;
        }
        let watch = stream.watch(Interest::Receive);
        self.shared.poller.add(self.number, &watch)?;
        self.state = State::Open(stream);
        self.can_write = true;
        self.shared.note_used();
        Ok(())
    }

    /// Reads by `once`, which is given what was read before, until nothing more has come or it has no more room.
    fn read_by(
        &mut self,
        mut once: impl FnMut(&mut Stream, usize) -> io::Result<usize>,
    ) -> io::Result<Option<usize>> {
        self.check()?;
        let State::Open(stream) = &mut self.state else {
            return Ok(None);
        };
        if !self.can_read {
            return Ok(None);
        }
        let moved = repeat(|done| once(stream, done));
        self.can_read = !moved.is_not_now;
        let bytes = self.outcome(moved)?;
        let is_news = bytes > 0 || self.can_read;
        if is_news {
            self.shared.note_used();
        }
        Ok(is_news.then_some(bytes))
    }

    /// As [`read_by`](Self::read_by), for writing.
    fn write_by(
        &mut self,
        mut once: impl FnMut(&mut Stream, &mut Sends, usize) -> io::Result<usize>,
    ) -> io::Result<Option<usize>> {
        self.check()?;
        let State::Open(stream) = &mut self.state else {
            return Ok(None);
        };
        if !self.can_write {
            return Ok(None);
        }
        let sends = &mut self.sends;
        let moved = repeat(|done| once(stream, sends, done));
        if moved.is_not_now {
            self.can_write = false;
            let watch = stream.watch(sends.awaited());
            self.shared.poller.add(self.number | TO_WRITE, &watch)?;
        }
        let bytes = self.outcome(moved)?;
        Ok((bytes > 0 || self.can_write).then_some(bytes))
    }

    /// Returns how many bytes were moved. An error after them is that of the next call.
    fn outcome(&mut self, moved: Moved) -> io::Result<usize> {
        self.failed = moved.failed;
        match moved.bytes {
            0 => self.check().map(|()| 0),
            bytes => Ok(bytes),
        }
    }

    fn check(&mut self) -> io::Result<()> {
        self.failed.take().map_or(Ok(()), Err)
    }

    /// Sends what waits for further writes to fill a packet: none follows.
    fn flush(&mut self) -> io::Result<()> {
        match &mut self.state {
            State::Open(stream) => io::Write::flush(stream),
            State::Connecting(_) | State::Over => Ok(()),
        }
    }
}

fn is_not_now(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

impl Wire for NicWire {
    fn on_ready(&mut self, ready: Ready) {
        self.sends.collect();
        self.can_read |= ready.to_read;
        if ready.to_write && matches!(self.state, State::Open(_)) {
            self.can_write = true;
            self.shared.poller.remove(self.number | TO_WRITE);
            self.shared.note_used();
        }
    }

    fn is_connected(&mut self) -> io::Result<bool> {
        let State::Connecting(connecting) = &mut self.state else {
            return Ok(matches!(self.state, State::Open(_)));
        };
        let Some(stream) = connecting.try_finish()? else {
            return Ok(false);
        };
        self.shared.poller.remove(self.number | TO_WRITE);
        self.begin(stream)?;
        Ok(true)
    }

    fn can_write(&self) -> bool {
        self.can_write
    }

    fn read(&mut self, bytes: &mut [u8]) -> io::Result<Option<usize>> {
        self.read_by(|stream, done| io::Read::read(stream, &mut bytes[done..]))
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        let written = self.write_by(|stream, _, done| match &bytes[done..] {
            [] => Ok(0),
            rest => io::Write::write(stream, rest),
        })?;
        self.flush()?;
        Ok(written)
    }

    fn receive(&mut self, to: &mut Scatter, at_most: usize) -> io::Result<Option<usize>> {
        let shared = Arc::clone(&self.shared);
        let Some(pool) = &shared.pool else {
            return self.read_by(|stream, done| {
                to.fill_by(at_most - done, |place| io::Read::read(stream, place))
            });
        };
        let mut received = std::mem::take(&mut self.received);
        let read =
            self.read_by(|stream, done| pool.receive(stream, to, at_most - done, &mut received));
        self.received = received;
        read
    }

    fn discard(&mut self, at_most: usize) -> io::Result<Option<usize>> {
        let shared = Arc::clone(&self.shared);
        match &shared.pool {
            Some(pool) => self.read_by(|stream, done| pool.discard(stream, at_most - done)),
            None => {
                let mut bytes = [0; DISCARD_BYTES];
                self.read(&mut bytes[..at_most.min(DISCARD_BYTES)])
            }
        }
    }

    fn send(&mut self, from: &mut Scatter, at_most: usize) -> io::Result<Option<usize>> {
        let shared = Arc::clone(&self.shared);
        let sent = self.write_by(|stream, sends, done| match (at_most - done, &shared.pool) {
            (0, _) => Ok(0),
            (left, Some(pool)) if from.is_gpu_next() => {
                sends.send(stream, from, left, &mut pool.scratch().lists)
            }
            (left, _) => from.take_by(left, |place| io::Write::write(stream, place)),
        })?;
        if from.left() == 0 {
            self.flush()?;
        }
        Ok(sent)
    }

    fn takes_gpus(&self) -> bool {
        self.shared.pool.is_some()
    }

    fn take_gpu_bytes(&mut self) -> GpuBytes {
        let mut bytes = std::mem::take(&mut self.received);
        bytes.by_nic += self.sends.take_bytes();
        bytes
    }

    fn end(&self) {
        if let State::Open(stream) = &self.state {
            // The peer may have ended the connection before.
            let _ = stream.shutdown_write();
        }
    }

    fn renumber(&mut self, number: u64) -> io::Result<()> {
        let State::Open(stream) = &self.state else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        for (key, interest) in [(0, Interest::Receive), (TO_WRITE, Interest::Send)] {
            self.shared.poller.remove(self.number | key);
            if key == 0 || !self.can_write {
                self.shared
                    .poller
                    .add(number | key, &stream.watch(interest))?;
            }
        }
        self.number = number;
        Ok(())
    }
}

impl Drop for NicWire {
    fn drop(&mut self) {
        // The number may be given to another connection.
        for key in [0, TO_WRITE] {
            self.shared.poller.remove(self.number | key);
        }
    }
}
