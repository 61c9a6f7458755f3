//! `bench rx --connections`: receivers of many streams, in one thread that waits for them with epoll or with a poller of the
//! library.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, SocketAddrV4, TcpListener};
use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, Result, bail};
use devmem_tcp::{Dmabuf, Interest, Netdev, Poller, RecvError, RxBatch, Stream};
use rustix::event::{Timespec, epoll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::meter::{Meter, MeterReading, SILENCE};
use super::sender::{PORT, RECEIVER, Starter, wait_for_sender};

/// Frags of one receive call.
const BATCH_FRAGS: usize = 1024;
/// Bytes of one receive call of the kernel's TCP.
const CHUNK: usize = 256 << 10;
/// Streams that one epoll_wait(2) returns at most.
const EVENTS: usize = 256;

/// Number of connections of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connections {
    /// Those that the sender sends on, as fast as each accepts.
    pub busy: usize,
    /// Those that stay silent.
    pub idle: usize,
}

impl Connections {
    /// Allows this process to have a descriptor for each connection.
    pub fn raise_fd_limit(self) -> Result<()> {
        const OTHERS: u64 = 100;
        let limit = getrlimit(Resource::Nofile);
        let wanted = u64::try_from(self.all())? + OTHERS;
        if limit.current.is_none_or(|most| most >= wanted) {
            return Ok(());
        }
        let raised = Rlimit {
            current: Some(wanted),
            maximum: limit.maximum,
        };
        setrlimit(Resource::Nofile, raised).with_context(|| {
            format!(
                "allow {wanted} descriptors; raise the limit of this shell: ulimit -Hn {wanted}"
            )
        })
    }

    /// Returns the number of all.
    pub fn all(self) -> usize {
        self.busy + self.idle
    }
}

/// How the thread waits for its streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// In epoll_wait(2), for the readiness fds of the streams.
    Epoll,
    /// With [`Poller`], which polls the NIC.
    Poller,
}

/// The streams that are waited for, by their index.
trait WaitSet<S> {
    fn add(&self, at: u64, stream: &S) -> Result<()>;

    fn remove(&self, at: u64, stream: &S) -> Result<()>;

    /// Waits until a stream is ready and returns those that are; none after [`SILENCE`].
    fn wait(&mut self, ready: &mut Vec<u64>) -> Result<()>;
}

struct Epoll {
    fd: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Epoll {
    fn new() -> Result<Self> {
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
fn receive_all<S>(
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

/// Receives many streams with the library of this workspace.
pub fn ours(
    nic: Netdev,
    memory: &Dmabuf,
    connections: Connections,
    waiting: Waiting,
    starter: Starter,
) -> Result<MeterReading> {
    connections.raise_fd_limit()?;
    let local = SocketAddr::from((RECEIVER, PORT));
    let setup = nic.plan_receive(local).queues(1).apply()?;
    let bound = nic.bind_rx(memory, setup.queues())?;
    let listener = nic.listen(local)?;
    listener.set_timeout(Some(SILENCE));
    starter.go().context("start the sender")?;
    let accept = || -> Result<Stream> {
        let (stream, _) = listener.accept()?;
        stream.set_nonblocking(true);
        if waiting == Waiting::Epoll {
            stream.readiness_fd()?;
        }
        Ok(stream)
    };
    let streams: Result<Vec<_>> = (0..connections.all()).map(|_| accept()).collect();
    let mut batch = RxBatch::with_capacity(BATCH_FRAGS);
    let receive = |stream: &mut Stream| {
        let len = match stream.recv(&mut batch) {
            Err(RecvError::WouldBlock) => return Ok(None),
            result => result?,
        };
        batch.release()?;
        Ok(Some(len))
    };
    let received = match waiting {
        Waiting::Epoll => receive_all(Epoll::new()?, streams?, connections.busy, receive)?,
        Waiting::Poller => receive_all(Poller::new(&nic)?, streams?, connections.busy, receive)?,
    };
    drop((batch, listener, bound, setup, nic));
    Ok(received)
}

/// Receives many streams with the kernel's TCP, and copies to the device buffer.
pub fn kernel(memory: &Dmabuf, connections: Connections, starter: Starter) -> Result<MeterReading> {
    connections.raise_fd_limit()?;
    let listener = TcpListener::bind(SocketAddrV4::new(RECEIVER, PORT)).context("listen")?;
    starter.go().context("start the sender")?;
    let mut offset = 0;
    receive_from_kernel(&listener, connections, |bytes| {
        memory.copy_in(offset, bytes)?;
        offset = if offset + bytes.len() + CHUNK <= memory.size() {
            offset + bytes.len()
        } else {
            0
        };
        Ok(())
    })
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
