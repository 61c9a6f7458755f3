//! The payload of this crate's tests: it records which bytes it stands for, and counts the payload that exists.

use core::cell::Cell;

use netmem::Payload;

use crate::seqnum::SeqNum;

thread_local! {
    /// Number of runs that exist in this thread, which is this test.
    static LIVE_RUNS: Cell<usize> = const { Cell::new(0) };
}

/// Returns how many runs of bytes exist: payload that is not released.
pub fn live_runs() -> usize {
    LIVE_RUNS.get()
}

/// Payload made of runs of a pattern: the byte of sequence number `n` in stream `s` is the pair
/// `(s, n)`.
///
/// A test that sends `Bytes::pattern(seq, len)` can check that every delivered byte comes from the right
/// place in the stream, with certainty; a pattern of real bytes repeats.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Bytes {
    runs: Vec<Run>,
}

/// A run of consecutive pattern bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// Stream: distinguishes two writers of the same sequence numbers.
    pub stream: u8,
    /// Sequence number of the first byte.
    pub start: u32,
    /// Number of bytes.
    pub len: usize,
    alive: Alive,
}

/// Counts itself while it exists.
#[derive(Debug, PartialEq, Eq)]
struct Alive(());

impl Alive {
    fn new() -> Alive {
        LIVE_RUNS.set(LIVE_RUNS.get() + 1);
        Alive(())
    }
}

impl Clone for Alive {
    fn clone(&self) -> Alive {
        Alive::new()
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        LIVE_RUNS.set(LIVE_RUNS.get() - 1);
    }
}

impl Bytes {
    /// Returns `len` bytes of stream 0 as they stand at `start`.
    pub fn pattern(start: SeqNum, len: usize) -> Bytes {
        Bytes::stream(0, start, len)
    }

    /// Returns `len` bytes of `stream` as they stand at `start`.
    pub fn stream(stream: u8, start: SeqNum, len: usize) -> Bytes {
        let run = (len > 0).then(|| Run {
            stream,
            start: start.0,
            len,
            alive: Alive::new(),
        });
        Bytes {
            runs: run.into_iter().collect(),
        }
    }

    /// Returns the runs, touching ones merged.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Returns whether these are exactly the bytes of stream 0 from `start` on.
    pub fn is_pattern(&self, start: SeqNum) -> bool {
        match self.runs.as_slice() {
            [] => true,
            [run] => run.stream == 0 && run.start == start.0,
            _ => false,
        }
    }
}

impl Payload for Bytes {
    fn len(&self) -> usize {
        self.runs.iter().map(|run| run.len).sum()
    }

    fn split_off_front(&mut self, n: usize) -> Bytes {
        let front = self.share(0, n);
        self.trim_front(n);
        front
    }

    fn trim_front(&mut self, n: usize) {
        let len = self.len();
        *self = self.share(n.min(len), len);
    }

    fn truncate(&mut self, n: usize) {
        *self = self.share(0, n);
    }

    fn append(&mut self, other: Bytes) {
        for run in other.runs {
            match self.runs.last_mut() {
                Some(last)
                    if last.stream == run.stream
                        && last.start.wrapping_add(last.len as u32) == run.start =>
                {
                    last.len += run.len;
                }
                _ => self.runs.push(run),
            }
        }
    }

    fn share(&self, offset: usize, len: usize) -> Bytes {
        let mut skip = offset;
        let mut left = len;
        let mut runs = Vec::new();
        for run in &self.runs {
            let take = run.len.saturating_sub(skip).min(left);
            if take > 0 {
                let start = run.start.wrapping_add(skip as u32);
                runs.push(Run {
                    start,
                    len: take,
                    ..run.clone()
                });
            }
            skip = skip.saturating_sub(run.len);
            left -= take;
        }
        Bytes { runs }
    }
}
