//! The kind of pages of a mapping, which differs from the requested one on many machines.

use std::fmt;

/// The pages that a run of memory is made of, best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PageKind {
    /// Huge pages reserved by the administrator (hugetlb).
    Huge,
    /// Huge pages that the kernel has made of base pages, for at least half of the memory.
    TransparentHuge,
    /// Base pages: copies take 10 % more time, and more than that on one core.
    Base,
}

impl fmt::Display for PageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PageKind::Huge => "hugetlb pages",
            PageKind::TransparentHuge => "transparent huge pages",
            PageKind::Base => "base pages",
        })
    }
}

/// Returns the kind of pages of `len` bytes at `address`, from /proc/self/smaps; `None` when it cannot be read.
pub(crate) fn observe(address: usize, len: usize) -> Option<PageKind> {
    if cfg!(miri) {
        return None;
    }
    #[cfg(test)]
    OBSERVATIONS.with(|count| count.set(count.get() + 1));
    let smaps = std::fs::read_to_string("/proc/self/smaps").ok()?;
    Some(judge(&smaps, address, len))
}

#[cfg(test)]
thread_local! {
    /// Calls of [`observe`] by this thread.
    pub(crate) static OBSERVATIONS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Sums the huge pages of the mappings that touch the range (smaps: proc_pid_smaps(5)).
fn judge(smaps: &str, address: usize, len: usize) -> PageKind {
    let end = address.saturating_add(len);
    let mut inside = false;
    let mut huge_bytes = 0_usize;
    for line in smaps.lines() {
        if let Some((low, high)) = mapping_range(line) {
            inside = low < end && address < high;
            continue;
        }
        let Some((name, bytes)) = inside.then(|| sized_field(line)).flatten() else {
            continue;
        };
        match name {
            "KernelPageSize" if bytes >= crate::region::HUGE_PAGE_BYTES => return PageKind::Huge,
            "AnonHugePages" | "ShmemPmdMapped" | "FilePmdMapped" => {
                huge_bytes = huge_bytes.saturating_add(bytes);
            }
            _ => {}
        }
    }
    if huge_bytes > 0 && huge_bytes >= len / 2 {
        PageKind::TransparentHuge
    } else {
        PageKind::Base
    }
}

/// Reads the first line of a mapping: `7f0000000000-7f0000200000 rw-p ...`.
fn mapping_range(line: &str) -> Option<(usize, usize)> {
    let (low, high) = line.split_whitespace().next()?.split_once('-')?;
    Some((
        usize::from_str_radix(low, 16).ok()?,
        usize::from_str_radix(high, 16).ok()?,
    ))
}

/// Reads a line like `AnonHugePages:      2048 kB`.
fn sized_field(line: &str) -> Option<(&str, usize)> {
    let (name, value) = line.split_once(':')?;
    let kilobytes: usize = value.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some((name, kilobytes.checked_mul(1024)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
7f0000000000-7f0000400000 rw-p 00000000 00:00 0 
Size:               4096 kB
KernelPageSize:        4 kB
AnonHugePages:      4096 kB
VmFlags: rd wr mr mw me ac hg
7f0000600000-7f0000a00000 rw-s 00000000 00:01 12 /memfd:dmabuf (deleted)
KernelPageSize:        4 kB
ShmemPmdMapped:     2048 kB
7f0000c00000-7f0000e00000 rw-s 00000000 00:0f 7 /anon_hugepage (deleted)
KernelPageSize:     2048 kB
";

    #[test]
    fn only_the_mapping_of_the_range_is_examined() {
        let mega = 1 << 20;
        assert_eq!(
            judge(SMAPS, 0x7f00_0000_0000, 4 * mega),
            PageKind::TransparentHuge
        );
        assert_eq!(
            judge(SMAPS, 0x7f00_0060_0000, 4 * mega),
            PageKind::TransparentHuge
        );
        assert_eq!(judge(SMAPS, 0x7f00_00c0_0000, 2 * mega), PageKind::Huge);
        assert_eq!(judge(SMAPS, 0x7f00_0040_0000, 2 * mega), PageKind::Base);
    }

    #[test]
    fn fewer_huge_pages_than_half_count_as_base_pages() {
        let less = SMAPS.replace("AnonHugePages:      4096 kB", "AnonHugePages:      1000 kB");
        assert_eq!(judge(&less, 0x7f00_0000_0000, 4 << 20), PageKind::Base);
        assert_eq!(judge("", 0, 4096), PageKind::Base);
    }

    #[test]
    fn unknown_lines_are_skipped() {
        let odd = "ff-zz rw\n:\nAnonHugePages: 99999999999999999999 kB\n-\n0-1000 r\nAnonHugePages: x kB\n";
        assert_eq!(judge(odd, 0, 4096), PageKind::Base);
    }
}
