//! Receives connections into device memory, and verifies their bytes there.
//!
//! A single thread does all work. It polls the NIC while it waits for data, so that no byte passes from thread to thread.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use devmem_linux::cpu;
use devmem_tcp::{BoundRx, Errno, Listener, RecvError, RxBatch, RxFrag, Stream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::active_time::ActiveTime;
use crate::output::{Failure, note};
use crate::read_back::{BATCH_BYTES, ReadBack, Unread};
use pattern::{Expected, Verifier};

/// Frags of one receive.
const BATCH_FRAGS: usize = 1024;
/// Maximum length of one wait. Between waits, signals and a failed sender are checked for.
const WAIT_SLICE: Duration = Duration::from_millis(100);
/// Silence after which a note says that the memory is used up, if it is.
const STALL: Duration = Duration::from_secs(3);
/// Time to poll all connections in turn before sleeping.
const SPIN: Duration = Duration::from_micros(50);

/// Task of one run.
pub struct Task<'a> {
    /// Number of simultaneous connections.
    pub connections: u16,
    /// Whether to accept more connections after those have ended.
    pub keep_listening: bool,
    /// Returns the expected stream of a peer, `None` if there is nothing to verify.
    pub expected: &'a dyn Fn(SocketAddr) -> Option<Expected>,
    /// Destination of the payload, if there is one.
    pub output: Option<&'a mut dyn Write>,
    /// Number of frags of each connection to keep.
    pub keep_tokens: usize,
    /// CPU time of receiving: that of this thread, or of the whole process.
    pub clock: fn() -> Duration,
    /// Called at least every 100 ms with the state of the transfer; returns whether to continue.
    pub watch: &'a mut dyn FnMut(&View<'_>) -> Result<Next, Failure>,
    /// Called with the frags of each receive.
    pub lent: &'a dyn Fn(&RxBatch),
    /// Called for each connection that the peer ended with a FIN.
    pub ended: &'a mut dyn FnMut(&Ended),
}

/// What a transfer has received so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Accepted connections.
    pub accepted: u64,
    /// Connections that are open now.
    pub open: usize,
    /// Payload bytes.
    pub bytes: u64,
    /// Time of receiving up to the last byte so far: from the first byte on, without the time between connections.
    pub elapsed: Duration,
    /// The same up to now.
    pub running: Duration,
}

/// State of a running transfer.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The progress.
    pub counts: Counts,
    bound: &'a BoundRx,
    active: &'a [Connection],
    totals: &'a Totals,
}

/// What the live view shows.
impl View<'_> {
    /// Returns the binding of the memory.
    pub fn bound(&self) -> &BoundRx {
        self.bound
    }

    /// Returns peer, payload bytes and stream of each open connection.
    pub fn connections(&self) -> impl Iterator<Item = (SocketAddr, u64, &Stream)> {
        let active = self.active.iter();
        active.map(|connection| (connection.peer, connection.bytes, &connection.stream))
    }

    /// Returns the tokens lent now, and those returned since the start.
    pub fn tokens(&self) -> (u64, u64) {
        let (mut lent, mut returned) = (0, self.totals.tokens_returned);
        for connection in self.active {
            let stats = connection.stream.stats();
            lent += stats.device_frags.saturating_sub(stats.tokens_returned);
            returned += stats.tokens_returned;
        }
        (lent, returned)
    }
}

/// A connection that the peer ended with a FIN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Address of the peer.
    pub peer: SocketAddr,
    /// Payload bytes.
    pub bytes: u64,
    /// Time from its first byte to its last.
    pub elapsed: Duration,
    /// Wrong bytes, if they were verified.
    pub bad_bytes: Option<u64>,
}

/// Result of [`Task::watch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Continue the run.
    Continue,
    /// End the run with the bytes received so far.
    Stop,
}

/// Totals of a run.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Connections that the peer ended with a FIN.
    pub connections: u64,
    /// Connections that failed, or were open when the run was stopped.
    pub broken: u64,
    /// The run was stopped before its end: a connection was open, or expected.
    pub is_interrupted: bool,
    /// Payload bytes in device memory.
    pub device_bytes: u64,
    /// Payload bytes in host memory.
    pub linear_bytes: u64,
    /// Frags of device memory that were lent.
    pub device_frags: u64,
    /// Of those, frags that were returned.
    pub tokens_returned: u64,
    /// Bytes that were verified and are right; `None` if none were verified.
    pub verified: Option<u64>,
    /// Bytes that were verified and are wrong.
    pub bad: u64,
    /// Position of the first wrong byte in its stream.
    pub first_bad: Option<u64>,
    /// Time of receiving up to the last byte, without the time between connections.
    pub elapsed: Duration,
    /// CPU time of receiving.
    pub receiving: Duration,
    /// CPU time of verification and output.
    pub checking: Duration,
}

impl Totals {
    /// Returns the progress at the end of the run.
    pub fn counts(&self) -> Counts {
        Counts {
            accepted: self.connections + self.broken,
            open: 0,
            bytes: self.device_bytes + self.linear_bytes,
            elapsed: self.elapsed,
            running: self.elapsed,
        }
    }

    fn add(&mut self, stream: &Stream, verifier: Option<&Verifier>) {
        let stats = stream.stats();
        self.device_bytes += stats.device_bytes;
        self.linear_bytes += stats.linear_bytes;
        self.device_frags += stats.device_frags;
        self.tokens_returned += stats.tokens_returned;
        if let Some(verifier) = verifier {
            *self.verified.get_or_insert(0) += verifier.good_bytes();
            self.bad += verifier.bad_bytes();
            self.first_bad = self.first_bad.or(verifier.first_bad());
        }
    }
}

/// One connection.
#[derive(Debug)]
struct Connection {
    /// How many were accepted before it.
    number: u64,
    peer: SocketAddr,
    /// Payload bytes, and the time of receiving them.
    bytes: u64,
    time: ActiveTime,
    stream: Stream,
    verifier: Option<Verifier>,
    kept: VecDeque<RxFrag>,
}

impl Connection {
    fn ended(&self) -> Ended {
        Ended {
            peer: self.peer,
            bytes: self.bytes,
            elapsed: self.time.to_last_byte(),
            bad_bytes: self.verifier.as_ref().map(Verifier::bad_bytes),
        }
    }
}

/// A running [`Task`].
pub struct Transfer<'a> {
    bound: &'a BoundRx,
    task: Task<'a>,
    /// Once there are bytes to verify or to write.
    read_back: Option<ReadBack>,
    /// Empty ones, for the next receives.
    batches: Vec<RxBatch>,
    active: Vec<Connection>,
    counts: Counts,
    time: ActiveTime,
    clock_start: Duration,
    totals: Totals,
    /// A note has said that the memory is used up.
    stall_noted: bool,
}

impl fmt::Debug for Transfer<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transfer")
            .field("active", &self.active)
            .finish_non_exhaustive()
    }
}

impl<'a> Transfer<'a> {
    /// Prepares to receive into the memory of `bound`.
    pub fn new(bound: &'a BoundRx, task: Task<'a>) -> Self {
        let clock_start = (task.clock)();
        let expects = task.connections;
        Self {
            bound,
            task,
            read_back: None,
            batches: Vec::new(),
            active: Vec::with_capacity(usize::from(expects)),
            counts: Counts::default(),
            time: ActiveTime::default(),
            clock_start,
            totals: Totals::default(),
            stall_noted: false,
        }
    }

    /// Accepts connections and receives from them until all have ended.
    ///
    /// # Errors
    ///
    /// A write error of the destination, or the error of [`Task::watch`].
    pub fn run(mut self, listener: &mut Listener) -> Result<Totals, Failure> {
        while !self.active.is_empty() || self.may_accept() {
            let view = View {
                counts: self.counts(),
                bound: self.bound,
                active: &self.active,
                totals: &self.totals,
            };
            if (self.task.watch)(&view)? == Next::Stop {
                // A receiver that keeps listening has no other end.
                self.totals.is_interrupted = !self.active.is_empty() || !self.task.keep_listening;
                break;
            }
            if self.may_accept() {
                self.accept(listener)?;
            }
            self.receive(listener)?;
            self.note_stall();
        }
        self.finish_reading()?;
        while let Some(connection) = self.active.pop() {
            self.totals.broken += 1;
            self.close(connection);
        }
        let used = (self.task.clock)().saturating_sub(self.clock_start);
        self.totals.receiving = used.saturating_sub(self.totals.checking);
        self.totals.elapsed = self.time.to_last_byte();
        Ok(self.totals)
    }

    /// Says once who holds the memory, if nothing arrives because it is used up.
    fn note_stall(&mut self) {
        let silence = self.time.until(Instant::now()) - self.time.to_last_byte();
        if self.stall_noted || silence < STALL {
            return;
        }
        let mut streams = self.active.iter().map(|connection| &connection.stream);
        if let Some(held) = streams.find_map(Stream::held_memory) {
            let remedy = "keep fewer frags (--keep-tokens), or bind more memory (--mem-size)";
            note(format_args!("no data for {STALL:?}: {held}; {remedy}"));
            self.stall_noted = true;
        }
    }

    fn counts(&self) -> Counts {
        Counts {
            open: self.active.len(),
            elapsed: self.time.to_last_byte(),
            running: self.time.until(Instant::now()),
            ..self.counts
        }
    }

    /// Returns whether to accept one more connection now.
    fn may_accept(&self) -> bool {
        let limit = u64::from(self.task.connections);
        let at_once = self.active.len() as u64;
        at_once < limit && (self.task.keep_listening || self.counts.accepted < limit)
    }

    fn accept(&mut self, listener: &mut Listener) -> Result<(), Failure> {
        if self.active.is_empty() {
            // Without connections, waiting in accept polls the NIC.
            listener.set_timeout(Some(WAIT_SLICE));
        } else {
            listener.set_nonblocking(true);
        }
        match listener.accept() {
            Ok((stream, peer)) => {
                if self.counts.accepted == 0 {
                    self.clock_start = (self.task.clock)();
                }
                self.active.push(Connection {
                    number: self.counts.accepted,
                    peer,
                    bytes: 0,
                    time: ActiveTime::default(),
                    stream,
                    verifier: (self.task.expected)(peer).map(Verifier::new),
                    kept: VecDeque::new(),
                });
                self.counts.accepted += 1;
                Ok(())
            }
            Err(error) if error.kind().is_not_ready() => Ok(()),
            // The link has ended for good: the connections end, too, and then `Task::watch` may say what happened.
            Err(error) if error.errno() == Errno::ENETDOWN => {
                if self.active.is_empty() {
                    thread::sleep(WAIT_SLICE);
                }
                Ok(())
            }
            Err(error) => Err(Failure::from(anyhow::Error::from(error).context("accept"))),
        }
    }

    /// Receives from all connections that have data; waits for a limited time if none has.
    fn receive(&mut self, listener: &mut Listener) -> Result<(), Failure> {
        if self.active.len() == 1 && !self.may_accept() {
            let stream = &self.active[0].stream;
            match self.has_unread() {
                true => stream.set_nonblocking(true),
                false => stream.set_timeout(Some(WAIT_SLICE)),
            }
            if !self.hear(0)? {
                self.advance_reading()?;
            }
            return Ok(());
        }
        let start = Instant::now();
        while !self.active.is_empty() && !self.ask_each()? {
            self.advance_reading()?;
            if start.elapsed() > SPIN && !self.has_unread() {
                return self.sleep(listener);
            }
        }
        Ok(())
    }

    /// Polls every connection once. Returns whether any had data or has ended.
    fn ask_each(&mut self) -> Result<bool, Failure> {
        let mut heard = false;
        // In reverse order, because the last connection takes the place of one that ends.
        for index in (0..self.active.len()).rev() {
            self.active[index].stream.set_nonblocking(true);
            heard |= self.hear(index)?;
        }
        Ok(heard)
    }

    /// Waits until a connection is readable, or a new one arrives.
    fn sleep(&mut self, listener: &mut Listener) -> Result<(), Failure> {
        let mut fds = Vec::with_capacity(self.active.len() + 1);
        if self.may_accept() {
            fds.push(PollFd::from_borrowed_fd(
                listener.readiness_fd()?,
                PollFlags::IN,
            ));
        }
        for connection in &mut self.active {
            let fd = connection.stream.readiness_fd()?;
            fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN));
        }
        let limit = Timespec::try_from(WAIT_SLICE).expect("a tenth of a second fits");
        match poll(&mut fds, Some(&limit)) {
            // The caller checks for signals.
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(Failure::from(anyhow::Error::from(errno).context("poll"))),
        }
    }

    /// Receives from one connection, and removes the connection if it has ended. Returns whether it had data or has
    /// ended.
    fn hear(&mut self, index: usize) -> Result<bool, Failure> {
        let batch = self.batches.pop();
        let mut batch = batch.unwrap_or_else(|| RxBatch::with_capacity(BATCH_FRAGS));
        let connection = &mut self.active[index];
        let received = connection.stream.recv_at_most(&mut batch, BATCH_BYTES);
        if matches!(received, Ok(1..)) {
            (self.task.lent)(&batch);
            self.begin(index);
            self.read(index, batch)?;
            return Ok(true);
        }
        match batch.release() {
            Ok(_none) => self.batches.push(batch),
            // The report then has fewer returned frags than lent ones.
            Err(error) => note(error),
        }
        if let Err(RecvError::WouldBlock | RecvError::TimedOut { .. }) = received {
            return Ok(false);
        }
        // What it has sent counts first.
        self.finish_reading()?;
        let connection = self.active.swap_remove(index);
        match received {
            Ok(_ended) => {
                self.totals.connections += 1;
                (self.task.ended)(&connection.ended());
            }
            Err(error) => {
                let peer = connection.peer;
                note(
                    Failure::from(error).within(format_args!("the connection from {peer} failed")),
                );
                self.totals.broken += 1;
            }
        }
        self.close(connection);
        Ok(true)
    }

    /// Starts the time of receiving if these are the first bytes. Verification is part of that time.
    fn begin(&mut self, index: usize) {
        let connection = &mut self.active[index];
        if connection.bytes == 0 {
            let now = Instant::now();
            connection.time.received(now);
            self.time.received(now);
        }
    }

    /// Verifies and writes a batch of a connection, as requested: now or later, but before [`finish_reading`](Self::finish_reading) returns.
    fn read(&mut self, index: usize, batch: RxBatch) -> Result<(), Failure> {
        let Connection {
            number, verifier, ..
        } = &self.active[index];
        let unread = Unread {
            connection: *number,
            batch,
        };
        if verifier.is_none() && self.task.output.is_none() {
            return self.received(unread);
        }
        if self.read_back.is_none() {
            let memory = self.bound.memory();
            self.read_back = Some(ReadBack::new(memory).context("read the payload")?);
        }
        self.look_at(|read_back, look| read_back.pass(unread, look))
    }

    fn has_unread(&self) -> bool {
        self.read_back.as_ref().is_some_and(ReadBack::has_batches)
    }

    /// Verifies and writes batches that were received and wait for it, while nothing arrives. Does not wait.
    fn advance_reading(&mut self) -> Result<(), Failure> {
        if !self.has_unread() {
            return Ok(());
        }
        self.look_at(|read_back, look| read_back.advance(look))
    }

    /// Verifies and writes all batches that were received and wait for it.
    fn finish_reading(&mut self) -> Result<(), Failure> {
        if !self.has_unread() {
            return Ok(());
        }
        self.look_at(|read_back, look| read_back.finish(look))
    }

    /// Verifies and writes the bytes that `pass_on` passes on, with the number of their connection, and counts the batches that it returns.
    fn look_at(
        &mut self,
        pass_on: impl FnOnce(
            &mut ReadBack,
            &mut dyn FnMut(u64, &[u8]) -> io::Result<()>,
        ) -> io::Result<Vec<Unread>>,
    ) -> Result<(), Failure> {
        let Self {
            read_back: Some(read_back),
            active,
            task,
            totals,
            ..
        } = self
        else {
            return Ok(());
        };
        let before = cpu::thread_cpu_time();
        let read = pass_on(read_back, &mut |number, bytes| {
            if let Some(connection) = with_number(active, number)
                && let Some(verifier) = &mut connection.verifier
            {
                verifier.check(bytes);
            }
            match &mut task.output {
                Some(output) => output.write_all(bytes),
                None => Ok(()),
            }
        });
        totals.checking += cpu::thread_cpu_time().saturating_sub(before);
        let mut read = read.context("write the payload")?;
        read.drain(..)
            .try_for_each(|unread| self.received(unread))?;
        if let Some(read_back) = &mut self.read_back {
            read_back.reuse(read);
        }
        Ok(())
    }

    /// Counts a batch that has been looked at, and returns its frags, except for those to keep.
    fn received(&mut self, unread: Unread) -> Result<(), Failure> {
        let Unread {
            connection,
            mut batch,
        } = unread;
        let bytes = (batch.device_bytes() + batch.linear_bytes()) as u64;
        let now = Instant::now();
        self.counts.bytes += bytes;
        self.time.received(now);
        if let Some(connection) = with_number(&mut self.active, connection) {
            connection.bytes += bytes;
            connection.time.received(now);
            if self.task.keep_tokens > 0 {
                connection.kept.extend(batch.take());
                let surplus = connection.kept.len().saturating_sub(self.task.keep_tokens);
                connection.kept.drain(..surplus);
            }
        }
        batch.release()?;
        self.batches.push(batch);
        Ok(())
    }

    fn close(&mut self, connection: Connection) {
        let Connection {
            number: _,
            peer: _,
            bytes: _,
            time: _,
            stream,
            verifier,
            kept,
        } = connection;
        if self.active.is_empty() {
            self.time.idle();
        }
        drop(kept);
        self.totals.add(&stream, verifier.as_ref());
    }
}

fn with_number(connections: &mut [Connection], number: u64) -> Option<&mut Connection> {
    connections.iter_mut().find(|it| it.number == number)
}
