//! A transfer of the program: what it copies, and how far it is.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use zerocopy::byteorder::little_endian::U64;

use crate::info::MemoryKind;
use crate::raw::region::Region;
use crate::raw::scatter::{Scatter, Uses};
use crate::record::{Entry, MAX_ENTRIES, MAX_PIECE_BYTES};
use crate::status::{Failure, Status};

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    /// From the peer to this agent.
    Read,
    /// From this agent to the peer.
    Write,
}

/// Equally long ranges of both sides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    /// Index among the regions of the transfer.
    pub(crate) region: usize,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// Of the peer's region.
    pub(crate) key: u64,
    pub(crate) remote_offset: u64,
    /// The address of that range in the peer's process.
    pub(crate) remote_address: u64,
}

/// A transfer that was prepared. It may be posted again when it is done.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) op: Op,
    pub(crate) peer: Arc<str>,
    regions: Vec<Arc<Region>>,
    spans: Vec<Span>,
    bytes: u64,
    /// All memory is of processes, so that one of them may copy from the other.
    is_host: bool,
    status: AtomicI32,
    /// The number of its last posting.
    posting: AtomicU64,
}

impl Transfer {
    pub(crate) fn new(
        op: Op,
        peer: Arc<str>,
        regions: Vec<Arc<Region>>,
        spans: Vec<Span>,
        remote: MemoryKind,
    ) -> Result<Arc<Self>, Failure> {
        let sum = spans
            .iter()
            .try_fold(0_u64, |sum, span| sum.checked_add(span.len));
        let bytes = sum.ok_or_else(|| {
            Failure::new(
                Status::InvalidParam,
                "the transfer has more than 2^64 bytes",
            )
        })?;
        let is_host = regions.iter().all(|region| region.gpu().is_none());
        Ok(Arc::new(Self {
            is_host: is_host && remote == MemoryKind::Host,
            op,
            peer,
            regions,
            spans,
            bytes,
            status: AtomicI32::new(Status::NotPosted.code()),
            posting: AtomicU64::new(0),
        }))
    }

    pub(crate) fn status(&self) -> Status {
        Status::of_code(self.status.load(Ordering::Acquire))
    }

    /// Sets the status, after everything that it promises.
    pub(crate) fn set_status(&self, status: Status) {
        self.status.store(status.code(), Ordering::Release);
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns whether no memory of a GPU takes part, on either side.
    pub(crate) fn is_host(&self) -> bool {
        self.is_host
    }

    pub(crate) fn posting(&self) -> u64 {
        self.posting.load(Ordering::Relaxed)
    }

    pub(crate) fn spans(&self) -> &[Span] {
        &self.spans
    }

    /// Begins to use the memory of this agent, for the posting of this number.
    pub(crate) fn post(
        self: &Arc<Self>,
        number: u64,
        notification: Option<Vec<u8>>,
    ) -> Result<Posted, Failure> {
        let mut uses = Uses::default();
        for region in &self.regions {
            uses.take(region).ok_or_else(|| {
                Failure::new(
                    Status::NotFound,
                    "memory of the transfer was deregistered; prepare the transfer again with memory that is registered",
                )
            })?;
        }
        self.posting.store(number, Ordering::Relaxed);
        self.set_status(Status::InProgress);
        Ok(Posted {
            transfer: Arc::clone(self),
            number,
            uses: Arc::new(uses),
            cursor: Cursor::default(),
            left: self.bytes,
            notification,
        })
    }

    /// Returns the memory of this agent, all in one list.
    pub(crate) fn whole(&self, uses: &Arc<Uses>) -> Option<Scatter> {
        let mut scatter = Scatter::new(Arc::clone(uses), self.spans.len());
        for span in &self.spans {
            scatter.push(span.region, span.offset, span.len)?;
        }
        Some(scatter)
    }
}

/// How far a transfer was cut into pieces.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    span: usize,
    done: u64,
}

/// A transfer that is going on.
#[derive(Debug)]
pub(crate) struct Posted {
    pub(crate) transfer: Arc<Transfer>,
    pub(crate) number: u64,
    pub(crate) uses: Arc<Uses>,
    cursor: Cursor,
    /// Bytes that are not in place.
    pub(crate) left: u64,
    pub(crate) notification: Option<Vec<u8>>,
}

impl Posted {
    pub(crate) fn is_cut(&self) -> bool {
        self.cursor.span == self.transfer.spans.len()
    }

    /// Cuts the next piece off: ranges of both sides, as many as one piece may have. Those of the peer replace what is in `entries`, and their
    /// addresses in its process what is in `addresses`.
    pub(crate) fn cut(
        &mut self,
        entries: &mut Vec<Entry>,
        addresses: &mut Vec<U64>,
    ) -> Option<Scatter> {
        entries.clear();
        addresses.clear();
        let spans = &self.transfer.spans;
        let room = (spans.len() - self.cursor.span).min(MAX_ENTRIES);
        let mut scatter = Scatter::new(Arc::clone(&self.uses), room);
        while let Some(span) = spans.get(self.cursor.span)
            && entries.len() < MAX_ENTRIES
            && scatter.left() < MAX_PIECE_BYTES
        {
            let done = self.cursor.done;
            let len = (span.len - done).min(MAX_PIECE_BYTES - scatter.left());
            if len > 0 {
                scatter.push(span.region, span.offset + done, len)?;
                entries.push(Entry::new(span.key, span.remote_offset + done, len));
                addresses.push((span.remote_address + done).into());
            }
            self.cursor.done += len;
            if self.cursor.done == span.len {
                self.cursor = Cursor {
                    span: self.cursor.span + 1,
                    done: 0,
                };
            }
        }
        Some(scatter)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::region::tests::leaked;

    fn transfer(lens: &[u64]) -> Arc<Transfer> {
        let region = leaked(vec![0; 4 << 20], 1);
        let mut offset = 0;
        let spans = lens.iter().map(|len| {
            offset += len;
            Span {
                region: 0,
                offset: offset - len,
                len: *len,
                key: 9,
                remote_offset: 2 * (offset - len),
                remote_address: 0,
            }
        });
        let spans = spans.collect();
        Transfer::new(
            Op::Write,
            "peer".into(),
            vec![region],
            spans,
            MemoryKind::Host,
        )
        .unwrap()
    }

    #[test]
    fn short_ranges_share_a_piece_and_long_ones_are_split() {
        let mut posted = transfer(&[5, 0, 7, MAX_PIECE_BYTES, 3])
            .post(1, None)
            .unwrap();
        let mut entries = Vec::new();
        let first = posted.cut(&mut entries, &mut Vec::new()).unwrap();
        assert_eq!(first.left(), MAX_PIECE_BYTES);
        let expected = [
            Entry::new(9, 0, 5),
            Entry::new(9, 10, 7),
            Entry::new(9, 24, MAX_PIECE_BYTES - 12),
        ];
        assert_eq!(entries, expected);
        assert!(!posted.is_cut());
        let second = posted.cut(&mut entries, &mut Vec::new()).unwrap();
        assert_eq!(second.left(), 15);
        assert_eq!(entries.len(), 2);
        assert!(posted.is_cut());
    }

    #[test]
    fn a_piece_has_at_most_as_many_ranges_as_one_call() {
        let mut posted = transfer(&[1; 1500]).post(1, None).unwrap();
        let mut entries = Vec::new();
        assert_eq!(
            posted.cut(&mut entries, &mut Vec::new()).unwrap().left(),
            1024
        );
        assert_eq!(
            posted.cut(&mut entries, &mut Vec::new()).unwrap().left(),
            476
        );
        assert!(posted.is_cut());
    }

    #[test]
    fn memory_that_was_deregistered_is_not_posted() {
        let it = transfer(&[1]);
        it.regions[0].close().unwrap();
        assert_eq!(it.post(1, None).unwrap_err().status, Status::NotFound);
        assert_eq!(it.status(), Status::NotPosted);
    }
}
