//! The control stream: records, and the bytes that follow some of them, in both directions, without waiting.

use std::io::{self, Read, Write};
use std::ops::Range;

use devmem_tcp::Stream;

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
    pub(crate) stream: Stream,
    /// Bytes to send from `sent` on.
    out: Vec<u8>,
    sent: usize,
    /// Made at the first read; the bytes of `unread` are received and not decoded.
    input: Vec<u8>,
    /// Length of it.
    input_bytes: usize,
    unread: Range<usize>,
    /// The bytes in `input` that follow the record that was returned last.
    inline: Range<usize>,
    /// The last read got less than there was room for: TCP has nothing more, and the next attempt is left to the next turn.
    is_drained: bool,
    ended: bool,
}

impl Control {
    /// Makes the control stream of a peer that has not introduced itself.
    pub(crate) fn new(stream: Stream) -> Self {
        stream.set_nonblocking(true);
        Self {
            stream,
            out: Vec::new(),
            sent: 0,
            input: Vec::new(),
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
    pub(crate) fn flush(&mut self) -> Result<bool, Cause> {
        let before = self.sent;
        while self.sent < self.out.len() {
            match self.stream.write(&self.out[self.sent..]) {
                Ok(bytes) => self.sent += bytes,
                Err(error) if is_not_now(&error) => {
                    let worked = self.sent > before;
                    if self.sent >= FULL {
                        self.out.drain(..self.sent);
                        self.sent = 0;
                    }
                    return Ok(worked);
                }
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

    /// Returns whether received bytes are not decoded.
    pub(crate) fn has_unread(&self) -> bool {
        !self.unread.is_empty()
    }

    /// Returns whether the peer has ended its direction, and every record before the end was returned.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Returns the next record, if it has arrived with the bytes that follow it.
    pub(crate) fn next(&mut self) -> Result<Option<Record>, Cause> {
        loop {
            let unread = &self.input[self.unread.clone()];
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
        &self.input[self.inline.clone()]
    }

    /// Reads more bytes. Returns whether there were any; after a short read once no, without an attempt. There is room for some: `next` has left less than the longest record
    /// with what follows it.
    fn fill(&mut self) -> Result<bool, Cause> {
        if std::mem::take(&mut self.is_drained) {
            return Ok(false);
        }
        let have = self.unread.len();
        if self.input.len() < self.input_bytes {
            // Not resized, which would touch all of it.
            let mut input = vec![0; self.input_bytes];
            input[..have].copy_from_slice(&self.input[self.unread.clone()]);
            self.input = input;
        } else {
            self.input.copy_within(self.unread.clone(), 0);
        }
        self.unread = 0..have;
        self.inline = 0..0;
        match self.stream.read(&mut self.input[have..]) {
            Ok(0) if have > 0 => Err(Violation::Order.into()),
            Ok(0) => {
                self.ended = true;
                Ok(false)
            }
            Ok(bytes) => {
                self.unread.end += bytes;
                self.is_drained = self.unread.end < self.input.len();
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
