//! The control stream: records in both directions, without waiting.

use std::io::{self, Read, Write};

use devmem_tcp::Stream;

use super::error::{Cause, StreamName, Violation};
use super::record::{RECORD_BYTES, Record};

/// Bytes read at once.
const READ_BYTES: usize = 64 * RECORD_BYTES;

/// Queued bytes from which on no operation is begun.
const FULL: usize = 1024 * RECORD_BYTES;

/// Returns whether a call only found nothing to do.
pub(super) fn is_not_now(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

/// A control stream.
pub(super) struct Control {
    pub(super) stream: Stream,
    /// Bytes to send from `sent` on.
    out: Vec<u8>,
    sent: usize,
    /// Bytes received, of which those before `read` are decoded.
    input: Vec<u8>,
    read: usize,
    ended: bool,
}

impl Control {
    pub(super) fn new(mut stream: Stream) -> Self {
        stream.set_nonblocking(true);
        Self {
            stream,
            out: Vec::new(),
            sent: 0,
            input: Vec::new(),
            read: 0,
            ended: false,
        }
    }

    /// Queues a record.
    pub(super) fn queue(&mut self, record: Record) {
        self.out.extend_from_slice(&record.encode());
    }

    /// Returns whether another operation may queue records.
    pub(super) fn has_room(&self) -> bool {
        self.out.len() - self.sent < FULL
    }

    /// Sends what there is room for. Returns whether it sent something.
    pub(super) fn flush(&mut self) -> Result<bool, Cause> {
        let before = self.sent;
        while self.sent < self.out.len() {
            match self.stream.write(&self.out[self.sent..]) {
                Ok(bytes) => self.sent += bytes,
                Err(error) if is_not_now(&error) => return Ok(self.sent > before),
                Err(error) => return Err(failed(error)),
            }
        }
        let worked = self.sent > before;
        self.out.clear();
        self.sent = 0;
        Ok(worked)
    }

    /// Returns whether every queued record was sent.
    pub(super) fn is_flushed(&self) -> bool {
        self.out.is_empty()
    }

    /// Returns whether the peer has ended its direction, and every record before the end was returned.
    pub(super) fn has_ended(&self) -> bool {
        self.ended
    }

    /// Returns the next record, if it has arrived.
    pub(super) fn next(&mut self) -> Result<Option<Record>, Cause> {
        loop {
            let unread = &self.input[self.read..];
            if let Some(bytes) = unread.first_chunk() {
                let record = Record::decode(bytes)?;
                self.read += RECORD_BYTES;
                return Ok(Some(record));
            }
            if self.ended || !self.fill()? {
                return Ok(None);
            }
        }
    }

    /// Reads more bytes. Returns whether there were any.
    fn fill(&mut self) -> Result<bool, Cause> {
        self.input.drain(..self.read);
        self.read = 0;
        let have = self.input.len();
        self.input.resize(have + READ_BYTES, 0);
        let read = self.stream.read(&mut self.input[have..]);
        self.input
            .truncate(have + read.as_ref().map_or(0, |bytes| *bytes));
        match read {
            Ok(0) if have > 0 => Err(Violation::Order.into()),
            Ok(0) => {
                self.ended = true;
                Ok(false)
            }
            Ok(_) => Ok(true),
            Err(error) if is_not_now(&error) => Ok(false),
            Err(error) => Err(failed(error)),
        }
    }
}

fn failed(error: io::Error) -> Cause {
    Cause::of_stream(StreamName::Control, error)
}
