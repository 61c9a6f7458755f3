//! Names and counts of zero-copy sends.

/// Identifier of one [`SendHalf::send`](crate::SendHalf::send), by which [`Completions`](crate::Completions) report that it is
/// complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use = "until it completes, the bytes must not change"]
pub struct SendId {
    /// Number of zero-copy sends of the socket before this one.
    first: u64,
    /// The same number after this one.
    end: u64,
    bytes: usize,
}

impl SendId {
    /// Returns the id of `bytes` that were queued by the zero-copy sends from `first` to before `end`.
    pub(crate) fn new(first: u64, end: u64, bytes: usize) -> Self {
        Self { first, end, bytes }
    }

    /// Returns the number of bytes queued. After [`SendHalf::send`](crate::SendHalf::send) these may be fewer than the ranges have:
    /// send the rest then.
    pub fn bytes(self) -> usize {
        self.bytes
    }

    /// Returns the number of zero-copy sends of the socket up to this one.
    pub(crate) fn end(self) -> u64 {
        self.end
    }

    /// Returns the id of the `bytes` that a SYN had, which are one zero-copy send or none.
    pub(crate) fn of_syn(bytes: usize, is_zerocopy: bool) -> Self {
        Self::new(0, is_zerocopy.into(), bytes)
    }

    /// Returns the id for `bytes`.
    pub(crate) fn with_bytes(self, bytes: usize) -> Self {
        Self { bytes, ..self }
    }

    /// Returns one id for this send and all later ones up to `last`.
    pub(crate) fn through(self, last: Self) -> Self {
        Self::new(self.first, last.end, self.bytes + last.bytes)
    }
}

/// Sends that have completed: their bytes may be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    first: u64,
    end: u64,
}

impl Completion {
    /// Returns the completion of the sends from `first` to before `end`, if there are any.
    pub(crate) fn of(first: u64, end: u64) -> Option<Self> {
        (first < end).then_some(Self { first, end })
    }

    /// Returns whether `id` became complete with these sends.
    pub fn contains(&self, id: SendId) -> bool {
        self.first < id.end && id.end <= self.end
    }
}

/// How far completions were reported to the program.
#[derive(Debug, Default)]
pub(crate) struct Reported(u64);

impl Reported {
    /// Returns the sends that became complete since the last call, now that all before `end` are.
    pub(crate) fn up_to(&mut self, end: u64) -> Option<Completion> {
        let first = self.0;
        self.0 = first.max(end);
        Completion::of(first, end)
    }
}

/// Counts of a socket's zero-copy sends. One [`SendHalf::send`](crate::SendHalf::send) may make several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendCounts {
    /// Sends so far.
    pub sent: u64,
    /// Complete sends.
    pub complete: u64,
    /// Complete sends that were reported as copied (`SO_EE_CODE_ZEROCOPY_COPIED`).
    pub copied: u64,
}
