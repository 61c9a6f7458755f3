//! A connection that sends from device memory: a ring of chunks, each reused only when its send is complete.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::Context;
use devmem_linux::cpu;
use devmem_tcp::{
    BoundTx, RecvError, RecvHalf, RxBatch, SendRing, Stream,
    tcp::{TcpInfo, TcpState},
};

use crate::output::Failure;
use crate::source::{Next, Source};

/// Maximum length of one wait; signals are checked between waits.
const WAIT_SLICE: Duration = Duration::from_millis(100);
/// Maximum length of one wait for the acknowledgement of our FIN and for the peer's; TCP's statistics are read between waits.
const FIN_STEP: Duration = Duration::from_millis(5);
/// Maximum time from the acknowledgement of our FIN until the peer's. A peer may keep its half of the stream open; but one
/// that ends it after our NIC is gone gets no acknowledgement, and its port stays in use for minutes.
const FIN_LIMIT: Duration = Duration::from_millis(500);
/// Maximum time that a run goes on after its caller has ended it, for the peer to take what is queued.
const STOP_LIMIT: Duration = Duration::from_millis(500);
/// Frags of one receive; received bytes are discarded.
const BATCH_FRAGS: usize = 64;

/// Statistics of sending, over one connection or several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendStats {
    /// Payload bytes that the peer has acknowledged.
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
    /// The caller has ended the run before all bytes were acknowledged.
    pub is_interrupted: bool,
    /// What TCP did and measured.
    pub path: PathStats,
}

/// What TCP did and measured, over one connection or several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathStats {
    /// Packets that were sent again.
    pub retransmitted_packets: u64,
    /// Bytes of payload that were sent again.
    pub retransmitted_bytes: u64,
    /// Timeouts of the retransmission timer.
    pub timeouts: u64,
    /// Smoothed round-trip time at the end; of several connections the longest.
    pub rtt: Duration,
    /// Shortest round-trip time seen.
    pub min_rtt: Duration,
}

impl PathStats {
    fn of(info: &TcpInfo) -> Self {
        Self {
            retransmitted_packets: info.total_retrans,
            retransmitted_bytes: info.bytes_retrans,
            timeouts: info.total_rto,
            rtt: info.rtt,
            min_rtt: info.min_rtt,
        }
    }

    fn add(&mut self, other: &Self) {
        self.retransmitted_packets += other.retransmitted_packets;
        self.retransmitted_bytes += other.retransmitted_bytes;
        self.timeouts += other.timeouts;
        self.rtt = self.rtt.max(other.rtt);
        self.min_rtt = match self.min_rtt.is_zero() {
            true => other.min_rtt,
            false => self.min_rtt.min(other.min_rtt),
        };
    }
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
        self.is_interrupted |= other.is_interrupted;
        self.path.add(&other.path);
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
    /// The source has ended, and all of its bytes are queued.
    is_queued: bool,
    /// The peer has acknowledged all queued bytes.
    is_acknowledged: bool,
    /// When the caller has ended the run.
    stopped: Option<Instant>,
    /// What TCP has told last.
    path: PathStats,
    bytes_acked: u64,
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
        stream.set_timeout(Some(WAIT_SLICE));
        let (receiving, sending) = stream.split();
        Ok(Self {
            receiving,
            ring: SendRing::new(sending, tx, region, chunk)?,
            block: vec![0; chunk],
            filling: Duration::ZERO,
            is_queued: false,
            is_acknowledged: false,
            stopped: None,
            path: PathStats::default(),
            bytes_acked: 0,
        })
    }

    /// Sends all of `source` and waits until the peer has acknowledged it. Calls `keep_going` at least every 100 ms. When it
    /// returns false, no more bytes are queued, and the peer has half a second to acknowledge those that are.
    ///
    /// # Errors
    ///
    /// An error of the source or the connection, unless `keep_going` returns false by then.
    pub fn run(
        mut self,
        source: &mut Source,
        keep_going: &mut dyn FnMut(&Transmit<'_>) -> bool,
    ) -> Result<SendStats, Failure> {
        let (start, clock) = (Instant::now(), cpu::thread_cpu_time());
        let mut ran = self.send_all(source, keep_going);
        let elapsed = start.elapsed();
        self.note_path();
        if ran.is_ok() && self.is_acknowledged {
            ran = self.wait_for_the_peer(keep_going);
        }
        if let Err(failure) = ran {
            // What was sent until a signal is reported whatever became of the connection: the peer may have had the same signal.
            if keep_going(&self) {
                return Err(failure);
            }
            self.stopped.get_or_insert_with(Instant::now);
        }
        let counts = self.ring.sender().completions().counts()?;
        let used = cpu::thread_cpu_time().saturating_sub(clock);
        Ok(SendStats {
            bytes: self.acknowledged(),
            sends: counts.sent,
            completions: counts.complete,
            copied: counts.copied,
            elapsed,
            sending: used.saturating_sub(self.filling),
            filling: self.filling,
            path: self.path,
            is_interrupted: self.stopped.is_some() && !(self.is_queued && self.is_acknowledged),
        })
    }

    /// Sends until all bytes are acknowledged, or `keep_going` returns false.
    fn send_all(
        &mut self,
        source: &mut Source,
        keep_going: &mut dyn FnMut(&Transmit<'_>) -> bool,
    ) -> Result<(), Failure> {
        self.feed(source, keep_going)?;
        let is_flushed = self.repeat(keep_going, |ring| ring.flush())?;
        // The rest of a chunk that was not queued is not sent any more: nothing can follow the end of the stream.
        let ended = self.ring.sender_mut().shutdown_write();
        ended.context("end the stream")?;
        self.note_path();
        self.ring.sender_mut().set_timeout(Some(FIN_STEP));
        self.is_acknowledged = is_flushed && self.repeat(keep_going, |ring| Ok(ring.finish()?))?;
        Ok(())
    }

    /// Keeps what TCP tells now: a connection that both sides have ended tells nothing any more.
    fn note_path(&mut self) {
        let info = self.tcp_info();
        let has_ended =
            |info: &TcpInfo| matches!(info.state, TcpState::Closed | TcpState::TimeWait);
        if let Some(info) = info.filter(|info| !has_ended(info)) {
            self.path = PathStats::of(&info);
            self.bytes_acked = info.bytes_acked;
        }
    }

    /// Returns the payload bytes that the peer has acknowledged.
    fn acknowledged(&self) -> u64 {
        let sent = self.ring.sent_bytes();
        match self.is_acknowledged {
            true => sent,
            // Linux also counts the SYN and the FIN.
            false => self.bytes_acked.min(sent),
        }
    }

    /// Queues `source` until it ends or `keep_going` returns false. Calls `keep_going` at least every 100 ms.
    ///
    /// # Errors
    ///
    /// An error of the source or the connection.
    pub fn feed(
        &mut self,
        source: &mut Source,
        keep_going: &mut dyn FnMut(&Transmit<'_>) -> bool,
    ) -> Result<(), Failure> {
        loop {
            if !keep_going(self) {
                self.stopped.get_or_insert_with(Instant::now);
                return Ok(());
            }
            let Self { ring, block, .. } = self;
            let mut slot = match ring.next_slot() {
                Ok(slot) => slot,
                Err(error) if error.kind().is_not_ready() => continue,
                Err(error) => return Err(failed(error)),
            };
            let before = cpu::thread_cpu_time();
            let next = source.next(block, WAIT_SLICE).context("read the input")?;
            if let Next::Bytes(len) = next {
                slot.copy_in(&block[..len])?;
            }
            self.filling += cpu::thread_cpu_time().saturating_sub(before);
            match next {
                Next::Bytes(len) => slot.send(len).map_err(failed)?,
                Next::Later => {}
                Next::End => {
                    self.is_queued = true;
                    return Ok(());
                }
            }
        }
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

    /// Repeats `step` until it is done within the timeout, or `keep_going` returns false. Returns whether it is done.
    fn repeat(
        &mut self,
        keep_going: &mut dyn FnMut(&Transmit<'_>) -> bool,
        step: fn(&mut SendRing<'a>) -> io::Result<()>,
    ) -> Result<bool, Failure> {
        loop {
            match step(&mut self.ring) {
                Ok(()) => return Ok(true),
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                    ) => {}
                Err(error) => return Err(failed(error)),
            }
            self.note_path();
            if self.is_over(keep_going) {
                return Ok(false);
            }
        }
    }

    /// Returns whether the caller has ended the run, and the time after that has passed.
    fn is_over(&mut self, keep_going: &mut dyn FnMut(&Transmit<'_>) -> bool) -> bool {
        if keep_going(self) {
            return false;
        }
        let stopped = self.stopped.get_or_insert_with(Instant::now);
        stopped.elapsed() >= STOP_LIMIT
    }

    /// Waits until the peer has acknowledged the end of the stream. Completions alone do not prove that the peer has the
    /// bytes: a connection that fails also completes its unsent sends.
    fn wait_for_the_peer(
        &mut self,
        keep_going: &mut dyn FnMut(&Transmit<'_>) -> bool,
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
                Err(RecvError::WouldBlock | RecvError::TimedOut { .. }) => {
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
            if self.is_over(keep_going) {
                return Ok(());
            }
        }
    }
}

fn failed(error: impl std::error::Error + Send + Sync + 'static) -> Failure {
    anyhow::Error::from(error).context("send").into()
}
