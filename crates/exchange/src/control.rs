//! The control stream: records, and the bytes that follow some of them, in both directions, without waiting.

use std::io::{self, Read, Write};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use devmem_tcp::{Poller, Stream, Watch};

use crate::error::{Cause, StreamName, Violation};
use crate::record::{INLINE_BYTES, RECORD_BYTES, Record};

/// Bytes of received records that are kept. A record fits in with what follows it.
const INPUT_BYTES: usize = 16 << 10;

/// As many bytes of a peer that has not introduced itself: nothing follows its records.
const HELLO_BYTES: usize = 16 * RECORD_BYTES;

const _: () = assert!(RECORD_BYTES + INLINE_BYTES <= INPUT_BYTES);

/// Queued bytes from which on no operation is begun.
const FULL: usize = 1024 * RECORD_BYTES;

/// Returns whether a call only found nothing to do.
pub(crate) fn is_not_now(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

/// A control stream.
pub(crate) struct Control {
    pub(crate) stream: Arc<Stream>,
    /// Bytes to send from `sent` on.
    out: Vec<u8>,
    sent: usize,
    /// `None` while a thread that waits has it.
    reading: Option<Reading>,
    /// Length of its input.
    input_bytes: usize,
    /// The bytes of the input that are received and not decoded.
    unread: Range<usize>,
    /// The bytes of the input that follow the record that was returned last.
    inline: Range<usize>,
    /// The last read got less than there was room for: TCP has nothing more, and the next attempt is left to the next turn.
    is_drained: bool,
    ended: bool,
}

/// The receiving side of a control stream. A thread that waits for records takes it along, and reads them in the call that waits.
pub(crate) struct Reading {
    stream: Arc<Stream>,
    /// Made at the first read.
    input: Vec<u8>,
    /// What a wait has read, to the beginning of the input.
    waited: Option<io::Result<usize>>,
}

impl Reading {
    fn new(stream: &Arc<Stream>) -> Self {
        Self {
            stream: Arc::clone(stream),
            input: Vec::new(),
            waited: None,
        }
    }

    /// Waits for records, and for `watches`.
    pub(crate) fn wait(&mut self, poller: &Poller, watches: &[Watch], at_most: Duration) {
        let waited = poller.wait_read(&self.stream, &mut self.input, watches, at_most);
        self.waited = waited.transpose();
    }

    /// Reads behind the bytes of `unread`, which move to the beginning of the input.
    fn read_behind(&mut self, unread: Range<usize>, input_bytes: usize) -> io::Result<usize> {
        let have = unread.len();
        if self.input.len() < input_bytes {
            // Not resized, which would touch all of it.
            let mut input = vec![0; input_bytes];
            input[..have].copy_from_slice(&self.input[unread]);
            self.input = input;
        } else {
            self.input.copy_within(unread, 0);
        }
        (&*self.stream).read(&mut self.input[have..])
    }
}

impl Control {
    /// Makes the control stream of a peer that has not introduced itself.
    pub(crate) fn new(stream: Stream) -> Self {
        stream.set_nonblocking(true);
        let stream = Arc::new(stream);
        Self {
            reading: Some(Reading::new(&stream)),
            stream,
            out: Vec::new(),
            sent: 0,
            input_bytes: HELLO_BYTES,
            unread: 0..0,
            inline: 0..0,
            is_drained: false,
            ended: false,
        }
    }

    /// From now on the stream is part of an endpoint, and bytes may follow records.
    pub(crate) fn begin(&mut self) {
        self.input_bytes = INPUT_BYTES;
    }

    /// Queues a record that no bytes follow.
    pub(crate) fn queue(&mut self, record: Record) {
        self.out.extend_from_slice(&record.encode());
    }

    /// Queues a record and the bytes that follow it, which `fill` writes.
    pub(crate) fn queue_with(
        &mut self,
        record: Record,
        fill: impl FnOnce(&mut [u8]) -> Result<(), Cause>,
    ) -> Result<(), Cause> {
        let whole = self.out.len();
        self.queue(record);
        let start = self.out.len();
        self.out.resize(start + record.inline_bytes(), 0);
        let filled = fill(&mut self.out[start..]);
        if filled.is_err() {
            self.out.truncate(whole);
        }
        filled
    }

    /// Returns whether another operation may queue records.
    pub(crate) fn has_room(&self) -> bool {
        self.out.len() - self.sent < FULL
    }

    /// Sends what there is room for. Returns whether it sent something.
    ///
    /// While another thread reads, a failure is left to the first call after that: the peer may have said why before, and that comes first.
    pub(crate) fn flush(&mut self) -> Result<bool, Cause> {
        let before = self.sent;
        while self.sent < self.out.len() {
            match (&*self.stream).write(&self.out[self.sent..]) {
                Ok(bytes) => self.sent += bytes,
                Err(error) if is_not_now(&error) => {
                    let worked = self.sent > before;
                    if self.sent >= FULL {
                        self.out.drain(..self.sent);
                        self.sent = 0;
                    }
                    return Ok(worked);
                }
                Err(_) if self.is_read_by_waiter() => return Ok(false),
                Err(error) => return Err(failed(error)),
            }
        }
        let worked = self.sent > before;
        self.out.clear();
        self.sent = 0;
        Ok(worked)
    }

    /// Returns the cause if the peer does not answer.
    pub(crate) fn silence(&self) -> Option<Cause> {
        Cause::of_silence(&self.stream, StreamName::Control)
    }

    /// Returns whether every queued record was sent.
    pub(crate) fn is_flushed(&self) -> bool {
        self.out.is_empty()
    }

    /// Returns whether received bytes are not decoded, or the outcome of a read was not taken.
    pub(crate) fn has_unread(&self) -> bool {
        let has_waited = |reading: &Reading| reading.waited.is_some();
        !self.unread.is_empty() || self.reading.as_ref().is_some_and(has_waited)
    }

    /// Returns whether a thread that waits reads.
    pub(crate) fn is_read_by_waiter(&self) -> bool {
        self.reading.is_none()
    }

    /// Takes the receiving side out, for a thread that waits. `None` if another one has it, before the first read, and while something is not
    /// decoded.
    pub(crate) fn take_reading(&mut self) -> Option<Reading> {
        let has_room = |reading: &mut Reading| reading.input.len() >= self.input_bytes;
        if self.has_unread() || self.ended {
            return None;
        }
        self.reading.take_if(has_room)
    }

    /// Puts the receiving side back.
    pub(crate) fn put_back(&mut self, reading: Reading) {
        self.reading.get_or_insert(reading);
    }

    /// Reads here, although a thread that waits may have the receiving side: what it gets is not wanted.
    pub(crate) fn forget_waiter(&mut self) {
        let stream = &self.stream;
        self.reading.get_or_insert_with(|| Reading::new(stream));
    }

    /// Returns whether the peer has ended its direction, and every record before the end was returned.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Returns the next record, if it has arrived with the bytes that follow it.
    pub(crate) fn next(&mut self) -> Result<Option<Record>, Cause> {
        loop {
            let Some(reading) = &self.reading else {
                return Ok(None);
            };
            let unread = &reading.input[self.unread.clone()];
            if let Some((bytes, behind)) = unread.split_first_chunk() {
                let record = Record::decode(bytes)?;
                let inline = record.inline_bytes();
                if inline <= behind.len() {
                    let start = self.unread.start + RECORD_BYTES;
                    self.inline = start..start + inline;
                    self.unread.start = self.inline.end;
                    return Ok(Some(record));
                }
            }
            if self.ended || !self.fill()? {
                return Ok(None);
            }
        }
    }

    /// Returns the bytes that follow the record that [`next`](Self::next) returned last.
    pub(crate) fn inline(&self) -> &[u8] {
        let reading = self.reading.as_ref();
        reading.map_or(&[], |reading| &reading.input[self.inline.clone()])
    }

    /// Reads more bytes. Returns whether there were any; after a short read once no, without an attempt. There is room for some: `next` has left less than the longest record
    /// with what follows it.
    fn fill(&mut self) -> Result<bool, Cause> {
        if std::mem::take(&mut self.is_drained) {
            return Ok(false);
        }
        let Some(reading) = &mut self.reading else {
            return Ok(false);
        };
        let have = self.unread.len();
        // A thread waits only while all is decoded.
        let read = match reading.waited.take() {
            Some(read) => read,
            None => reading.read_behind(self.unread.clone(), self.input_bytes),
        };
        self.unread = 0..have;
        self.inline = 0..0;
        match read {
            Ok(0) if have > 0 => Err(Violation::Order.into()),
            Ok(0) => {
                self.ended = true;
                Ok(false)
            }
            Ok(bytes) => {
                self.unread.end += bytes;
                self.is_drained = self.unread.end < reading.input.len();
                Ok(true)
            }
            Err(error) if is_not_now(&error) => Ok(false),
            Err(error) => Err(failed(error)),
        }
    }
}

fn failed(error: io::Error) -> Cause {
    Cause::of_stream(StreamName::Control, error)
}
