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
use crate::send_time::SendTime;

/// Sockets that one epoll_wait(2) returns at most.
const EVENTS: usize = 256;

/// Opens all connections, idle ones first, and sends `source` on the busy ones, on each as fast as it accepts, until the time
/// has passed, or as much as is offered. Ends the busy ones, and waits until the receiver has closed them. Returns the number of
/// bytes.
pub(super) fn run(args: &SenderArgs, connections: Connections, source: &[u8]) -> Result<u64> {
    connections.raise_fd_limit()?;
    let open = |count| -> Result<Vec<_>> {
        (0..count)
            .map(|_| connect(&args.congestion, None))
            .collect::<Result<_>>()
    };
    let idle = open(connections.idle)?;
    let mut busy = open(connections.busy)?;
    let bytes = send(&busy, source, args)?;
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

/// Sends the pieces of `source` one after another, each on the next stream that accepts bytes.
fn send(streams: &[TcpStream], source: &[u8], args: &SenderArgs) -> Result<u64> {
    let ready = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (at, stream) in streams.iter().enumerate() {
        stream.set_nonblocking(true).context("do not block")?;
        let data = epoll::EventData::new_u64(at as u64);
        epoll::add(&ready, stream, data, epoll::EventFlags::OUT)?;
    }
    let start = Instant::now();
    let millis = Duration::from_millis(args.millis);
    let (time, end) = (SendTime::of(millis), start + millis);
    let at_a_time = args.offered.map_or(EVENTS, |_| 1);
    let mut events = Vec::with_capacity(at_a_time);
    let mut pieces = source.chunks_exact(args.write_bytes).cycle();
    let mut bytes = 0_u64;
    while time.continues(bytes) {
        if let Some(gbits) = args.offered {
            // A sleep is too long: at 20 Gbit/s there are 0.4 ms between two sends of a MiB.
            let due = start + Duration::from_nanos(bytes * 8 / u64::from(gbits.max(1)));
            while Instant::now() < due.min(end) {
                std::hint::spin_loop();
            }
        }
        // No timeout: a receiver that is alive makes room.
        epoll::wait(&ready, rustix::buffer::spare_capacity(&mut events), None)?;
        for event in events.drain(..) {
            let at = usize::try_from(event.data.u64())?;
            let piece = pieces.next().context("the memory is shorter than a send")?;
            match rustix::net::send(&streams[at], piece, SendFlags::empty()) {
                Ok(sent) => bytes += sent as u64,
                Err(Errno::AGAIN) => {}
                Err(errno) => return Err(errno).context("send"),
            }
        }
    }
    Ok(bytes)
}
