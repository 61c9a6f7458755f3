//! Filling net_iovs front to back: the run that a queue keeps posted.

use std::collections::VecDeque;
use std::ops::Range;

use netmem::{BufSpan, DmaPort, Frag, FragList, Netmem, PagePool};
use smallvec::SmallVec;

/// Longest payload of one frame: what an IP packet can hold (RFC 791 3.1), super-packets included.
pub(crate) const MAX_PAYLOAD: usize = 65_535;

/// Every payload starts at a multiple of this, a cache line, unless bytes were moved in front of it.
pub(crate) const ALIGN: usize = 64;

/// A net_iov is not filled further when less than one part in this many of it, or of the packet just put
/// there, is left: a packet that begins in a small rest straddles net_iovs for nothing.
const RETIRE_PARTS: usize = 16;

/// Payload bytes from which on a packet uses memory no worse than the promise assumes.
pub(crate) const MIN_GOOD_PAYLOAD: usize = 1050;

/// The promise made from free memory leaves this part out: what packets of at least
/// [`MIN_GOOD_PAYLOAD`] bytes cannot use.
///
/// Worst case per packet: the headroom and the alignment, at most [`ALIGN`] - 1 bytes, on top of the
/// payload; per net_iov, or packet larger than one: one part in [`RETIRE_PARTS`]. With the 12 bytes of
/// headroom that TCP timestamps over IPv4 ask for: (1 - 1/16) * 1050 / (1050 + 63 + 12) = 7/8. Over
/// IPv6, headroom 32, it takes 1,330 bytes: still less than a full segment.
const LOSS_PARTS: usize = 8;

/// One part in this many of the memory is never promised. It pays for placing super-packets in one piece
/// ([`Fill::tidy`]) and for small packets, duplicates and whatever else the sum above does not foresee.
const SLACK_PARTS: usize = 8;

/// Memory is short when less than one part in this many of a queue's share is free: half of the slack.
/// Packets that keep to the promise never get there.
const SHORT_PARTS: usize = SLACK_PARTS * 2;

/// Spans of a posted run: 17 net_iovs of 4 KiB hold the longest payload from any start.
pub(crate) type Spans<'a> = SmallVec<[BufSpan<'a>; 20]>;

/// A piece of a frame, wherever it lies.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Piece<'a> {
    /// In host memory of the NIC itself.
    Host(&'a [u8]),
    /// In pool memory.
    Span(BufSpan<'a>),
}

impl Piece<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Piece::Host(bytes) => bytes.len(),
            Piece::Span(span) => span.len as usize,
        }
    }

    /// Copies the piece to `out`, which is as long.
    pub(crate) fn copy_to(&self, out: &mut [u8], port: &DmaPort) {
        match self {
            Piece::Host(bytes) => out.copy_from_slice(bytes),
            Piece::Span(span) => port.copy_out(*span, 0, out),
        }
    }
}

/// A page pool and the run of its net_iovs that is being filled.
///
/// Packets are laid one after another, aligned; each frag holds a reference to its net_iov. The frag that
/// uses a net_iov up takes the reference of the run itself, so a net_iov filled by one super-packet costs
/// no atomic operation.
#[derive(Debug)]
pub(crate) struct Fill {
    pool: PagePool,
    port: DmaPort,
    niov_size: usize,
    /// Posted, in order; the first is used up to `used`.
    run: VecDeque<Netmem>,
    used: usize,
    /// Payload bytes of the last packet.
    last_len: usize,
    /// net_iovs that may be out at once: all, unless other queues draw from the same memory. Only
    /// promises keep to it.
    share_niovs: usize,
    /// What may have been promised to peers on the strength of [`Fill::space`] and has not come yet. Every
    /// payload counts as come, a duplicate, too: the slack pays for those.
    owed_bytes: usize,
    /// How little was free since that was last asked: seen when the run is added to.
    demand: MemoryDemand,
    /// Less free than this is worth a look.
    look_below: usize,
    /// See [`crate::RxQueueStats::tidied`].
    pub(crate) tidied: u64,
    /// See [`crate::RxQueueStats::collapsed`].
    pub(crate) collapsed: u64,
    /// See [`crate::RxQueueStats::collapsed_bytes`].
    pub(crate) collapsed_bytes: u64,
}

impl Fill {
    pub(crate) fn new(pool: PagePool, port: DmaPort) -> Self {
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
            look_below: 0,
            tidied: 0,
            collapsed: 0,
            collapsed_bytes: 0,
        }
    }

    pub(crate) fn pool(&self) -> &PagePool {
        &self.pool
    }

    pub(crate) fn port(&self) -> &DmaPort {
        &self.port
    }

    pub(crate) fn niov_size(&self) -> usize {
        self.niov_size
    }

    /// Sets how many net_iovs may be out at once as far as promises go.
    pub(crate) fn set_share(&mut self, niovs: usize) {
        self.share_niovs = niovs;
    }

    pub(crate) fn recycle(&mut self, netmem: Netmem) {
        self.pool.recycle(netmem);
    }

    /// Takes the run back into the pool.
    pub(crate) fn stop(&mut self) {
        while let Some(netmem) = self.run.pop_front() {
            self.pool.recycle(netmem);
        }
        self.used = 0;
    }

    /// Returns where in the first net_iov the next payload starts when `headroom` bytes may be moved in
    /// front of it.
    fn start(&self, headroom: usize) -> usize {
        (self.used + headroom).next_multiple_of(ALIGN)
    }

    /// Returns how many bytes the run holds from the next start on.
    pub(crate) fn posted_bytes(&self, headroom: usize) -> usize {
        (self.run.len() * self.niov_size).saturating_sub(self.start(headroom))
    }

    /// Makes the run hold `want` bytes, or as many as the pool can give.
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
        // Asked only when net_iovs were used up, not for every packet.
        let level = self.level();
        let demand = match level.free_bytes < self.look_below {
            _ if level.is_short() => MemoryDemand::Short,
            true => MemoryDemand::Look,
            false => MemoryDemand::None,
        };
        self.demand = self.demand.max(demand);
        posted
    }

    /// Returns how much of the memory is free.
    pub(crate) fn level(&self) -> MemoryLevel {
        MemoryLevel {
            free_bytes: self.free_bytes(),
            share_bytes: self.share_niovs * self.niov_size,
        }
    }

    /// Returns how little was free since this was last asked.
    pub(crate) fn take_demand(&mut self) -> MemoryDemand {
        std::mem::take(&mut self.demand)
    }

    /// Notes that somebody has looked at what is free: the next look is worth while when a sixteenth more is
    /// in use.
    pub(crate) fn note_look(&mut self) {
        let level = self.level();
        self.look_below = level
            .free_bytes
            .saturating_sub(level.share_bytes / SHORT_PARTS);
    }

    /// Copies a small frag to a net_iov that it shares with other such frags; `None` if there is no memory
    /// for one.
    pub(crate) fn collapse(&mut self, frag: &Frag) -> Option<Frag> {
        // The length of a frag, a u32.
        let copy = self.pool.alloc_frag(frag.len() as u32)?;
        self.port.copy(frag, copy.netmem(), copy.offset());
        self.collapsed += 1;
        self.collapsed_bytes += frag.len() as u64;
        Some(match frag.is_linear() {
            true => copy.into_linear(),
            false => copy,
        })
    }

    /// Returns the posted memory, from the next start on.
    pub(crate) fn spans(&self, headroom: usize) -> Spans<'_> {
        let mut start = self.start(headroom);
        let mut spans = Spans::new();
        for netmem in &self.run {
            // At most 2 MiB: fits.
            let (offset, len) = (start as u32, (self.niov_size - start) as u32);
            spans.push(BufSpan {
                netmem,
                offset,
                len,
            });
            start = 0;
        }
        spans
    }

    /// Returns a range of the posted memory, counted from the next start on.
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

    /// Turns `len` posted bytes, `skip` bytes after the next start, into frags.
    ///
    /// The caller has posted that many. Fewer would be a short list, never a wrong one.
    pub(crate) fn take(&mut self, skip: usize, len: usize, headroom: usize) -> FragList {
        self.take_at(self.start(headroom) + skip, len)
    }

    /// Moves `moved` in front of the next start, which has the headroom for it, and turns it and the
    /// posted bytes after it into frags of `len` bytes in all.
    pub(crate) fn take_behind(&mut self, moved: &[u8], len: usize, headroom: usize) -> FragList {
        let Some(at) = self.start(headroom).checked_sub(moved.len()) else {
            return FragList::default();
        };
        if let Some(first) = self.run.front() {
            self.port.copy_in(first, at as u32, moved);
        }
        self.take_at(at, len)
    }

    /// Copies `pieces`, `len` bytes in all, to the next start; `None` if the memory cannot hold them.
    pub(crate) fn place(&mut self, pieces: &[Piece<'_>], len: usize) -> Option<FragList> {
        if len == 0 {
            return Some(FragList::default());
        }
        if self.post(len, 0) < len {
            self.demand = MemoryDemand::Short;
            return None;
        }
        let start = self.start(0);
        let mut at = start;
        for &piece in pieces {
            self.write(at, piece);
            at += piece.len();
        }
        debug_assert_eq!(at - start, len, "the pieces are as long as announced");
        Some(self.take_at(start, len))
    }

    /// Copies one piece to `at` bytes from the start of the run.
    fn write(&self, at: usize, piece: Piece<'_>) {
        let mut done = 0;
        while done < piece.len() {
            let (index, offset) = ((at + done) / self.niov_size, (at + done) % self.niov_size);
            let Some(target) = self.run.get(index) else {
                return;
            };
            let len = (self.niov_size - offset).min(piece.len() - done);
            match piece {
                Piece::Host(bytes) => {
                    self.port
                        .copy_in(target, offset as u32, &bytes[done..done + len]);
                }
                Piece::Span(span) => {
                    let from = BufSpan {
                        netmem: span.netmem,
                        offset: span.offset + done as u32,
                        len: len as u32,
                    };
                    self.port.copy(from, target, offset as u32);
                }
            }
            done += len;
        }
    }

    fn take_at(&mut self, mut at: usize, len: usize) -> FragList {
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

    fn retire(&mut self) {
        if let Some(netmem) = self.run.pop_front() {
            self.pool.recycle(netmem);
        }
        self.used = 0;
    }

    /// Leaves a partly used net_iov early if that lets a flow of super-packets which each fill one lie in
    /// one piece, and if no promise depends on the rest of it.
    ///
    /// Without this, one small packet would make every later super-packet straddle two net_iovs: two
    /// tokens instead of one, for as long as the flow lives.
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

    /// Returns the bytes in which no packet lies yet, of this queue's share.
    fn free_bytes(&self) -> usize {
        let out = (self.pool.stats().outstanding as usize).saturating_sub(self.run.len());
        let free = (self.pool.available_niovs() as usize + self.run.len())
            .min(self.share_niovs.saturating_sub(out));
        (free * self.niov_size).saturating_sub(self.used)
    }

    /// Returns how many payload bytes may be promised to peers, and the net_iovs behind it.
    ///
    /// The figure holds for packets of at least 1,050 payload bytes; smaller ones use up the slack, and the
    /// figure falls faster than they bring bytes.
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

/// What the use of memory asks of those that hold payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemoryDemand {
    /// Nothing.
    #[default]
    None,
    /// To look whether some is kept in vain: a sixteenth more is in use than at the last look.
    Look,
    /// To give some up: memory is short, or a packet found no room.
    Short,
}

/// How much of the memory of a queue, or of the NIC's own host memory, is free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryLevel {
    /// Bytes in which no packet lies.
    pub free_bytes: usize,
    /// Bytes that there are: an equal part, where several queues draw from one binding.
    pub share_bytes: usize,
}

impl MemoryLevel {
    /// Returns whether so little is free that packets which keep to what was promised cannot be the
    /// reason: a sixteenth, or less than two of the longest packets take, which in small memory is more.
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

/// What a queue's memory can still take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RxSpace {
    /// net_iovs nothing lies in.
    pub free_niovs: usize,
    /// Bytes of one.
    pub niov_size: usize,
    /// Payload bytes that may be promised to peers: what fits after alignment, the rest of net_iovs that
    /// are not filled to the end, and a reserve of an eighth of the memory. Holds for packets of at least
    /// 1,050 payload bytes; smaller ones eat into the reserve first.
    pub bytes: usize,
}
