//! A connection that sends from device memory: a ring of chunks, each reused only when its send is complete.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::Context;
use devmem_linux::cpu;
use devmem_tcp::{
    BoundTx, CompletionError, Completions, RecvError, RxBatch, SendError, SendId, Stream, TcpInfo,
    TcpState,
};

use crate::output::Failure;
use crate::source::{Next, Source};

/// Maximum length of one wait; signals are checked between waits.
const LOOK_AROUND: Duration = Duration::from_millis(100);
/// Maximum length of one wait for the peer's FIN; the acknowledgement of ours is checked between waits.
const FAREWELL: Duration = Duration::from_millis(5);
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
    stream: Stream,
    completions: Completions,
    tx: &'a BoundTx,
    region: Range<usize>,
    chunk: usize,
    /// Number of whole chunks in the region.
    chunks: usize,
    /// Index of the next chunk to write.
    next: usize,
    /// Sends in flight, oldest first, and whether each is the last of its chunk.
    under_way: VecDeque<(SendId, bool)>,
    /// Number of chunks with sends in flight.
    chunks_under_way: usize,
    block: Vec<u8>,
    sent: SendStats,
}

impl<'a> Transmit<'a> {
    /// Returns a sender that uses `region` of the memory; the region has room for at least one chunk.
    pub fn new(mut stream: Stream, tx: &'a BoundTx, region: Range<usize>, chunk: usize) -> Self {
        stream.set_timeout(Some(LOOK_AROUND));
        let completions = stream.completions();
        Self {
            stream,
            completions,
            tx,
            chunks: region.len() / chunk,
            region,
            chunk,
            next: 0,
            under_way: VecDeque::new(),
            chunks_under_way: 0,
            block: vec![0; chunk],
            sent: SendStats::default(),
        }
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
        self.stream.shutdown_write().context("end the stream")?;
        self.wait_for_completions(go_on)?;
        self.sent.elapsed = start.elapsed();
        self.wait_for_the_peer(go_on)?;
        let counts = self.completions.counts()?;
        self.sent.sends = counts.sent;
        self.sent.completions = counts.complete;
        self.sent.copied = counts.copied;
        let used = cpu::thread_cpu_time().saturating_sub(clock);
        self.sent.sending = used.saturating_sub(self.sent.filling);
        Ok(self.sent)
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
            if !self.has_free_chunk()? {
                continue;
            }
            match self.fill(source)? {
                Next::Bytes(len) => self.send_chunk(len, go_on)?,
                Next::Later => {}
                Next::End => break,
            }
        }
        Ok(())
    }

    /// Returns the payload bytes that were queued so far.
    pub fn bytes(&self) -> u64 {
        self.sent.bytes
    }

    /// Returns the address of the peer, `None` if the connection no longer exists.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.stream.peer_addr().ok()
    }

    /// Returns the number of chunks with sends in flight, and of all chunks.
    pub fn chunks(&self) -> (usize, usize) {
        (self.chunks_under_way, self.chunks)
    }

    /// Returns the TCP statistics of the connection, `None` if it no longer exists.
    pub fn tcp_info(&self) -> Option<TcpInfo> {
        self.stream.tcp_info()
    }

    /// Returns whether the next chunk may be written; waits for that, but only a bounded time.
    fn has_free_chunk(&mut self) -> Result<bool, Failure> {
        while self.chunks_under_way == self.chunks {
            let Some(&(oldest, is_last)) = self.under_way.front() else {
                return Ok(true);
            };
            match self.completions.wait(oldest) {
                Ok(()) => {
                    self.under_way.pop_front();
                    self.chunks_under_way -= usize::from(is_last);
                }
                Err(CompletionError::WouldBlock | CompletionError::TimedOut) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    /// Writes the next chunk.
    fn fill(&mut self, source: &mut Source) -> Result<Next, Failure> {
        let before = cpu::thread_cpu_time();
        let next = source
            .next(&mut self.block, LOOK_AROUND)
            .context("read the input")?;
        if let Next::Bytes(len) = next {
            let at = self.region.start + self.next * self.chunk;
            self.tx.memory().copy_in(at, &self.block[..len])?;
        }
        self.sent.filling += cpu::thread_cpu_time().saturating_sub(before);
        Ok(next)
    }

    /// Sends the first `len` bytes of the current chunk.
    fn send_chunk(
        &mut self,
        len: usize,
        go_on: &mut dyn FnMut(&Transmit<'_>) -> bool,
    ) -> Result<(), Failure> {
        let start = self.region.start + self.next * self.chunk;
        let mut rest = start..start + len;
        while !rest.is_empty() && go_on(self) {
            match self.stream.send(self.tx, std::slice::from_ref(&rest)) {
                Ok(id) => {
                    rest.start += id.bytes();
                    self.sent.bytes += id.bytes() as u64;
                    self.under_way.push_back((id, rest.is_empty()));
                    self.chunks_under_way += usize::from(rest.is_empty());
                }
                Err(SendError::WouldBlock | SendError::TimedOut) => {}
                Err(error) => return Err(anyhow::Error::from(error).context("send").into()),
            }
        }
        self.next = (self.next + 1) % self.chunks;
        Ok(())
    }

    fn wait_for_completions(
        &mut self,
        go_on: &mut dyn FnMut(&Transmit<'_>) -> bool,
    ) -> Result<(), Failure> {
        loop {
            match self.completions.wait_all() {
                Ok(()) => return Ok(()),
                Err(CompletionError::WouldBlock | CompletionError::TimedOut) => {}
                Err(error) => return Err(error.into()),
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
        self.stream.set_timeout(Some(FAREWELL));
        loop {
            let state = self.stream.tcp_info().map(|info| info.state);
            match self.stream.recv(&mut batch) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                // Checked before the receive, so that the receive would have reported an error. Kernel sockets do not
                // provide this; there the bytes are acknowledged, and the kernel sends the FIN by itself.
                Err(RecvError::WouldBlock | RecvError::TimedOut) => {
                    if state.is_none_or(|state| state == TcpState::FinWait2) {
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
