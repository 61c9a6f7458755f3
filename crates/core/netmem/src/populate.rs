//! Pages of new memory: all are touched before a NIC may write to them.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::errors::DmabufError;
use crate::region::{Advice, HUGE_PAGE_BYTES, MemoryRegion};

/// Bytes that are touched at a time.
const STEP_BYTES: usize = 16 << 20;

/// Time of one step from which on the rest gets base pages. A step takes 2 to 5 ms; where free memory is in pieces, the kernel moves pages to make huge
/// ones (compaction), which was seen to take seconds for each.
const STEP_LIMIT: Duration = Duration::from_millis(100);

/// Touches every page: MADV_POPULATE_WRITE, by hand before Linux 5.14 (EINVAL). Huge pages that the kernel has to make room for are not waited for.
pub(crate) fn populate(region: &MemoryRegion) -> Result<(), DmabufError> {
    populate_within(region, STEP_LIMIT)
}

/// Does so; after a step of this time the rest gets base pages.
fn populate_within(region: &MemoryRegion, limit: Duration) -> Result<(), DmabufError> {
    let mut is_slow = false;
    for start in (0..region.len()).step_by(STEP_BYTES) {
        let end = region.len().min(start + STEP_BYTES);
        let begun = Instant::now();
        if !step(region, start..end)? {
            region.touch();
            return Ok(());
        }
        if !is_slow && begun.elapsed() >= limit {
            is_slow = true;
            // Base pages work, slower.
            let _ = region.advise_part(end..region.len(), Advice::Base);
        }
    }
    Ok(())
}

/// Touches a part. Returns whether the kernel knows the request.
fn step(region: &MemoryRegion, part: Range<usize>) -> Result<bool, DmabufError> {
    match region.advise_part(part, Advice::Populate) {
        Ok(()) => Ok(true),
        Err(error) if unknown_advice(&error) => Ok(false),
        Err(error) => {
            let size = region.len();
            Err(DmabufError::Populate { size, error })
        }
    }
}

/// CPU time of one huge page from which on its 512 base pages are cheaper: these take 0.2 to 0.8 ms. A huge page that the machine has takes 0.1 ms, and
/// milliseconds if it has to be made. The kernel does that by moving pages. A hypervisor does it when a guest takes memory that it has reported as free, which guests
/// do with huge pages only (free page reporting), so that base pages are those that the guest has kept.
const HUGE_LIMIT: Duration = Duration::from_millis(1);

/// Bytes that get base pages after a huge page that was too slow, before the next one is tried.
const BASE_BYTES: usize = 256 << 20;

/// Whether huge pages are cheap in this process. All memory that is written once shares it.
pub(crate) static CHEAP_PAGES: CheapPages = CheapPages::new();

/// What the last huge page has cost.
#[derive(Debug)]
pub(crate) struct CheapPages {
    /// Bytes that get base pages before the next huge page is tried; 0 while they are cheap.
    base_left: AtomicUsize,
}

impl CheapPages {
    const fn new() -> Self {
        Self {
            base_left: AtomicUsize::new(0),
        }
    }

    /// Touches every page, in huge pages as long as these cost less CPU time than base pages.
    pub(crate) fn populate(&self, region: &MemoryRegion) -> Result<(), DmabufError> {
        self.populate_by(region, thread_time)
    }

    /// Does so; `now` is the CPU time of the thread.
    fn populate_by(
        &self,
        region: &MemoryRegion,
        mut now: impl FnMut() -> Duration,
    ) -> Result<(), DmabufError> {
        let (mut at, len) = (0, region.len());
        while at < len && self.base_left.load(Ordering::Relaxed) == 0 {
            if at == 0 {
                // Refused where transparent huge pages are not configured.
                let _ = region.advise(Advice::Huge);
            }
            let end = len.min(at + HUGE_PAGE_BYTES);
            let begun = now();
            if !step(region, at..end)? {
                region.touch();
                return Ok(());
            }
            if now().saturating_sub(begun) >= HUGE_LIMIT {
                self.base_left.store(BASE_BYTES, Ordering::Relaxed);
            }
            at = end;
        }
        let rest = len - at;
        if rest == 0 {
            return Ok(());
        }
        let _ = region.advise_part(at..len, Advice::Base);
        let left = self.base_left.load(Ordering::Relaxed);
        // Two threads at once may try a huge page sooner.
        self.base_left
            .store(left.saturating_sub(rest), Ordering::Relaxed);
        if !step(region, at..len)? {
            region.touch();
        }
        Ok(())
    }
}

/// Returns the CPU time of this thread: on a busy machine others run between two looks at a clock of the wall.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = Duration::from_secs(time.tv_sec.unsigned_abs());
    seconds + Duration::from_nanos(time.tv_nsec.unsigned_abs())
}

/// Turns base pages into huge ones, as long as the kernel does so at once. Refused before Linux 6.1 and for hugetlb; base pages work, slower.
pub(crate) fn collapse(region: &MemoryRegion) {
    for start in (0..region.len()).step_by(STEP_BYTES) {
        let end = region.len().min(start + STEP_BYTES);
        let begun = Instant::now();
        let collapsed = region.advise_part(start..end, Advice::Collapse);
        if collapsed.is_err() || begun.elapsed() >= STEP_LIMIT {
            return;
        }
    }
}

fn unknown_advice(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidInput, Unsupported};
    matches!(error.kind(), InvalidInput | Unsupported)
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::page_kind::{PageKind, observe};
    use crate::region::Commit;

    /// Populates memory with a clock that each look moves on. Returns the bytes that are to get base pages after it.
    fn populated(pages: &CheapPages, region: &MemoryRegion, huge_page: Duration) -> usize {
        let mut time = Duration::ZERO;
        let clock = || {
            time += huge_page;
            time
        };
        pages.populate_by(region, clock).expect("pages");
        pages.base_left.load(Ordering::Relaxed)
    }

    #[test]
    fn memory_gets_base_pages_after_a_huge_page_that_cost_more_until_another_is_tried() {
        const BYTES: usize = 8 << 20;
        let pages = CheapPages::new();
        let quick = HUGE_LIMIT / 2;
        let new = || MemoryRegion::anonymous(BYTES, Commit::Now).expect("memory");
        let base = |region: &MemoryRegion, from: usize| {
            observe(region.address() + from, BYTES - from) == Some(PageKind::Base)
        };
        assert_eq!(populated(&pages, &new(), quick), 0);
        let region = new();
        // The first page is slow, and the rest counts.
        let mut left = BASE_BYTES + HUGE_PAGE_BYTES - BYTES;
        assert_eq!(populated(&pages, &region, HUGE_LIMIT), left);
        assert!(base(&region, HUGE_PAGE_BYTES));
        while left > 0 {
            let region = new();
            left = left.saturating_sub(BYTES);
            assert_eq!(populated(&pages, &region, quick), left);
            assert!(base(&region, 0));
        }
        // Huge ones are tried again, and this one is slow.
        let again = BASE_BYTES + HUGE_PAGE_BYTES - BYTES;
        assert_eq!(populated(&pages, &new(), HUGE_LIMIT), again);
    }

    #[test]
    fn the_rest_gets_base_pages_after_a_slow_step() {
        const BYTES: usize = 3 * STEP_BYTES;
        let region = MemoryRegion::anonymous(BYTES, Commit::Now).expect("memory");
        // The first step gets huge pages, where the machine has some.
        let _ = region.advise(Advice::Huge);
        populate_within(&region, Duration::ZERO).expect("pages");
        let rest = region.address() + STEP_BYTES;
        let pages = observe(rest, BYTES - STEP_BYTES);
        assert_eq!(pages, Some(PageKind::Base));
    }
}
