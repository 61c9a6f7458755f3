//! `bench rx --connections`: receivers of many streams, in one thread that waits for them with epoll.

use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, SocketAddrV4, TcpListener};
use std::os::fd::{AsFd, OwnedFd};

use anyhow::{Context, Result, bail};
use devmem_tcp::{Dmabuf, Netdev, RecvError, RxBatch, Stream};
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

/// The streams that are waited for.
struct Ready<S> {
    epoll: OwnedFd,
    streams: Vec<S>,
}

impl<S: AsFd> Ready<S> {
    fn new(streams: Vec<S>) -> Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        for (at, stream) in streams.iter().enumerate() {
            let data = epoll::EventData::new_u64(at as u64);
            epoll::add(&epoll, stream, data, epoll::EventFlags::IN)?;
        }
        Ok(Self { epoll, streams })
    }

    /// Receives until `busy` streams have ended. `receive` receives from a stream, once: the number of bytes, 0 at its end, or
    /// `None` if there are none.
    fn run(
        &mut self,
        busy: usize,
        mut receive: impl FnMut(&mut S) -> Result<Option<usize>>,
    ) -> Result<MeterReading> {
        let limit = Timespec::try_from(SILENCE)?;
        let mut events = Vec::with_capacity(EVENTS);
        let mut meter = Meter::default();
        let mut ended = 0;
        while ended < busy {
            let room = rustix::buffer::spare_capacity(&mut events);
            if epoll::wait(&self.epoll, room, Some(&limit))? == 0 {
                bail!("no data from the sender for {} s", SILENCE.as_secs());
            }
            for event in events.drain(..) {
                let stream = &mut self.streams[usize::try_from(event.data.u64())?];
                match receive(stream)? {
                    Some(0) => {
                        ended += 1;
                        epoll::delete(&self.epoll, stream)?;
                    }
                    Some(len) => meter.add(len),
                    None => {}
                }
            }
        }
        Ok(meter.finish())
    }
}

/// Receives many streams with the library of this workspace.
pub fn ours(
    nic: Netdev,
    memory: &Dmabuf,
    connections: Connections,
    starter: Starter,
) -> Result<MeterReading> {
    connections.raise_fd_limit()?;
    let local = SocketAddr::from((RECEIVER, PORT));
    let setup = nic.plan_receive(local).queues(1).apply()?;
    let bound = nic.bind_rx(memory, setup.queues())?;
    let mut listener = nic.listen(local)?;
    listener.set_timeout(Some(SILENCE));
    starter.go().context("start the sender")?;
    let accept = || -> Result<Stream> {
        let (mut stream, _) = listener.accept()?;
        stream.set_nonblocking(true);
        stream.readiness_fd()?;
        Ok(stream)
    };
    let streams: Result<Vec<_>> = (0..connections.all()).map(|_| accept()).collect();
    let mut ready = Ready::new(streams?)?;
    let mut batch = RxBatch::with_capacity(BATCH_FRAGS);
    let received = ready.run(connections.busy, |stream| {
        let len = match stream.recv(&mut batch) {
            Err(RecvError::WouldBlock) => return Ok(None),
            result => result?,
        };
        batch.release()?;
        Ok(Some(len))
    })?;
    drop((batch, ready, listener, bound, setup, nic));
    Ok(received)
}

/// Receives many streams with the kernel's TCP, and copies to the device buffer.
pub fn kernel(memory: &Dmabuf, connections: Connections, starter: Starter) -> Result<MeterReading> {
    connections.raise_fd_limit()?;
    let listener = TcpListener::bind(SocketAddrV4::new(RECEIVER, PORT)).context("listen")?;
    starter.go().context("start the sender")?;
    let mut streams = Vec::new();
    for _ in 0..connections.all() {
        wait_for_sender(&listener)?;
        let (stream, _) = listener.accept().context("accept")?;
        stream.set_nonblocking(true).context("do not block")?;
        streams.push(stream);
    }
    let mut ready = Ready::new(streams)?;
    let mut buffer = vec![0; CHUNK];
    let mut offset = 0;
    ready.run(connections.busy, |stream| {
        let len = match stream.read(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
            result => result.context("receive")?,
        };
        memory.copy_in(offset, &buffer[..len])?;
        offset = if offset + len + CHUNK <= memory.size() {
            offset + len
        } else {
            0
        };
        Ok(Some(len))
    })
}
