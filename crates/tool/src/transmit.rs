//! A connection that sends from device memory: a ring of chunks, each reused only when its send is complete.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::Context;
use devmem_linux::cpu;
use devmem_tcp::{
    BoundTx, RecvError, RecvHalf, RxBatch, SendError, SendRing, Stream, TcpInfo, TcpState,
};

use crate::output::Failure;
use crate::source::{Next, Source};

/// Maximum length of one wait; signals are checked between waits.
const LOOK_AROUND: Duration = Duration::from_millis(100);
/// Maximum length of one wait for the peer's FIN; the acknowledgement of ours is checked between waits.
const FIN_STEP: Duration = Duration::from_millis(5);
/// Maximum time from the acknowledgement of our FIN until the peer's. A peer may keep its half of the stream open; but one
/// that ends it after our NIC is gone gets no acknowledgement, and its port stays in use for minutes.
const FIN_LIMIT: Duration = Duration::from_millis(500);
/// Frags of one receive; received bytes are discarded.
const BATCH_FRAGS: usize = 64;

/// Statistics of sending, over one connection or several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendStats {
    /// Payload bytes.
    pub bytes: u64,
    /// Zero-copy sends.
    pub sends: u64,
    /// Sends that were reported as complete.
    pub completions: u64,
    /// Completed sends that were reported as copied.
    pub copied: u64,
    /// Time from the first byte until the last was acknowledged.
    pub elapsed: Duration,
    /// CPU time of the sending thread, without `filling`.
    pub sending: Duration,
    /// CPU time of generating or reading the bytes and of writing them to device memory.
    pub filling: Duration,
}

impl SendStats {
    /// Adds the statistics of another connection that sent at the same time.
    pub fn add(&mut self, other: &Self) {
        self.bytes += other.bytes;
        self.sends += other.sends;
        self.completions += other.completions;
        self.copied += other.copied;
        self.elapsed = self.elapsed.max(other.elapsed);
        self.sending += other.sending;
        self.filling += other.filling;
    }
}

/// A sending connection with its ring in bound memory.
#[derive(Debug)]
pub struct Transmit<'a> {
    receiving: &'a mut RecvHalf,
    ring: SendRing<'a>,
    block: Vec<u8>,
    /// CPU time of [`SendStats::filling`].
    filling: Duration,
}

impl<'a> Transmit<'a> {
    /// Returns a sender that uses `region` of the memory.
    ///
    /// # Errors
    ///
    /// The region lies outside of the memory, or has no room for a chunk.
    pub fn new(
        stream: &'a mut Stream,
        tx: &'a BoundTx,
        region: Range<usize>,
        chunk: usize,
    ) -> Result<Self, Failure> {
        stream.set_timeout(Some(LOOK_AROUND));
        let (receiving, sending) = stream.split();
        Ok(Self {
            receiving,
            ring: SendRing::new(sending, tx, region, chunk)?,
            block: vec![0; chunk],
            filling: Duration::ZERO,
        })
    }

    /// Sends all of `source` and waits until the peer has acknowledged it. Calls `go_on` at least
    /// every 100 ms; if it returns false, the run ends with the bytes that are queued by then.
    ///
    /// # Errors
    ///
    /// An error of the source or the connection.
    pub fn run(
        mut self,
        source: &mut Source,
        go_on: &mut dyn FnMut(&Transmit<'_>) -> bool,
    ) -> Result<SendStats, Failure> {
        let (start, clock) = (Instant::now(), cpu::thread_cpu_time());
        self.feed(source, go_on)?;
        self.repeat(go_on, |ring| ring.flush())?;
        let ended = self.ring.sender_mut().shutdown();
        ended.context("end the stream")?;
        self.repeat(go_on, |ring| Ok(ring.finish()?))?;
        let elapsed = start.elapsed();
        self.wait_for_the_peer(go_on)?;
        let counts = self.ring.sender().completions().counts()?;
        let used = cpu::thread_cpu_time().saturating_sub(clock);
        Ok(SendStats {
            bytes: self.ring.sent_bytes(),
            sends: counts.sent,
            completions: counts.complete,
            copied: counts.copied,
            elapsed,
            sending: used.saturating_sub(self.filling),
            filling: self.filling,
        })
    }

    /// Queues `source` until it ends or `go_on` returns false. Calls `go_on` at least every 100 ms.
    ///
    /// # Errors
    ///
    /// An error of the source or the connection.
    pub fn feed(
        &mut self,
        source: &mut Source,
        go_on: &mut dyn FnMut(&Transmit<'_>) -> bool,
    ) -> Result<(), Failure> {
        while go_on(self) {
            let Self { ring, block, .. } = self;
            let mut slot = match ring.next_slot() {
                Ok(slot) => slot,
                Err(SendError::WouldBlock | SendError::TimedOut) => continue,
                Err(error) => return Err(failed(error)),
            };
            let before = cpu::thread_cpu_time();
            let next = source.next(block, LOOK_AROUND).context("read the input")?;
            if let Next::Bytes(len) = next {
                slot.copy_in(&block[..len])?;
            }
            self.filling += cpu::thread_cpu_time().saturating_sub(before);
            match next {
                Next::Bytes(len) => slot.send(len).map_err(failed)?,
                Next::Later => {}
                Next::End => break,
            }
        }
        Ok(())
    }

    /// Returns the payload bytes that were queued so far.
    pub fn bytes(&self) -> u64 {
        self.ring.sent_bytes()
    }

    /// Returns the address of the peer, `None` if the connection no longer exists.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.receiving.peer_addr().ok()
    }

    /// Returns the number of chunks with sends in flight, and of all chunks.
    pub fn chunks(&self) -> (usize, usize) {
        (self.ring.in_flight(), self.ring.chunks())
    }

    /// Returns the TCP statistics of the connection, `None` if it no longer exists.
    pub fn tcp_info(&self) -> Option<TcpInfo> {
        self.receiving.tcp_info()
    }

    /// Repeats `step` until it is done within the timeout, or `go_on` returns false.
    fn repeat(
        &mut self,
        go_on: &mut dyn FnMut(&Transmit<'_>) -> bool,
        step: fn(&mut SendRing<'a>) -> io::Result<()>,
    ) -> Result<(), Failure> {
        loop {
            match step(&mut self.ring) {
                Ok(()) => return Ok(()),
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                    ) => {}
                Err(error) => return Err(failed(error)),
            }
            if !go_on(self) {
                return Ok(());
            }
        }
    }

    /// Waits until the peer has acknowledged the end of the stream. Completions alone do not prove that the peer has the
    /// bytes: a connection that fails also completes its unsent sends.
    fn wait_for_the_peer(
        &mut self,
        go_on: &mut dyn FnMut(&Transmit<'_>) -> bool,
    ) -> Result<(), Failure> {
        let mut batch = RxBatch::with_capacity(BATCH_FRAGS);
        self.receiving.set_timeout(Some(FIN_STEP));
        let mut acknowledged = None;
        loop {
            let state = self.receiving.tcp_info().map(|info| info.state);
            match self.receiving.recv(&mut batch) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                // Checked before the receive, so that the receive would have reported an error. Kernel sockets do not
                // provide this; there the bytes are acknowledged, and the kernel sends the FIN by itself.
                Err(RecvError::WouldBlock | RecvError::TimedOut) => {
                    if state.is_none_or(|state| state == TcpState::FinWait2)
                        && acknowledged.get_or_insert_with(Instant::now).elapsed() >= FIN_LIMIT
                    {
                        return Ok(());
                    }
                }
                Err(error) => {
                    let error = anyhow::Error::from(error);
                    return Err(error.context("the connection failed").into());
                }
            }
            if !go_on(self) {
                return Ok(());
            }
        }
    }
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> Failure {
    anyhow::Error::from(error).context("send").into()
}
