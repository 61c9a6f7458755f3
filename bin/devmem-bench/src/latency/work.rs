//! What is measured: round trips, and short connections.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::line::{Host, Line, Listening, receive, send};
use super::rows::{SHORT, Wait};

/// Messages before the first that counts.
const WARM_UP: usize = 50;

/// The first byte of the last short connection.
const LAST: u8 = 1;

/// Sends messages of `bytes` bytes for `time`, each after the return of the one before; returns the time of each in
/// nanoseconds.
pub fn round_trips(line: &mut dyn Line, bytes: usize, time: Duration) -> Result<Vec<u64>> {
    let mut message = vec![0x5a; bytes];
    for _ in 0..WARM_UP {
        send(line, &message)?;
        receive(line, &mut message)?;
    }
    let start = Instant::now();
    let mut times = Vec::with_capacity(1 << 16);
    let mut before = start;
    while before.duration_since(start) < time {
        send(line, &message)?;
        receive(line, &mut message)?;
        let now = Instant::now();
        times.push(u64::try_from(now.duration_since(before).as_nanos()).unwrap_or(u64::MAX));
        before = now;
    }
    Ok(times)
}

/// Opens connections for `time`, sends a message on each and waits until the other end has closed it; returns the time of each in
/// nanoseconds.
pub fn connect_repeatedly(host: &Host, to: SocketAddr, time: Duration) -> Result<Vec<u64>> {
    let start = Instant::now();
    let mut times = Vec::with_capacity(1 << 14);
    let mut message = [0; SHORT];
    loop {
        let before = Instant::now();
        // One is measured in any case, on a busy machine, too.
        if before.duration_since(start) >= time && !times.is_empty() {
            message[0] = LAST;
        }
        let mut line = host.connect(to, Wait::Block)?;
        send(line.as_mut(), &message)?;
        line.finish()?;
        receive(line.as_mut(), &mut [0])?;
        if message[0] == LAST {
            return Ok(times);
        }
        times.push(u64::try_from(before.elapsed().as_nanos()).unwrap_or(u64::MAX));
    }
}

/// Takes connections until one says that it is the last; returns the time from one to the next in nanoseconds.
pub fn take_connections(listening: &Listening, message: &mut [u8; SHORT]) -> Result<Vec<u64>> {
    let mut times = Vec::with_capacity(1 << 14);
    let mut before = None;
    loop {
        let mut line = listening.accept(Wait::Block)?;
        let is_whole = receive(line.as_mut(), message)?;
        drop(line);
        let now = Instant::now();
        if let Some(before) = before.replace(now) {
            let time: Duration = now.duration_since(before);
            times.push(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        }
        if is_whole && message[0] == LAST {
            return Ok(times);
        }
    }
}
