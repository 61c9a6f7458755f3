use std::sync::atomic::{AtomicBool, Ordering};

use proptest::prelude::*;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use super::*;

fn mapping(len: usize) -> Mapping {
    Mapping::anonymous(len, Commit::Lazily).unwrap()
}

fn bytes(mapping: &Mapping, offset: usize, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    mapping.copy_out(offset, &mut out).unwrap();
    out
}

#[test]
fn new_memory_is_zero_and_huge_page_aligned() {
    for commit in [Commit::Now, Commit::Lazily] {
        let mapping = Mapping::anonymous(3 * BASE_PAGE_BYTES, commit).unwrap();
        assert_eq!(mapping.address() % HUGE_PAGE_BYTES, 0);
        assert_eq!(mapping.len(), 3 * BASE_PAGE_BYTES);
        assert_eq!(bytes(&mapping, 0, mapping.len()), vec![0; mapping.len()]);
    }
}

#[test]
fn sizes_that_are_no_pages_are_refused() {
    for len in [0, 1, 4095, 4097, usize::MAX, usize::MAX - 4095] {
        assert!(Mapping::anonymous(len, Commit::Now).is_err(), "{len}");
    }
}

#[test]
fn bytes_are_read_back_as_written_up_to_the_last() {
    let mapping = mapping(BASE_PAGE_BYTES);
    mapping.copy_in(4093, b"end").unwrap();
    mapping.copy_in(0, b"begin").unwrap();
    mapping.fill(5, 3, b'!').unwrap();
    assert_eq!(bytes(&mapping, 4092, 4), b"\0end");
    assert_eq!(bytes(&mapping, 0, 9), b"begin!!!\0");
    mapping.copy_in(4096, b"").unwrap();
    assert_eq!(bytes(&mapping, 4096, 0), b"");
}

/// Every way past the end of one page.
#[test]
fn ranges_past_the_end_are_refused_before_a_byte_moves() {
    let mapping = mapping(BASE_PAGE_BYTES);
    for (offset, len) in [
        (4096, 1),
        (4095, 2),
        (0, 4097),
        (usize::MAX, 1),
        (1, usize::MAX),
    ] {
        let size = BASE_PAGE_BYTES;
        let refused = RangeError::OutOfBounds { offset, len, size };
        assert_eq!(mapping.span(offset, len).unwrap_err(), refused);
        assert_eq!(mapping.fill(offset, len, 1), Err(refused));
    }
    let mut out = [7; 8];
    assert!(mapping.copy_out(4090, &mut out).is_err());
    assert_eq!(out, [7; 8]);
    assert!(mapping.copy_in(4090, &out).is_err());
    let all = mapping.span(0, 4096).unwrap();
    assert!(mapping.copy_from(1, all).is_err());
    assert_eq!(bytes(&mapping, 0, 4096), vec![0; 4096]);
}

/// Threads that access the same bytes at the same time, by every function and at every size: Miri finds a data race
/// where an access is a plain one.
#[test]
fn accesses_by_several_threads_are_not_a_data_race() {
    let mapping = mapping(BASE_PAGE_BYTES);
    let rounds = if cfg!(miri) { 2 } else { 1000 };
    std::thread::scope(|scope| {
        for seed in 1..4_u8 {
            let mapping = &mapping;
            scope.spawn(move || {
                for len in (0..rounds).flat_map(|_| [1, 2, 4, 8, 13, 64, 77]) {
                    let mut out = vec![0; len];
                    mapping.copy_in(seed.into(), &vec![seed; len]).unwrap();
                    mapping.copy_in(8, &vec![seed; len]).unwrap();
                    mapping.copy_out(0, &mut out).unwrap();
                    mapping.fill(3, len, seed).unwrap();
                    let source = mapping.span(2, len).unwrap();
                    mapping.copy_from(5, source).unwrap();
                    mapping.copy_from(0, source).unwrap();
                }
            });
        }
    });
    assert!(bytes(&mapping, 0, 64).iter().all(|byte| *byte < 4));
}

/// What a descriptor ring needs: a reader sees all of an aligned word or nothing.
#[test]
fn aligned_words_never_tear() {
    for len in [2, 4, 8] {
        let mapping = mapping(BASE_PAGE_BYTES);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..if cfg!(miri) { 20 } else { 100_000 } {
                    let byte = if round % 2 == 0 { 0xff } else { 0 };
                    mapping.copy_in(64, &vec![byte; len]).unwrap();
                }
                over.store(true, Ordering::Relaxed);
            });
            while !over.load(Ordering::Relaxed) {
                let word = bytes(&mapping, 64, len);
                assert!(word.iter().all(|byte| *byte == word[0]), "{word:?}");
            }
        });
    }
}

#[test]
#[cfg_attr(miri, ignore = "mmap of a file")]
fn a_read_only_mapping_can_be_read_and_not_written() {
    let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, 3 * 4096).unwrap();
    fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
    let file = MappableFile::memfd(fd.as_fd()).unwrap();
    let reads = Mapping::file(&file, 4096, 4096, MapAccess::Read).unwrap();
    let writes = Mapping::file(&file, 0, 3 * 4096, MapAccess::ReadWrite).unwrap();
    writes.copy_in(4096 + 8, b"12345678").unwrap();
    for len in [1, 2, 4, 8, 77] {
        assert_eq!(bytes(&reads, 8, len), bytes(&writes, 4096 + 8, len));
    }
    assert_eq!(reads.copy_in(0, b"x"), Err(RangeError::ReadOnly));
    assert_eq!(reads.fill(0, 1, 0), Err(RangeError::ReadOnly));
    let source = writes.span(0, 8).unwrap();
    assert_eq!(reads.copy_from(0, source), Err(RangeError::ReadOnly));
    // Both are the same memory, and the ranges overlap.
    writes.copy_from(0, reads.span(0, 4096).unwrap()).unwrap();
    assert_eq!(bytes(&writes, 8, 8), b"12345678");
}

#[test]
#[cfg_attr(miri, ignore = "mmap of a file")]
fn a_range_that_the_file_does_not_have_is_not_mapped() {
    let fd = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&fd, 4096).unwrap();
    fcntl_add_seals(&fd, SealFlags::SHRINK).unwrap();
    let file = MappableFile::memfd(fd.as_fd()).unwrap();
    for (offset, len) in [(0, 8192), (4096, 4096), (u64::MAX, 4096), (0, usize::MAX)] {
        let refused = Mapping::file(&file, offset, len, MapAccess::Read).unwrap_err();
        let too_short = matches!(refused, UnmappableFile::TooShort { size: 4096, .. });
        assert!(too_short, "{refused:?}");
    }
    let crooked = Mapping::file(&file, 1, 4095, MapAccess::Read).unwrap_err();
    assert_eq!(crooked, UnmappableFile::System(rustix::io::Errno::INVAL));
}

/// Beyond what goes through a buffer at once, but for Miri.
const LONGEST: usize = if cfg!(miri) { 600 } else { 9000 };

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 2 } else { 500 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    /// Against the same copies of a `Vec`.
    #[test]
    fn overlapping_copies_move_as_if_by_way_of_a_buffer(
        copies in proptest::collection::vec((0..300_usize, 0..300_usize, 0..LONGEST - 300), 1..6),
    ) {
        let size = LONGEST.next_multiple_of(BASE_PAGE_BYTES);
        let mapping = mapping(size);
        let mut model: Vec<u8> = (0..size).map(|at| (at * 7 % 253) as u8).collect();
        mapping.copy_in(0, &model).unwrap();
        for (from, to, len) in copies {
            let source = mapping.span(from, len).unwrap();
            mapping.copy_from(to, source).unwrap();
            model.copy_within(from..from + len, to);
        }
        prop_assert_eq!(bytes(&mapping, 0, size), model);
    }
}
