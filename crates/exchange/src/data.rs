//! A data stream: payload only. What the bytes are is told by records of the control stream.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::time::Duration;

use devmem_tcp::memory::BatchGather;
use devmem_tcp::{
    Completions, Dmabuf, Interest, Netdev, RecvError, RxBatch, SendId, Stream, Watch,
};

use crate::budget::{Budget, TURN_BYTES};
use crate::control::is_not_now;
use crate::error::{Cause, StreamName};
use crate::placing::Placing;
use crate::region::{BATCH_FRAGS, Gathered, HostMemory, MemoryGone, Source, Span, Target, gather};

/// Bytes copied at once from device memory that the NIC cannot send from.
const COPY_BYTES: usize = 64 << 10;

/// Zero-copy sends that are not complete from which on nothing more is sent. A peer decides how many bytes TCP takes at a time: if it is one,
/// each of them would be a send of its own to remember.
const MAX_FLIGHT: usize = 4096;

/// Most batches that a device copies at a time: it has the next ones when it has done one, and the pool keeps memory for what arrives.
const MAX_COPYING: usize = 4;

/// A chunk that is being sent.
struct Outgoing {
    /// The operation, named by this side.
    op: u64,
    span: Span,
    sent: usize,
}

/// What received bytes belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// A part of a receive; or a get, part 0.
    Part { op: u64, part: u8 },
    /// A put of the peer.
    Put,
}

/// A chunk that the peer has announced.
pub(crate) struct Expected {
    pub(crate) owner: Owner,
    pub(crate) span: Span,
    /// Number of chunks announced before it, over all streams.
    pub(crate) number: u64,
}

/// What a stream has done: which operations progressed.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Operations with the number of their bytes that are sent and may be changed.
    pub(crate) sent: Vec<(u64, usize)>,
    pub(crate) placed: Vec<Placed>,
    /// Something happened.
    pub(crate) worked: bool,
}

/// Received bytes that are in place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    pub(crate) owner: Owner,
    pub(crate) bytes: usize,
    /// Bytes of them that the NIC had written to the memory bound for receiving.
    pub(crate) from_device: usize,
    /// They are the last ones of their chunk.
    pub(crate) is_whole: bool,
}

/// Received bytes that a device copies to their place.
struct Copying {
    gather: BatchGather,
    /// The number of their chunk.
    number: u64,
    placed: Placed,
    /// The last bytes of a chunk keep its memory registered.
    _span: Option<Span>,
}

/// A data stream.
pub(crate) struct DataStream {
    pub(crate) stream: Stream,
    name: StreamName,
    completions: Completions,
    out: VecDeque<Outgoing>,
    /// Bytes of `out` that are not with TCP yet.
    queued: usize,
    /// Zero-copy sends that are not complete, with their operation and length.
    flight: VecDeque<(SendId, u64, usize)>,
    expected: VecDeque<Expected>,
    /// Bytes of the first expected chunk that are placed.
    arrived: usize,
    placing: Placing,
    /// Batches that a device copies to their places, oldest first.
    copying: VecDeque<Copying>,
    /// Empty ones, for the next receives.
    batches: Vec<RxBatch>,
    scratch: Vec<u8>,
}

impl DataStream {
    pub(crate) fn new(stream: Stream, index: u16) -> Self {
        stream.set_nonblocking(true);
        Self {
            completions: stream.completions(),
            stream,
            name: StreamName::Data(index),
            out: VecDeque::new(),
            queued: 0,
            flight: VecDeque::new(),
            expected: VecDeque::new(),
            arrived: 0,
            placing: Placing::default(),
            copying: VecDeque::new(),
            batches: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// Bytes that wait for TCP.
    pub(crate) fn queued(&self) -> usize {
        self.queued
    }

    fn can_push(&self) -> bool {
        !self.out.is_empty() && self.flight.len() < MAX_FLIGHT
    }

    /// Returns whether bytes wait for TCP, or TCP still needs bytes.
    pub(crate) fn is_sending(&self) -> bool {
        !self.out.is_empty() || !self.flight.is_empty()
    }

    /// Returns whether TCP has all queued bytes, and needs some of them until the peer has acknowledged them.
    pub(crate) fn awaits_acknowledgement(&self) -> bool {
        self.out.is_empty() && !self.flight.is_empty()
    }

    /// Returns the cause if the peer does not answer.
    pub(crate) fn silence(&self) -> Option<Cause> {
        Cause::of_silence(&self.stream, self.name)
    }

    /// Adds what must happen before something can be done. Bytes that are not announced are left to TCP.
    pub(crate) fn watch(&self, watches: &mut Vec<Watch>) {
        let wants = [
            (Interest::Receive, !self.expected.is_empty()),
            (Interest::Send, self.can_push()),
            (Interest::Complete, !self.flight.is_empty()),
        ];
        let wants = wants.into_iter().filter(|(_, is_wanted)| *is_wanted);
        watches.extend(wants.map(|(interest, _)| self.stream.watch(interest)));
    }

    /// Queues a chunk of the operation `op`.
    pub(crate) fn send(&mut self, op: u64, span: Span) {
        self.queued += span.len();
        let sent = 0;
        self.out.push_back(Outgoing { op, span, sent });
    }

    /// Notes a chunk that the peer has announced.
    pub(crate) fn expect(&mut self, expected: Expected) {
        self.expected.push_back(expected);
    }

    /// Returns the number of the first chunk that is not in its place.
    pub(crate) fn first_expected(&self) -> Option<u64> {
        let copying = self.copying.front().map(|copying| copying.number);
        copying.or_else(|| self.expected.front().map(|expected| expected.number))
    }

    /// Sends what TCP takes, as far as the budget goes, and collects what it has finished with.
    pub(crate) fn push(
        &mut self,
        nic: &Netdev,
        budget: &mut Budget,
        progress: &mut Progress,
    ) -> Result<(), Cause> {
        while let Some(first) = self.out.front_mut()
            && self.flight.len() < MAX_FLIGHT
            && budget.left() > 0
        {
            let source = first.span.source(first.sent, nic);
            // TCP reads the bytes where they are, and reports when it no longer needs them.
            let is_kept = matches!(source, Source::Bound(..));
            let bytes = match source {
                Source::Bound(bound, range) => {
                    match self.stream.send(&bound, std::slice::from_ref(&range)) {
                        Ok(id) => {
                            self.flight.push_back((id, first.op, id.bytes()));
                            id.bytes()
                        }
                        Err(error) if error.kind().is_not_ready() => 0,
                        Err(error) => return Err(Cause::of_stream(self.name, error)),
                    }
                }
                Source::Device(memory, range) => {
                    self.scratch.resize(range.len().min(COPY_BYTES), 0);
                    let copied = memory.copy_out(range.start, &mut self.scratch);
                    copied.map_err(|error| Cause::Copy(error.into()))?;
                    write(&mut self.stream, &self.scratch, self.name)?
                }
                Source::None => return Err(Cause::MemoryGone),
                Source::Host(memory, range) => {
                    let mut written = Ok(0);
                    let stream = &mut self.stream;
                    let lent = memory.read(range, &mut |bytes| {
                        written = write(stream, bytes, self.name);
                    });
                    lent.map_err(|MemoryGone| Cause::MemoryGone)?;
                    written?
                }
            };
            if bytes == 0 {
                break;
            }
            progress.worked = true;
            budget.spend(bytes);
            if !is_kept {
                progress.sent.push((first.op, bytes));
            }
            first.sent += bytes;
            self.queued -= bytes;
            if first.sent == first.span.len() {
                self.out.pop_front();
            }
        }
        self.complete(progress)
    }

    /// Collects the sends that TCP has finished with.
    pub(crate) fn complete(&mut self, progress: &mut Progress) -> Result<(), Cause> {
        while !self.flight.is_empty() {
            let completed = self.completions.try_next();
            let completed = completed.map_err(|error| Cause::of_stream(self.name, error))?;
            let Some(completed) = completed else {
                break;
            };
            progress.worked = true;
            while let Some(&(id, op, bytes)) = self.flight.front()
                && completed.contains(id)
            {
                progress.sent.push((op, bytes));
                self.flight.pop_front();
            }
        }
        Ok(())
    }

    /// Tells the NIC where the bytes of announced chunks belong, as far as it can place them.
    pub(crate) fn place(&mut self, nic: &Netdev) {
        let Self {
            stream,
            expected,
            arrived,
            placing,
            ..
        } = self;
        let places = (0..).zip(expected.iter()).map(|(index, expected)| {
            let from = if index == 0 { *arrived } else { 0 };
            expected.span.place(from, nic)
        });
        placing.extend(stream, places, expected.len());
    }

    /// From now on neither the NIC nor a device places anything: nobody waits for the bytes any more.
    pub(crate) fn stop_placing(&mut self) {
        self.placing.stop(&mut self.stream);
        // Waits for the copies.
        self.copying.clear();
    }

    /// Notes the bytes that a device has copied to their places since. Copies that go on are work: nothing tells of their end.
    fn finish_copies(&mut self, progress: &mut Progress) -> Result<(), Cause> {
        while let Some(Copying { gather, .. }) = self.copying.front_mut() {
            progress.worked = true;
            let is_done = gather.is_done();
            if !is_done.map_err(|error| Cause::Copy(error.into()))? {
                break;
            }
            if let Some(Copying { gather, placed, .. }) = self.copying.pop_front() {
                let batch = gather.wait();
                self.reuse(batch.map_err(|error| Cause::Copy(error.into()))?)?;
                progress.placed.push(placed);
            }
        }
        Ok(())
    }

    /// Returns the frags of a batch, and keeps it for the next receive.
    fn reuse(&mut self, mut batch: RxBatch) -> Result<(), Cause> {
        let released = batch.release();
        released.map_err(|error| Cause::of_stream(self.name, error))?;
        self.batches.push(batch);
        Ok(())
    }

    /// Receives bytes of the announced chunks to their places, as far as the budget goes. `pool` is the memory bound for receiving.
    pub(crate) fn pull(
        &mut self,
        pool: Option<&Dmabuf>,
        budget: &mut Budget,
        progress: &mut Progress,
    ) -> Result<(), Cause> {
        self.finish_copies(progress)?;
        let mut left = TURN_BYTES;
        while let Some(first) = self.expected.front()
            && left.min(budget.left()) > 0
            && self.copying.len() < MAX_COPYING
        {
            let want = (first.span.len() - self.arrived).min(left);
            let target = first.span.target(self.arrived);
            let received = receive(
                &mut self.stream,
                self.name,
                &mut self.batches,
                want,
                &target,
                pool,
            )?;
            let Some(received) = received else { break };
            let Received {
                bytes,
                from_device,
                gathered,
            } = received;
            progress.worked = true;
            budget.spend(bytes);
            left -= bytes;
            self.arrived += bytes;
            let is_whole = self.arrived == first.span.len();
            let placed = Placed {
                owner: first.owner,
                bytes,
                from_device,
                is_whole,
            };
            let number = first.number;
            let mut whole = None;
            if is_whole {
                self.arrived = 0;
                self.placing.finish_first();
                whole = self.expected.pop_front();
            }
            match gathered {
                Some(Gathered::Copying(gather)) => {
                    self.copying.push_back(Copying {
                        gather,
                        number,
                        placed,
                        _span: whole.map(|expected| expected.span),
                    });
                    continue;
                }
                Some(Gathered::Done(batch)) => self.reuse(batch)?,
                None => {}
            }
            progress.placed.push(placed);
        }
        Ok(())
    }

    /// Closes the connection with a reset: TCP sends nothing more from the memory of an operation.
    pub(crate) fn reset(self) {
        // Fails only in a child of fork(2), where the connection belongs to the parent.
        let _ = self.stream.set_linger(Some(Duration::ZERO));
    }

    /// Receives and drops bytes of an endpoint that closes, as far as the budget goes. Returns whether the peer has ended its direction.
    pub(crate) fn discard(&mut self, budget: &mut Budget) -> bool {
        let mut batch = empty(&mut self.batches);
        let has_ended = loop {
            if budget.left() == 0 {
                break false;
            }
            match self.stream.recv(&mut batch) {
                Ok(0) => break true,
                Ok(bytes) => budget.spend(bytes),
                Err(RecvError::WouldBlock | RecvError::TimedOut { .. }) => break false,
                Err(_ended) => break true,
            }
        };
        // Nobody is told of errors of an endpoint that closes.
        let _ = self.reuse(batch);
        has_ended
    }
}

/// Copies bytes to TCP. Returns how many it took; 0: none now.
fn write(stream: &mut Stream, bytes: &[u8], name: StreamName) -> Result<usize, Cause> {
    match stream.write(bytes) {
        Ok(bytes) => Ok(bytes),
        Err(error) if is_not_now(&error) => Ok(0),
        Err(error) => Err(Cause::of_stream(name, error)),
    }
}

/// Bytes that were received.
struct Received {
    bytes: usize,
    /// Those that the NIC had written to the memory bound for receiving.
    from_device: usize,
    /// The batch that they were in. `None`: they were read straight to their place.
    gathered: Option<Gathered>,
}

/// Returns one of the kept batches, or a new one.
fn empty(batches: &mut Vec<RxBatch>) -> RxBatch {
    let kept = batches.pop();
    kept.unwrap_or_else(|| RxBatch::with_capacity(BATCH_FRAGS))
}

/// Receives at most `want` bytes to their place. `None`: there are none now.
fn receive(
    stream: &mut Stream,
    name: StreamName,
    batches: &mut Vec<RxBatch>,
    want: usize,
    target: &Target<'_>,
    pool: Option<&Dmabuf>,
) -> Result<Option<Received>, Cause> {
    if let (Target::Host(memory, range), None) = (target, pool) {
        let range = range.start..range.start + want;
        return match read(stream, *memory, range, name)? {
            Some(0) => Err(Cause::PeerClosed),
            bytes => Ok(bytes.map(|bytes| Received {
                bytes,
                from_device: 0,
                gathered: None,
            })),
        };
    }
    let mut batch = empty(batches);
    match stream.recv_at_most(&mut batch, want) {
        Ok(0) => Err(Cause::PeerClosed),
        Ok(bytes) => Ok(Some(Received {
            bytes,
            from_device: batch.device_bytes(),
            gathered: Some(gather(batch, bytes, target, pool)?),
        })),
        Err(RecvError::WouldBlock | RecvError::TimedOut { .. }) => {
            batches.push(batch);
            Ok(None)
        }
        Err(error) => Err(Cause::of_stream(name, error)),
    }
}

/// Reads bytes that are in host memory straight to their place. `None`: there are none now.
fn read(
    stream: &mut Stream,
    memory: &dyn HostMemory,
    range: std::ops::Range<usize>,
    name: StreamName,
) -> Result<Option<usize>, Cause> {
    let mut read = Ok(0);
    let lent = memory.write(range, &mut |out| {
        read = stream.read(out);
        read.as_ref().map_or(0, |bytes| *bytes)
    });
    lent.map_err(|MemoryGone| Cause::MemoryGone)?;
    match read {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if is_not_now(&error) => Ok(None),
        Err(error) => Err(Cause::of_stream(name, error)),
    }
}
