//! The side that listens: recognises control streams by their cookie, and data streams by the address of the peer.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use devmem_tcp::{AcceptError, Stream};

use super::control::Control;
use super::core::Wires;
use super::data::DataStream;
use super::endpoint::Endpoint;
use super::error::ConnectError;
use super::fabric::{FabricInner, MAX_STREAMS, is_chunk};
use super::keep_alive;
use super::record::{Hello, Record};
use super::ticket::Ticket;

/// How long a connection may stay without being part of an endpoint.
const PATIENCE: Duration = Duration::from_secs(30);

/// Most connections that are not part of an endpoint, of each kind; more are closed, the oldest first.
const MAX_STRANGERS: usize = 4096;

/// A control connection that has not said everything.
struct Newcomer {
    control: Control,
    hello: Option<Hello>,
    addresses: Vec<SocketAddr>,
    since: Instant,
}

/// A control connection that waits for its listener's poll, or for data connections.
struct Ready {
    control: Control,
    hello: Hello,
    addresses: Vec<SocketAddr>,
}

/// The listening sockets of a fabric, and the connections that are not part of an endpoint yet.
pub(super) struct Arrivals {
    control: devmem_tcp::Listener,
    data: devmem_tcp::Listener,
    newcomers: VecDeque<Newcomer>,
    /// By cookie.
    ready: HashMap<u64, VecDeque<Ready>>,
    /// By the address of the peer.
    streams: HashMap<SocketAddr, (Stream, Instant)>,
    cookies: HashSet<u64>,
    strangers: u64,
}

/// Accepts endpoints. Dropping it refuses those that have not been returned.
pub struct Listener {
    fabric: Arc<FabricInner>,
    cookie: u64,
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener").finish_non_exhaustive()
    }
}

impl Listener {
    pub(super) fn new(fabric: Arc<FabricInner>, cookie: u64) -> Self {
        fabric.arrivals().cookies.insert(cookie);
        Self { fabric, cookie }
    }

    /// Returns what another process needs to connect. It may be used any number of times.
    pub fn ticket(&self) -> Ticket {
        Ticket {
            cookie: self.cookie,
            control: self.fabric.control_address,
            data: self.fabric.data_address,
        }
    }

    /// Does what can be done without waiting. Returns the next endpoint, if one is ready.
    ///
    /// # Errors
    /// The listening sockets failed. A connection that is not of this protocol is closed, and is no error.
    pub fn poll(&self) -> Result<Option<Endpoint>, ConnectError> {
        self.fabric.board.step_lingering();
        let mut arrivals = self.fabric.arrivals();
        arrivals.accept()?;
        arrivals.read_newcomers();
        let Some(ready) = arrivals.take_complete(self.cookie) else {
            return Ok(None);
        };
        let (
            Ready {
                mut control, hello, ..
            },
            streams,
        ) = ready;
        drop(arrivals);
        control.queue(Record::Ready);
        let data = (0..)
            .zip(streams)
            .map(|(index, stream)| DataStream::new(stream, index));
        let wires = Wires {
            control,
            data: data.collect(),
        };
        // Checked when the hello was read.
        let chunk = usize::try_from(hello.chunk).unwrap_or(usize::MAX);
        let endpoint = Endpoint::new(Arc::clone(&self.fabric), wires, chunk);
        endpoint.progress();
        Ok(Some(endpoint))
    }

    /// Returns how many connections to the fabric were closed because they were not of this protocol, or named no listener.
    pub fn strangers(&self) -> u64 {
        self.fabric.arrivals().strangers
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut arrivals = self.fabric.arrivals();
        arrivals.cookies.remove(&self.cookie);
        arrivals.ready.remove(&self.cookie);
    }
}

impl Arrivals {
    pub(super) fn new(control: devmem_tcp::Listener, data: devmem_tcp::Listener) -> Self {
        Self {
            control,
            data,
            newcomers: VecDeque::new(),
            ready: HashMap::new(),
            streams: HashMap::new(),
            cookies: HashSet::new(),
            strangers: 0,
        }
    }

    /// Accepts the connections that are established.
    fn accept(&mut self) -> Result<(), AcceptError> {
        let now = Instant::now();
        while let Some((stream, _)) = accept_one(&self.control)? {
            keep_alive(&stream);
            self.newcomers.push_back(Newcomer {
                control: Control::new(stream),
                hello: None,
                addresses: Vec::new(),
                since: now,
            });
        }
        while let Some((stream, peer)) = accept_one(&self.data)? {
            keep_alive(&stream);
            self.streams.insert(peer, (stream, now));
        }
        let is_fresh = |since: Instant| now.saturating_duration_since(since) < PATIENCE;
        let before = self.newcomers.len() + self.streams.len();
        self.newcomers.retain(|newcomer| is_fresh(newcomer.since));
        let too_many = self.newcomers.len().saturating_sub(MAX_STRANGERS);
        self.newcomers.drain(..too_many);
        let expected: HashSet<SocketAddr> = self
            .ready
            .values()
            .flatten()
            .flat_map(|ready| ready.addresses.iter().copied())
            .collect();
        self.streams
            .retain(|peer, (_, since)| expected.contains(peer) || is_fresh(*since));
        while self.streams.len() > MAX_STRANGERS {
            let strangers = self
                .streams
                .iter()
                .filter(|(peer, _)| !expected.contains(peer));
            let oldest = strangers.min_by_key(|(_, (_, since))| *since);
            let Some(oldest) = oldest.map(|(peer, _)| *peer) else {
                break;
            };
            self.streams.remove(&oldest);
        }
        let closed = before - self.newcomers.len() - self.streams.len();
        self.strangers += closed as u64;
        Ok(())
    }

    /// Reads what newcomers say.
    fn read_newcomers(&mut self) {
        for mut newcomer in std::mem::take(&mut self.newcomers) {
            match newcomer.read(&self.cookies) {
                Step::Waits => self.newcomers.push_back(newcomer),
                Step::Stranger => self.strangers += 1,
                Step::Complete(hello) => {
                    let ready = Ready {
                        control: newcomer.control,
                        hello,
                        addresses: newcomer.addresses,
                    };
                    self.ready.entry(hello.cookie).or_default().push_back(ready);
                }
            }
        }
    }

    /// Returns the first connections of a listener that are all here. Those of a peer that has gone away are dropped.
    fn take_complete(&mut self, cookie: u64) -> Option<(Ready, Vec<Stream>)> {
        let queue = self.ready.get_mut(&cookie)?;
        let streams = &self.streams;
        let is_complete = |ready: &Ready| {
            ready
                .addresses
                .iter()
                .all(|peer| streams.contains_key(peer))
        };
        let at = queue.iter().position(is_complete)?;
        let ready = queue.remove(at)?;
        let taken = ready
            .addresses
            .iter()
            .filter_map(|peer| self.streams.remove(peer));
        let streams = taken.map(|(stream, _)| stream).collect();
        Some((ready, streams))
    }
}

fn accept_one(
    listener: &devmem_tcp::Listener,
) -> Result<Option<(Stream, SocketAddr)>, AcceptError> {
    match listener.accept() {
        Ok(accepted) => Ok(Some(accepted)),
        Err(AcceptError::WouldBlock | AcceptError::TimedOut) => Ok(None),
        Err(error) => Err(error),
    }
}

/// What became of a newcomer.
enum Step {
    Waits,
    /// It does not speak the protocol, or names no listener.
    Stranger,
    Complete(Hello),
}

impl Newcomer {
    fn read(&mut self, cookies: &HashSet<u64>) -> Step {
        loop {
            let record = match self.control.next() {
                Ok(Some(record)) => record,
                Ok(None) if !self.control.has_ended() => return Step::Waits,
                Ok(None) | Err(_) => return Step::Stranger,
            };
            let hello = match (self.hello, record) {
                (None, Record::Hello(hello)) => hello,
                (Some(hello), Record::Address { stream, local })
                    if usize::from(stream) == self.addresses.len()
                        && !self.addresses.contains(&local) =>
                {
                    self.addresses.push(local);
                    hello
                }
                _ => return Step::Stranger,
            };
            let is_known = cookies.contains(&hello.cookie);
            let has_streams = (1..=MAX_STREAMS).contains(&hello.streams);
            let has_chunk = usize::try_from(hello.chunk).is_ok_and(is_chunk);
            if !is_known || !has_streams || !has_chunk {
                return Step::Stranger;
            }
            self.hello = Some(hello);
            if self.addresses.len() == usize::from(hello.streams) {
                return Step::Complete(hello);
            }
        }
    }
}
