//! A connection of a NIC of the library, without waiting.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use devmem_tcp::tcp::Keepalive;
use devmem_tcp::{ConnectOptions, Connecting, Interest, Netdev, Poller, Stream};
use rustix::net::sockopt;

use crate::raw::scatter::Scatter;
use crate::wire::{Ready, Wire};

/// Unanswered probes of a silent connection, after which it is broken.
const PROBES: u8 = 3;

/// In the key of a connection to the poller: it waits until there is room to write, or until it is made.
pub(super) const TO_WRITE: u64 = 1 << 63;

/// What the connections share.
#[derive(Debug)]
pub(super) struct Shared {
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
}

#[derive(Debug)]
enum State {
    Connecting(Connecting),
    Open(Stream),
    Over,
}

impl NicWire {
    fn new(shared: &Arc<Shared>, number: u64, state: State) -> Self {
        Self {
            shared: Arc::clone(shared),
            state,
            number,
            can_read: false,
            can_write: false,
        }
    }

    /// Begins to connect.
    pub(super) fn connect(shared: &Arc<Shared>, number: u64, to: SocketAddr) -> io::Result<Self> {
        let connecting = shared.nic.begin_connect(to, &ConnectOptions::new())?;
        shared.poller.add(number | TO_WRITE, &connecting.watch()?)?;
        Ok(Self::new(shared, number, State::Connecting(connecting)))
    }

    /// Takes a connection that is made.
    pub(super) fn accepted(shared: &Arc<Shared>, number: u64, stream: Stream) -> io::Result<Self> {
        let mut it = Self::new(shared, number, State::Over);
        it.begin(stream)?;
        Ok(it)
    }

    /// The connection is made.
    fn begin(&mut self, stream: Stream) -> io::Result<()> {
        stream.set_nonblocking(true);
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

    /// Reads into what `into` passes on, until nothing more has come or `into` is full.
    fn read_by(
        &mut self,
        mut into: impl FnMut(&mut Stream, usize) -> io::Result<usize>,
    ) -> io::Result<Option<usize>> {
        let State::Open(stream) = &mut self.state else {
            return Ok(None);
        };
        if !self.can_read {
            return Ok(None);
        }
        let mut all = 0;
        loop {
            match into(stream, all) {
                // Full, or the end.
                Ok(0) => break,
                Ok(bytes) => all += bytes,
                Err(error) if is_not_now(&error) => {
                    self.can_read = false;
                    if all == 0 {
                        return Ok(None);
                    }
                    break;
                }
                Err(error) if all == 0 => return Err(error),
                // The next call returns it.
                Err(_) => break,
            }
        }
        self.shared.note_used();
        Ok(Some(all))
    }

    /// As [`read_by`](Self::read_by), for writing.
    fn write_by(
        &mut self,
        mut from: impl FnMut(&mut Stream, usize) -> io::Result<usize>,
    ) -> io::Result<Option<usize>> {
        let State::Open(stream) = &mut self.state else {
            return Ok(None);
        };
        if !self.can_write {
            return Ok(None);
        }
        let mut all = 0;
        loop {
            match from(stream, all) {
                Ok(0) => break,
                Ok(bytes) => all += bytes,
                Err(error) if is_not_now(&error) => {
                    self.can_write = false;
                    let watch = stream.watch(Interest::Send);
                    self.shared.poller.add(self.number | TO_WRITE, &watch)?;
                    break;
                }
                Err(error) if all == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok((all > 0 || self.can_write).then_some(all))
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
        let written = self.write_by(|stream, done| match &bytes[done..] {
            [] => Ok(0),
            rest => io::Write::write(stream, rest),
        })?;
        self.flush()?;
        Ok(written)
    }

    fn receive(&mut self, to: &mut Scatter, at_most: usize) -> io::Result<Option<usize>> {
        self.read_by(|stream, done| {
            to.fill_by(at_most - done, |place| io::Read::read(stream, place))
        })
    }

    fn send(&mut self, from: &mut Scatter, at_most: usize) -> io::Result<Option<usize>> {
        let sent = self.write_by(|stream, done| {
            from.take_by(at_most - done, |place| io::Write::write(stream, place))
        })?;
        if from.left() == 0 {
            self.flush()?;
        }
        Ok(sent)
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
