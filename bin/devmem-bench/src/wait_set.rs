//! Receives many streams in one thread, which waits for them with epoll or with a poller of the library.

use std::io::{ErrorKind, Read};
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, Result, bail};
use devmem_tcp::{Interest, Poller, Stream};
use rustix::event::{Timespec, epoll};

use crate::connections::Connections;
use crate::meter::{Meter, MeterReading, SILENCE};
use crate::sender::wait_for_sender;

/// Bytes of one receive call of the kernel's TCP.
pub const CHUNK: usize = 256 << 10;
/// Streams that one epoll_wait(2) returns at most.
const EVENTS: usize = 256;

/// The streams that are waited for, by their index.
pub trait WaitSet<S> {
    /// Adds a stream.
    fn add(&self, at: u64, stream: &S) -> Result<()>;

    /// Removes a stream that has ended.
    fn remove(&self, at: u64, stream: &S) -> Result<()>;

    /// Waits until a stream is ready and returns those that are; none after [`SILENCE`].
    fn wait(&mut self, ready: &mut Vec<u64>) -> Result<()>;
}

/// Readiness fds, waited for by epoll_wait(2).
pub struct Epoll {
    fd: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Epoll {
    /// Returns an empty set.
    pub fn new() -> Result<Self> {
        Ok(Self {
            fd: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            events: Vec::with_capacity(EVENTS),
        })
    }
}

impl<S: AsFd> WaitSet<S> for Epoll {
    fn add(&self, at: u64, stream: &S) -> Result<()> {
        let data = epoll::EventData::new_u64(at);
        Ok(epoll::add(&self.fd, stream, data, epoll::EventFlags::IN)?)
    }

    fn remove(&self, _: u64, stream: &S) -> Result<()> {
        Ok(epoll::delete(&self.fd, stream)?)
    }

    fn wait(&mut self, ready: &mut Vec<u64>) -> Result<()> {
        let limit = Timespec::try_from(SILENCE)?;
        self.events.clear();
        let room = rustix::buffer::spare_capacity(&mut self.events);
        epoll::wait(&self.fd, room, Some(&limit))?;
        ready.clear();
        ready.extend(self.events.iter().map(|event| event.data.u64()));
        Ok(())
    }
}

impl WaitSet<Stream> for Poller {
    fn add(&self, at: u64, stream: &Stream) -> Result<()> {
        Ok(Poller::add(self, at, &stream.watch(Interest::Receive))?)
    }

    fn remove(&self, at: u64, _: &Stream) -> Result<()> {
        Poller::remove(self, at);
        Ok(())
    }

    fn wait(&mut self, ready: &mut Vec<u64>) -> Result<()> {
        Ok(self.wait_ready(ready, SILENCE)?)
    }
}

/// Receives until `busy` streams have ended. `receive` receives from a stream, once: the number of bytes, 0 at its end, or
/// `None` if there are none.
pub fn receive_all<S>(
    mut set: impl WaitSet<S>,
    mut streams: Vec<S>,
    busy: usize,
    mut receive: impl FnMut(&mut S) -> Result<Option<usize>>,
) -> Result<MeterReading> {
    for (at, stream) in streams.iter().enumerate() {
        set.add(at as u64, stream)?;
    }
    let mut ready = Vec::new();
    let mut meter = Meter::default();
    let mut ended = 0;
    while ended < busy {
        set.wait(&mut ready)?;
        if ready.is_empty() {
            bail!("no data from the sender for {} s", SILENCE.as_secs());
        }
        for at in ready.drain(..) {
            let stream = &mut streams[usize::try_from(at)?];
            match receive(stream)? {
                Some(0) => {
                    ended += 1;
                    set.remove(at, stream)?;
                }
                Some(len) => meter.add(len),
                None => {}
            }
        }
    }
    Ok(meter.finish())
}

/// Accepts all connections of the kernel's TCP, and calls `take` with the bytes of each receive until the busy ones have ended.
///
/// # Errors
///
/// The sender is silent; a system call fails; the error of `take`.
pub fn receive_from_kernel(
    listener: &TcpListener,
    connections: Connections,
    mut take: impl FnMut(&[u8]) -> Result<()>,
) -> Result<MeterReading> {
    let accept = || {
        wait_for_sender(listener)?;
        let (stream, _) = listener.accept().context("accept")?;
        stream.set_nonblocking(true).context("do not block")?;
        Ok(stream)
    };
    let streams: Result<Vec<_>> = (0..connections.all()).map(|_| accept()).collect();
    let mut buffer = vec![0; CHUNK];
    receive_all(Epoll::new()?, streams?, connections.busy, |stream| {
        let len = match stream.read(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            result => result.context("receive")?,
        };
        take(&buffer[..len])?;
        Ok(Some(len))
    })
}
