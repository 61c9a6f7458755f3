//! A sender with many connections.

use std::io::Read;
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::SendFlags;

use super::{SenderArgs, connect};
use crate::connections::Connections;

/// Sockets that one epoll_wait(2) returns at most.
const EVENTS: usize = 256;

/// Opens all connections, idle ones first, and sends `source` on the busy ones, on each as fast as it accepts, until the time
/// has passed. Ends the busy ones, and waits until the receiver has closed them. Returns the number of bytes.
pub(super) fn run(args: &SenderArgs, connections: Connections, source: &[u8]) -> Result<u64> {
    connections.raise_fd_limit()?;
    let open = |count| -> Result<Vec<_>> {
        (0..count)
            .map(|_| connect(&args.congestion))
            .collect::<Result<_>>()
    };
    let idle = open(connections.idle)?;
    let mut busy = open(connections.busy)?;
    let piece = source.get(..args.write_bytes).unwrap_or(source);
    let bytes = send(&busy, piece, Duration::from_millis(args.millis))?;
    for stream in &busy {
        stream.shutdown(Shutdown::Write).context("end a stream")?;
    }
    for stream in &mut busy {
        stream.set_nonblocking(false).context("wait for the end")?;
        // The receiver closes or resets the connection when it has received everything.
        let _ = stream.read(&mut [0]);
    }
    drop(idle);
    Ok(bytes)
}

fn send(streams: &[TcpStream], piece: &[u8], time: Duration) -> Result<u64> {
    let ready = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (at, stream) in streams.iter().enumerate() {
        stream.set_nonblocking(true).context("do not block")?;
        let data = epoll::EventData::new_u64(at as u64);
        epoll::add(&ready, stream, data, epoll::EventFlags::OUT)?;
    }
    let end = Instant::now() + time;
    let mut events = Vec::with_capacity(EVENTS);
    let mut bytes = 0;
    while Instant::now() < end {
        // No timeout: a receiver that is alive makes room.
        epoll::wait(&ready, rustix::buffer::spare_capacity(&mut events), None)?;
        for event in events.drain(..) {
            let at = usize::try_from(event.data.u64())?;
            match rustix::net::send(&streams[at], piece, SendFlags::empty()) {
                Ok(sent) => bytes += sent as u64,
                Err(Errno::AGAIN) => {}
                Err(errno) => return Err(errno).context("send"),
            }
        }
    }
    Ok(bytes)
}
