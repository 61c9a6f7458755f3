//! The run of net_iovs that a queue keeps posted, filled from front to back.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use mapped::DmaRight;
use netmem::{BufSpan, DmaPort, Frag, FragList, MemoryProvider, Netmem, PagePool};
use smallvec::SmallVec;

/// Maximum payload of a frame with its length in the IP header, in bytes (RFC 791 3.1).
pub(crate) const MAX_PAYLOAD: usize = 65_535;

/// Payloads are aligned to this, a cache line, unless bytes were moved to their front.
pub(crate) const ALIGN: usize = 64;

/// Divisor: a net_iov is retired when less than 1 / `RETIRE_PARTS` of it, or of the last packet, is free. A packet that
/// started in such a small rest would lie in two net_iovs.
const RETIRE_PARTS: usize = 16;

/// Minimum payload, in bytes, of the packets that [`RxSpace::bytes`] is computed for.
pub(crate) const MIN_GOOD_PAYLOAD: usize = 1050;

/// Divisor: 1 / `LOSS_PARTS` of the free memory is not advertised to peers, because packets of at least
/// [`MIN_GOOD_PAYLOAD`] bytes cannot use it.
///
/// Worst case per packet: the headroom and the alignment, at most [`ALIGN`] - 1 bytes, in addition to the payload; per
/// net_iov, or per packet larger than a net_iov: 1 / [`RETIRE_PARTS`]. With the headroom of 12 bytes for TCP timestamps
/// over IPv4: (1 - 1/16) * 1050 / (1050 + 63 + 12) = 7/8. Over IPv6, with a headroom of 32, the same holds from 1,330
/// bytes on, which is still less than a full segment.
const LOSS_PARTS: usize = 8;

/// Divisor: 1 / `SLACK_PARTS` of the memory, the slack, is never advertised. It is for super-packets that must lie in one
/// net_iov ([`Fill::tidy`]), small packets, duplicates, and any other use that [`LOSS_PARTS`] does not include.
const SLACK_PARTS: usize = 8;

/// Divisor: memory is short when less than 1 / `SHORT_PARTS` of a queue's share is free: half of the slack. Packets of at
/// least [`MIN_GOOD_PAYLOAD`] bytes within the advertised windows leave more than that free.
const SHORT_PARTS: usize = SLACK_PARTS * 2;

/// [`Fill::reserve`] skips fewer bytes than this: the headroom and the alignment of one packet.
const NEAR_BYTES: usize = 2 * ALIGN;

/// Spans of a posted run: 17 net_iovs of 4 KiB hold [`MAX_PAYLOAD`] bytes at any start.
pub(crate) type Spans<'a> = SmallVec<[BufSpan<'a>; 20]>;

/// Most spans that are posted for a packet: with those of a place that a connection has chosen, they are fewer than one readv
/// takes. The rest of a super-packet of 512 KiB that needs more, of net_iovs of 4 or 8 KiB, is copied.
const MAX_SPANS: usize = 56;

/// Divisor: no more than 1 / `POSTED_PARTS` of the memory is posted for packets longer than [`MAX_PAYLOAD`], because other
/// queues of the binding cannot use what is posted.
const POSTED_PARTS: usize = 16;

/// A page pool and the run of its net_iovs that is being filled.
///
/// Packets are placed one after another, aligned; each frag holds a reference to its net_iov. The last frag in a net_iov
/// takes over the reference of the run, so a net_iov that is filled by one super-packet needs no atomic operation.
#[derive(Debug)]
pub(crate) struct Fill {
    pub(crate) pool: PagePool,
    port: DmaPort,
    niov_size: usize,
    /// The posted net_iovs, in order; the first `used` bytes of the first one are in use.
    run: VecDeque<Netmem>,
    used: usize,
    /// Payload bytes of the last packet.
    last_len: usize,
    /// This queue's share of the net_iovs: all of them, or an equal part if other queues use the same memory. It limits
    /// the advertised windows, not the allocation.
    share_niovs: usize,
    /// Maximum bytes that peers may still send because [`Fill::space`] allowed windows for them. Every received payload
    /// reduces it, duplicates included: the slack is for those.
    owed_bytes: usize,
    /// The greatest demand since [`Fill::take_demand`]; updated when net_iovs are added to the run.
    demand: MemoryDemand,
    /// The demand is [`MemoryDemand::Check`] when fewer bytes than this are free.
    check_below: usize,
    /// See [`crate::RxQueueStats::tidied`].
    pub(crate) tidied: u64,
    /// See [`crate::RxQueueStats::collapsed`].
    pub(crate) collapsed: u64,
    /// See [`crate::RxQueueStats::collapsed_bytes`].
    pub(crate) collapsed_bytes: u64,
}

impl Fill {
    /// Returns the fill of a new pool of memory; nothing is posted yet.
    pub(crate) fn new(provider: Arc<MemoryProvider>) -> Self {
        let pool = PagePool::new(provider);
        let port = pool.dma_port(DmaRight::of_a_nic());
        let niov_size = pool.niov_size().bytes();
        let share_niovs = pool.available_niovs() as usize;
        let posted = MAX_PAYLOAD.div_ceil(niov_size) + 2;
        Self {
            pool,
            port,
            niov_size,
            run: VecDeque::with_capacity(posted),
            used: 0,
            last_len: 0,
            share_niovs,
            owed_bytes: 0,
            demand: MemoryDemand::None,
            check_below: 0,
            tidied: 0,
            collapsed: 0,
            collapsed_bytes: 0,
        }
    }

    pub(crate) fn port(&self) -> &DmaPort {
        &self.port
    }

    pub(crate) fn niov_size(&self) -> usize {
        self.niov_size
    }

    /// Sets the number of net_iovs that windows may be advertised for.
    pub(crate) fn set_share(&mut self, niovs: usize) {
        self.share_niovs = niovs;
    }

    /// Returns the run to the pool.
    pub(crate) fn stop(&mut self) {
        while let Some(netmem) = self.run.pop_front() {
            self.pool.recycle(netmem);
        }
        self.used = 0;
    }

    /// Returns the offset in the first net_iov at which the next payload starts, with `headroom` free bytes before it.
    pub(crate) fn start(&self, headroom: usize) -> usize {
        (self.used + headroom).next_multiple_of(ALIGN)
    }

    /// Returns the number of posted bytes from the next start.
    pub(crate) fn posted_bytes(&self, headroom: usize) -> usize {
        (self.run.len() * self.niov_size).saturating_sub(self.start(headroom))
    }

    /// Extends the run to `want` bytes, or as far as the pool has net_iovs; returns the number of posted bytes.
    pub(crate) fn post(&mut self, want: usize, headroom: usize) -> usize {
        self.tidy(headroom);
        let mut posted = self.posted_bytes(headroom);
        if posted >= want {
            return posted;
        }
        while posted < want {
            let missing = (want - posted).div_ceil(self.niov_size);
            let got = match missing {
                1 => self
                    .pool
                    .alloc()
                    .map(|netmem| self.run.push_back(netmem))
                    .is_some(),
                _ => self.pool.alloc_contiguous(missing, &mut self.run) > 0,
            };
            if !got {
                break;
            }
            posted = self.posted_bytes(headroom);
        }
        // Reached only when net_iovs were added, not for every packet.
        let level = self.level();
        let demand = match level.free_bytes < self.check_below {
            _ if level.is_short() => MemoryDemand::Short,
            true => MemoryDemand::Check,
            false => MemoryDemand::None,
        };
        self.demand = self.demand.max(demand);
        posted
    }

    /// Returns the most bytes to post for a link that fills [`spans`](Self::spans).
    pub(crate) fn most_in_spans(&self, headroom: usize) -> usize {
        let spannable = (MAX_SPANS * self.niov_size).saturating_sub(self.start(headroom));
        spannable.min(MAX_PAYLOAD.max(self.share_niovs * self.niov_size / POSTED_PARTS))
    }

    /// Returns the bytes of [`spans`](Self::spans).
    pub(crate) fn span_bytes(&self, headroom: usize) -> usize {
        (self.run.len().min(MAX_SPANS) * self.niov_size).saturating_sub(self.start(headroom))
    }

    /// Returns how much memory is free.
    pub(crate) fn level(&self) -> MemoryLevel {
        MemoryLevel {
            free_bytes: self.free_bytes(),
            share_bytes: self.share_niovs * self.niov_size,
        }
    }

    /// Returns and resets the greatest demand since the last call.
    pub(crate) fn take_demand(&mut self) -> MemoryDemand {
        std::mem::take(&mut self.demand)
    }

    /// Records that the caller has examined the memory: the demand is [`MemoryDemand::Check`] again when another sixteenth
    /// is in use.
    pub(crate) fn note_check(&mut self) {
        let level = self.level();
        self.check_below = level
            .free_bytes
            .saturating_sub(level.share_bytes / SHORT_PARTS);
    }

    /// Copies a small frag into a net_iov with other small frags; `None` if there is no memory, or its device fails.
    pub(crate) fn collapse(&mut self, frag: &Frag) -> Option<Frag> {
        // The length of a frag, a u32.
        let copy = self.pool.alloc_frag(frag.len() as u32)?;
        let (to, at) = (copy.netmem(), copy.offset());
        match to.copy_engine() {
            None => self.port.copy(frag, to, at),
            Some(_) => self.port.copy_by_device(frag, to, at).ok()?,
        }
        self.collapsed += 1;
        self.collapsed_bytes += frag.len() as u64;
        Some(match frag.is_linear() {
            true => copy.into_linear(),
            false => copy,
        })
    }

    /// Returns the posted memory from the next start, at most [`MAX_SPANS`] spans.
    pub(crate) fn spans(&self, headroom: usize) -> impl Iterator<Item = BufSpan<'_>> {
        let mut start = self.start(headroom);
        self.run.iter().take(MAX_SPANS).map(move |netmem| {
            let from = std::mem::take(&mut start);
            // At most 2 MiB: fits.
            let (offset, len) = (from as u32, (self.niov_size - from) as u32);
            BufSpan {
                netmem,
                offset,
                len,
            }
        })
    }

    /// Returns a range of the posted memory, relative to the next start.
    pub(crate) fn spans_within(
        &self,
        headroom: usize,
        range: Range<usize>,
    ) -> impl Iterator<Item = BufSpan<'_>> {
        let start = self.start(headroom);
        let (from, to) = (range.start + start, range.end + start);
        self.run
            .iter()
            .enumerate()
            .filter_map(move |(index, netmem)| {
                let base = index * self.niov_size;
                let (from, to) = (from.max(base), to.min(base + self.niov_size));
                // Inside one net_iov of at most 2 MiB.
                (from < to).then(|| BufSpan {
                    netmem,
                    offset: (from - base) as u32,
                    len: (to - from) as u32,
                })
            })
    }

    /// Extends the run to `want` bytes from the next start; returns false if there is not enough memory.
    pub(crate) fn extend(&mut self, want: usize, headroom: usize) -> bool {
        let is_enough = self.post(want, headroom) >= want;
        if !is_enough {
            self.demand = MemoryDemand::Short;
        }
        is_enough
    }

    /// Returns `len` bytes of memory, as frags, without writing them; `None` if there is not enough.
    ///
    /// They start at offset `near` of the net_iov if that is free and not far: where the other side of a copy starts.
    pub(crate) fn reserve(&mut self, len: usize, near: usize) -> Option<FragList> {
        if len == 0 {
            return Some(FragList::default());
        }
        if !self.extend(len, 0) {
            return None;
        }
        let start = self.start(0);
        let skip = near.checked_sub(start).filter(|&skip| skip < NEAR_BYTES);
        let skip = skip.filter(|skip| skip + len <= self.posted_bytes(0));
        Some(self.take(start + skip.unwrap_or(0), len))
    }

    /// Returns `len` posted bytes, from offset `at` of the run on, as frags.
    ///
    /// The caller has posted that many; otherwise the list is shorter.
    pub(crate) fn take(&mut self, mut at: usize, len: usize) -> FragList {
        while at >= self.niov_size {
            at -= self.niov_size;
            self.retire();
        }
        let mut frags = FragList::with_capacity((at + len).div_ceil(self.niov_size));
        let retire_below = self.niov_size.max(len) / RETIRE_PARTS;
        let mut left = len;
        while left > 0 {
            let n = left.min(self.niov_size - at);
            let end = at + n;
            let used_up = self.niov_size - end < retire_below;
            let netmem = match used_up {
                true => self.run.pop_front(),
                false => self.run.front().map(Netmem::share),
            };
            let Some(netmem) = netmem else { break };
            frags.push(Frag::new(netmem, at as u32, n as u32));
            self.used = if used_up { 0 } else { end };
            left -= n;
            at = 0;
        }
        self.last_len = len;
        self.owed_bytes = self.owed_bytes.saturating_sub(len);
        frags
    }

    /// Notes that received payload did not take memory that was promised for it.
    pub(crate) fn note_placed_elsewhere(&mut self, len: usize) {
        self.owed_bytes = self.owed_bytes.saturating_sub(len);
    }

    fn retire(&mut self) {
        if let Some(netmem) = self.run.pop_front() {
            self.pool.recycle(netmem);
        }
        self.used = 0;
    }

    /// Retires a partly used net_iov if the last packet nearly filled a net_iov, the next one would not fit into the rest,
    /// and no advertised window needs the rest.
    ///
    /// Otherwise, after one small packet, every super-packet of the flow would lie in two net_iovs and need two tokens.
    fn tidy(&mut self, headroom: usize) {
        let len = self.last_len;
        let fills_one = len > self.niov_size - self.niov_size / LOSS_PARTS
            && headroom.next_multiple_of(ALIGN) + len <= self.niov_size;
        if self.used == 0 || !fills_one || self.start(headroom) + len <= self.niov_size {
            return;
        }
        let rest = self.niov_size - self.used;
        if promise(self.free_bytes().saturating_sub(rest)) >= self.owed_bytes {
            self.retire();
            self.tidied += 1;
        }
    }

    /// Returns the free bytes of this queue's share.
    fn free_bytes(&self) -> usize {
        let out = (self.pool.stats().outstanding as usize).saturating_sub(self.run.len());
        let free = (self.pool.available_niovs() as usize + self.run.len())
            .min(self.share_niovs.saturating_sub(out));
        (free * self.niov_size).saturating_sub(self.used)
    }

    /// Returns how many payload bytes may be advertised to peers, and the number of free net_iovs.
    ///
    /// The number of bytes is for packets of at least 1,050 payload bytes. Smaller ones use more memory per byte: they use
    /// the slack, and reduce the number by more than their length.
    pub(crate) fn space(&mut self) -> RxSpace {
        let free_bytes = self.free_bytes();
        let bytes =
            promise(free_bytes).saturating_sub(self.share_niovs * self.niov_size / SLACK_PARTS);
        self.owed_bytes = self.owed_bytes.max(bytes);
        RxSpace {
            free_niovs: free_bytes / self.niov_size,
            niov_size: self.niov_size,
            bytes,
        }
    }
}

/// What the stack has to do about the payload that it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryDemand {
    /// Nothing.
    #[default]
    None,
    /// Check whether payload can be moved together: since the last check, another sixteenth of the memory has come into use.
    Check,
    /// Give up payload: memory is short, or there was no room for a packet.
    Short,
}

/// Free memory of a queue, or of the NIC's host memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryLevel {
    /// Free bytes.
    pub free_bytes: usize,
    /// All bytes; an equal part of them if several queues share a binding.
    pub share_bytes: usize,
}

impl MemoryLevel {
    /// Returns whether less is free than full-sized packets within the advertised windows can leave: less than a sixteenth,
    /// or less than two packets of maximum length (in small memory: less than an eighth).
    pub fn is_short(&self) -> bool {
        let longest = (2 * MAX_PAYLOAD).min(self.share_bytes / SLACK_PARTS);
        self.free_bytes < longest.max(self.share_bytes / SHORT_PARTS)
    }

    /// Returns whether at least `numerator / denominator` of the memory is free.
    pub fn has_free(&self, numerator: usize, denominator: usize) -> bool {
        self.free_bytes.saturating_mul(denominator) >= self.share_bytes.saturating_mul(numerator)
    }
}

fn promise(free_bytes: usize) -> usize {
    free_bytes - free_bytes.div_ceil(LOSS_PARTS)
}

/// Free memory of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxSpace {
    /// Number of free net_iovs.
    pub free_niovs: usize,
    /// Bytes of a net_iov.
    pub niov_size: usize,
    /// Payload bytes that may be advertised to peers: the free bytes minus alignment, the unused ends of net_iovs, and a
    /// reserve of an eighth of the memory. For packets of at least 1,050 payload bytes; smaller ones use the reserve.
    pub bytes: usize,
}
