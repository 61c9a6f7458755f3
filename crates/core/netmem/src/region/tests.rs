use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use super::*;

fn region(len: usize) -> Region {
    Region::map(len, Backing::AnonymousLazy).unwrap()
}

fn bytes(region: &Region, offset: usize, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    region.copy_out(offset, &mut out);
    out
}

#[test]
fn new_memory_is_zero_and_huge_page_aligned() {
    for backing in [Backing::Anonymous, Backing::AnonymousLazy] {
        let region = Region::map(3 * BASE_PAGE_BYTES, backing).unwrap();
        assert_eq!(region.address() % HUGE_PAGE_BYTES, 0);
        assert_eq!(region.len(), 3 * BASE_PAGE_BYTES);
        assert_eq!(bytes(&region, 0, region.len()), vec![0; region.len()]);
    }
}

#[test]
fn sizes_that_are_no_pages_are_refused() {
    for len in [0, 1, 4095, 4097, usize::MAX, usize::MAX - 4095] {
        assert!(Region::map(len, Backing::Anonymous).is_err(), "{len}");
    }
}

#[test]
fn bytes_come_out_as_they_went_in_up_to_the_last() {
    let region = region(BASE_PAGE_BYTES);
    region.copy_in(4093, b"end");
    region.copy_in(0, b"begin");
    region.fill(5, 3, b'!');
    assert_eq!(bytes(&region, 4092, 4), b"\0end");
    assert_eq!(bytes(&region, 0, 9), b"begin!!!\0");
    region.copy_in(4096, b"");
    assert_eq!(bytes(&region, 4096, 0), b"");
}

#[test]
fn overlapping_copies_move_as_if_by_way_of_a_buffer() {
    let region = region(BASE_PAGE_BYTES);
    region.copy_in(0, b"0123456789");
    region.copy_from(
        2,
        Span {
            region: &region,
            offset: 0,
            len: 8,
        },
    );
    assert_eq!(bytes(&region, 0, 10), b"0101234567");
    region.copy_from(
        0,
        Span {
            region: &region,
            offset: 1,
            len: 9,
        },
    );
    assert_eq!(bytes(&region, 0, 10), b"1012345677");
}

#[test]
fn touching_maps_every_page_and_leaves_zeros() {
    let region = region(2 * BASE_PAGE_BYTES);
    region.touch();
    assert_eq!(bytes(&region, 0, region.len()), vec![0; region.len()]);
}

/// Every way past the end of a region of one page.
#[test]
fn ranges_past_the_end_panic_before_a_byte_moves() {
    let region = region(BASE_PAGE_BYTES);
    for (offset, len) in [
        (4096, 1),
        (4095, 2),
        (0, 4097),
        (usize::MAX, 1),
        (1, usize::MAX),
    ] {
        let tried = std::panic::catch_unwind(|| region.at(offset, len));
        assert!(tried.is_err(), "{len} bytes at {offset}");
    }
    let mut out = [7; 8];
    let tried = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        region.copy_out(4090, &mut out);
    }));
    assert!(tried.is_err() && out == [7; 8]);
}

#[test]
#[cfg_attr(miri, ignore = "readv")]
fn one_read_fills_head_spans_and_spill_in_order() {
    let region = region(2 * BASE_PAGE_BYTES);
    let (mut to, from) = UnixStream::pair().unwrap();
    to.write_all(b"headAABBspill").unwrap();
    let (mut head, mut spill) = ([0; 4], [0; 8]);
    let spans = [100, 4096].map(|offset| Span {
        region: &region,
        offset,
        len: 2,
    });
    let got = readv(from.as_fd(), &mut head, spans.into_iter(), &mut spill).unwrap();
    assert_eq!((got, &head, &spill), (13, b"head", b"spill\0\0\0"));
    assert_eq!(
        (bytes(&region, 99, 4), bytes(&region, 4095, 4)),
        (b"\0AA\0".into(), b"\0BB\0".into())
    );
}

#[test]
#[cfg_attr(miri, ignore = "writev")]
fn one_write_takes_head_and_spans_in_order() {
    let region = region(BASE_PAGE_BYTES);
    region.copy_in(0, b"0123456789");
    let (mut from, to) = UnixStream::pair().unwrap();
    let spans = [(8, 2), (0, 0), (0, 3)].map(|(offset, len)| Span {
        region: &region,
        offset,
        len,
    });
    assert_eq!(writev(to.as_fd(), b"head:", spans.into_iter()).unwrap(), 10);
    let mut got = [0; 10];
    from.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"head:89012");
}

#[test]
#[cfg_attr(miri, ignore = "writev")]
fn spans_that_touch_count_as_one_buffer_and_too_many_others_are_refused() {
    let region = region(BASE_PAGE_BYTES);
    let (_from, to) = UnixStream::pair().unwrap();
    let every = |step: usize| {
        let region = &region;
        (0..100).map(move |i| Span {
            region,
            offset: i * step,
            len: 4,
        })
    };
    assert_eq!(writev(to.as_fd(), b"", every(4)).unwrap(), 400);
    let error = writev(to.as_fd(), b"", every(8)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ArgumentListTooLong);
    assert_eq!(
        writev(to.as_fd(), b"", every(8).take(MAX_IOVECS)).unwrap(),
        4 * MAX_IOVECS
    );
}

#[test]
#[cfg_attr(miri, ignore = "readv")]
fn a_failing_descriptor_gives_its_error() {
    let region = region(BASE_PAGE_BYTES);
    let (to, from) = UnixStream::pair().unwrap();
    from.set_nonblocking(true).unwrap();
    let span = Span {
        region: &region,
        offset: 0,
        len: 10,
    };
    let error = readv(from.as_fd(), &mut [], [span].into_iter(), &mut []).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    drop(to);
    assert_eq!(
        readv(from.as_fd(), &mut [], [span].into_iter(), &mut []).unwrap(),
        0
    );
}
