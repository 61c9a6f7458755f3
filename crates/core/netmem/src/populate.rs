//! Pages of new memory: all are touched before a NIC may write to them.

use std::io;
use std::time::{Duration, Instant};

use crate::errors::DmabufError;
use crate::region::{Advice, MemoryRegion};

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
        match region.advise_part(start..end, Advice::Populate) {
            Ok(()) => {}
            Err(error) if unknown_advice(&error) => {
                region.touch();
                return Ok(());
            }
            Err(source) => {
                let size = region.len();
                return Err(DmabufError::Populate { size, source });
            }
        }
        if !is_slow && begun.elapsed() >= limit {
            is_slow = true;
            // Base pages work, slower.
            let _ = region.advise_part(end..region.len(), Advice::Base);
        }
    }
    Ok(())
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
