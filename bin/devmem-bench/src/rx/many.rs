//! Rows of `bench rx --connections`: many streams are received by one thread.

use std::net::{SocketAddr, SocketAddrV4, TcpListener};

use anyhow::{Context, Result};
use devmem_tcp::{Dmabuf, Netdev, Poller, RecvError, RxBatch, Stream};

use super::cases::Waiting;
use crate::connections::Connections;
use crate::meter::{MeterReading, SILENCE};
use crate::sender::{PORT, RECEIVER, Starter};
use crate::wait_set::{CHUNK, Epoll, receive_all, receive_from_kernel};

/// Frags of one receive call.
const BATCH_FRAGS: usize = 1024;

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
