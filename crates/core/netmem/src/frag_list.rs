//! The payload of one or more segments: frags in order.

use smallvec::SmallVec;

use crate::frag::{Frag, Unreadable};
use crate::page_pool::PagePool;
use crate::payload::Payload;

/// Frags in order, with their total length: the [`Payload`] of the stack. Cutting and
/// joining move handles, never bytes.
///
/// Invariant: no frag is empty; `len` is the sum of their lengths.
#[derive(Default, Debug)]
pub struct FragList {
    frags: SmallVec<[Frag; 2]>,
    len: usize,
}

impl FragList {
    /// Returns the empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns an empty list with capacity for `frags` frags; up to 2 need no allocation.
    pub fn with_capacity(frags: usize) -> Self {
        let frags = SmallVec::with_capacity(frags);
        FragList { frags, len: 0 }
    }

    /// Copies host bytes into pages of `pool`, which small pieces share; `None` when the pool has not enough
    /// pages.
    ///
    /// # Panics
    ///
    /// When the pool's memory is not readable.
    pub fn from_host_bytes(pool: &mut PagePool, bytes: &[u8]) -> Option<Self> {
        assert!(
            pool.is_readable(),
            "host bytes were to be put in device memory"
        );
        let mut list = FragList::new();
        for chunk in bytes.chunks(pool.niov_size().bytes()) {
            // A chunk is at most a net_iov, which is at most 2 MiB.
            let frag = pool.alloc_frag(chunk.len() as u32)?;
            let to = frag.bytes();
            to.region.copy_in(to.offset, chunk);
            list.push(frag);
        }
        Some(list)
    }

    /// Appends a frag; an empty one is dropped.
    pub fn push(&mut self, frag: Frag) {
        if !frag.is_empty() {
            self.len += frag.len();
            self.frags.push(frag);
        }
    }

    /// Appends a frag. If it continues the last one in the same net_iov, the two become one, which saves a handle
    /// and a token at the socket.
    pub fn push_merge(&mut self, frag: Frag) {
        if self
            .frags
            .last_mut()
            .is_some_and(|last| last.try_merge(&frag))
        {
            self.len += frag.len();
        } else {
            self.push(frag);
        }
    }

    /// Returns the frags in order.
    pub fn iter(&self) -> std::slice::Iter<'_, Frag> {
        self.frags.iter()
    }

    /// Returns the first frag.
    pub fn first(&self) -> Option<&Frag> {
        self.frags.first()
    }

    /// Returns the number of frags.
    pub fn frag_count(&self) -> usize {
        self.frags.len()
    }

    /// Returns how many of the first bytes, at most `most`, lie in one pool one after another.
    pub fn first_run(&self, most: usize) -> usize {
        self.first_runs(1, most)
    }

    /// Returns how many of the first bytes, at most `most`, lie in at most `runs` pieces of memory.
    pub fn first_runs(&self, runs: usize, most: usize) -> usize {
        let mut last: Option<&Frag> = None;
        let (mut len, mut seen) = (0, 0);
        for frag in &self.frags {
            seen += usize::from(!last.is_some_and(|last| last.is_followed_by(frag)));
            if len >= most || seen > runs {
                break;
            }
            len += frag.len();
            last = Some(frag);
        }
        len.min(most)
    }

    /// Returns whether any byte is in memory that the stack may not read.
    pub fn is_unreadable(&self) -> bool {
        self.frags.iter().any(|frag| !frag.is_readable())
    }

    /// Copies all bytes to the beginning of `out`.
    ///
    /// # Errors
    ///
    /// [`Unreadable`]: some of them are in device memory; those before were copied.
    ///
    /// # Panics
    ///
    /// When `out` is shorter.
    pub fn copy_to(&self, mut out: &mut [u8]) -> Result<(), Unreadable> {
        for frag in self {
            if !frag.is_readable() {
                return Err(Unreadable);
            }
            let (part, rest) = out.split_at_mut(frag.len());
            frag.copy_to(0, part)?;
            out = rest;
        }
        Ok(())
    }
}

impl Payload for FragList {
    #[inline]
    fn len(&self) -> usize {
        self.len
    }

    fn split_off_front(&mut self, n: usize) -> Self {
        if n >= self.len {
            return std::mem::take(self);
        }
        let mut front = FragList::new();
        let (whole, rest) = self.position(n);
        front.frags.extend(self.frags.drain(..whole));
        if let Some(frag) = self.frags.first_mut().filter(|_| rest > 0) {
            front.frags.push(frag.share(0..rest));
            frag.trim_front(rest);
        }
        front.len = n;
        self.len -= n;
        front
    }

    fn trim_front(&mut self, n: usize) {
        let n = n.min(self.len);
        let (whole, rest) = self.position(n);
        self.frags.drain(..whole);
        if let Some(frag) = self.frags.first_mut() {
            frag.trim_front(rest);
        }
        self.len -= n;
    }

    fn truncate(&mut self, n: usize) {
        if n >= self.len {
            return;
        }
        let (whole, rest) = self.position(n);
        if let Some(frag) = self.frags.get_mut(whole).filter(|_| rest > 0) {
            frag.truncate(rest);
        }
        self.frags.truncate(whole + usize::from(rest > 0));
        self.len = n;
    }

    /// Appends `other`; frags that are adjacent in the same net_iov become one.
    fn append(&mut self, other: Self) {
        if self.is_empty() {
            *self = other;
            return;
        }
        self.len += other.len;
        let mut frags = other.frags.into_iter();
        if let (Some(last), Some(first)) = (self.frags.last_mut(), frags.as_slice().first())
            && last.try_merge(first)
        {
            frags.next();
        }
        self.frags.extend(frags);
    }

    fn share(&self, offset: usize, len: usize) -> Self {
        let offset = offset.min(self.len);
        let mut left = len.min(self.len - offset);
        let mut shared = FragList::new();
        let (whole, mut skip) = self.position(offset);
        for frag in &self.frags[whole..] {
            if left == 0 {
                break;
            }
            let take = left.min(frag.len() - skip);
            shared.push(frag.share(skip..skip + take));
            left -= take;
            skip = 0;
        }
        shared
    }
}

impl FragList {
    /// Returns the number of frags that end at or before byte `n`, and the number of bytes of the next frag before it.
    fn position(&self, n: usize) -> (usize, usize) {
        let mut rest = n;
        for (i, frag) in self.frags.iter().enumerate() {
            if rest < frag.len() {
                return (i, rest);
            }
            rest -= frag.len();
        }
        (self.frags.len(), 0)
    }
}

impl From<Frag> for FragList {
    fn from(frag: Frag) -> Self {
        let mut list = FragList::new();
        list.push(frag);
        list
    }
}

impl IntoIterator for FragList {
    type Item = Frag;
    type IntoIter = smallvec::IntoIter<[Frag; 2]>;

    fn into_iter(self) -> Self::IntoIter {
        self.frags.into_iter()
    }
}

impl<'a> IntoIterator for &'a FragList {
    type Item = &'a Frag;
    type IntoIter = std::slice::Iter<'a, Frag>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl Extend<Frag> for FragList {
    fn extend<I: IntoIterator<Item = Frag>>(&mut self, frags: I) {
        for frag in frags {
            self.push(frag);
        }
    }
}

#[cfg(test)]
mod tests;
