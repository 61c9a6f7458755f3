//! The control connection: records and what follows them, in both directions, without waiting.

use std::ops::Range;

use zerocopy::IntoBytes;

use crate::broken::Broken;
use crate::record::{Entry, HEADER_BYTES, MAX_RECORD_BYTES, Record, Violation};
use crate::wire::Wire;

/// First size of the input. It doubles when it is full, so that it never exceeds twice the bytes that have come.
const FIRST_BYTES: usize = 4 << 10;

/// As long as reads fill the input, it grows to this size; further only for a record that is longer.
const USUAL_BYTES: usize = 256 << 10;

/// Queued bytes from which on nothing is cut into pieces.
const FULL: usize = 256 << 10;

/// A control connection.
#[derive(Debug)]
pub(crate) struct Control {
    pub(crate) wire: Box<dyn Wire>,
    /// Bytes to send, from `sent` on.
    out: Vec<u8>,
    sent: usize,
    input: Vec<u8>,
    unread: Range<usize>,
}

impl Control {
    pub(crate) fn new(wire: Box<dyn Wire>) -> Self {
        Self {
            wire,
            out: Vec::new(),
            sent: 0,
            input: Vec::new(),
            unread: 0..0,
        }
    }

    pub(crate) fn queue(&mut self, record: Record) {
        self.out.extend_from_slice(&record.encode());
    }

    pub(crate) fn queue_with(&mut self, record: Record, behind: &[u8]) {
        self.queue(record);
        self.out.extend_from_slice(behind);
    }

    /// Queues the record of a piece with its ranges. What else follows it is appended to what this returns.
    pub(crate) fn queue_piece(&mut self, record: Record, entries: &[Entry]) -> &mut Vec<u8> {
        self.queue_with(record, entries.as_bytes());
        &mut self.out
    }

    pub(crate) fn has_room(&self) -> bool {
        self.queued() < FULL
    }

    pub(crate) fn queued(&self) -> usize {
        self.out.len() - self.sent
    }

    /// Sends what there is room for. Returns whether that was something.
    pub(crate) fn flush(&mut self) -> Result<bool, Broken> {
        let before = self.sent;
        while self.sent < self.out.len() {
            let Some(bytes) = self.wire.write(&self.out[self.sent..])? else {
                let worked = self.sent > before;
                if self.sent >= FULL {
                    self.out.drain(..self.sent);
                    self.sent = 0;
                }
                return Ok(worked);
            };
            self.sent += bytes;
        }
        let worked = self.sent > before;
        self.out.clear();
        self.out.shrink_to(FULL);
        self.sent = 0;
        Ok(worked)
    }

    /// Returns the next record, if it has come with what follows it, which is [`behind`](Self::behind) the range.
    pub(crate) fn next(&mut self) -> Result<Option<(Record, Range<usize>)>, Broken> {
        loop {
            let unread = &self.input[self.unread.clone()];
            if let Some((header, behind)) = unread.split_first_chunk::<HEADER_BYTES>() {
                let record = Record::decode(header)?;
                if record.behind() <= behind.len() {
                    let start = self.unread.start + HEADER_BYTES;
                    let range = start..start + record.behind();
                    self.unread.start = range.end;
                    return Ok(Some((record, range)));
                }
            }
            if !self.fill()? {
                return Ok(None);
            }
        }
    }

    /// Returns what follows the record that [`next`](Self::next) has returned last.
    pub(crate) fn behind(&self, range: Range<usize>) -> &[u8] {
        &self.input[range]
    }

    /// Returns whether bytes have come that are not part of a record that was returned.
    pub(crate) fn has_unread(&self) -> bool {
        !self.unread.is_empty()
    }

    pub(crate) fn into_wire(self) -> Box<dyn Wire> {
        self.wire
    }

    /// Reads more. Returns whether there was something.
    fn fill(&mut self) -> Result<bool, Broken> {
        self.make_room();
        let room = &mut self.input[self.unread.end..];
        let whole = room.len();
        match self.wire.read(room)? {
            None => Ok(false),
            Some(0) if self.has_unread() => Err(Violation::Record.into()),
            Some(0) => Err(Broken::Ended),
            Some(bytes) => {
                self.unread.end += bytes;
                if bytes == whole && self.input.len() < USUAL_BYTES {
                    self.input.resize(self.input.len() * 2, 0);
                }
                Ok(true)
            }
        }
    }

    fn make_room(&mut self) {
        if self.input.is_empty() {
            self.input.resize(FIRST_BYTES, 0);
        }
        if self.unread.is_empty() {
            self.unread = 0..0;
        }
        if self.unread.end < self.input.len() {
            return;
        }
        if self.unread.start > 0 {
            self.input.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
        } else {
            // Full of one record, which is at most that long.
            let longer = (self.input.len() * 2).min(MAX_RECORD_BYTES + HEADER_BYTES);
            self.input.resize(longer, 0);
        }
    }
}
