use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

use super::*;
use crate::{BASE_PAGE_BYTES, Commit, Mapping};

fn mapping(len: usize) -> Mapping {
    Mapping::anonymous(len, Commit::Lazily).unwrap()
}

fn bytes(mapping: &Mapping, offset: usize, len: usize) -> Vec<u8> {
    let mut out = vec![0; len];
    mapping.copy_out(offset, &mut out).unwrap();
    out
}

#[test]
#[cfg_attr(miri, ignore = "readv")]
fn one_read_fills_head_spans_and_spill_in_order() {
    let mapping = mapping(2 * BASE_PAGE_BYTES);
    let (mut to, from) = UnixStream::pair().unwrap();
    to.write_all(b"headAABBspill").unwrap();
    let (mut head, mut spill) = ([0; 4], [0; 8]);
    let spans = [100, 4096].map(|offset| mapping.span(offset, 2).unwrap());
    let got = readv(from.as_fd(), &mut head, spans.into_iter(), &mut spill).unwrap();
    assert_eq!((got, &head, &spill), (13, b"head", b"spill\0\0\0"));
    assert_eq!(
        (bytes(&mapping, 99, 4), bytes(&mapping, 4095, 4)),
        (b"\0AA\0".into(), b"\0BB\0".into())
    );
}

#[test]
#[cfg_attr(miri, ignore = "writev")]
fn one_write_takes_head_and_spans_in_order() {
    let mapping = mapping(BASE_PAGE_BYTES);
    mapping.copy_in(0, b"0123456789").unwrap();
    let (mut from, to) = UnixStream::pair().unwrap();
    let spans = [(8, 2), (0, 0), (0, 3)].map(|(at, len)| mapping.span(at, len).unwrap());
    assert_eq!(writev(to.as_fd(), b"head:", spans.into_iter()).unwrap(), 10);
    let mut got = [0; 10];
    from.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"head:89012");
}

#[test]
#[cfg_attr(miri, ignore = "writev")]
fn adjacent_spans_count_as_one_buffer_and_too_many_others_are_refused() {
    let mapping = mapping(BASE_PAGE_BYTES);
    let (_from, to) = UnixStream::pair().unwrap();
    let every = |step: usize| {
        let mapping = &mapping;
        (0..100).map(move |i| mapping.span(i * step, 4).unwrap())
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
    let mapping = mapping(BASE_PAGE_BYTES);
    let (to, from) = UnixStream::pair().unwrap();
    from.set_nonblocking(true).unwrap();
    let span = mapping.span(0, 10).unwrap();
    let error = readv(from.as_fd(), &mut [], [span].into_iter(), &mut []).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    drop(to);
    assert_eq!(
        readv(from.as_fd(), &mut [], [span].into_iter(), &mut []).unwrap(),
        0
    );
}

#[test]
#[cfg_attr(miri, ignore = "recvmsg")]
fn a_packet_is_received_as_by_readv_with_all_its_descriptors() {
    use rustix::net::{
        AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
        SocketType, sendmsg, socketpair,
    };
    use std::io::IoSlice;
    use std::mem::MaybeUninit;

    let mapping = mapping(BASE_PAGE_BYTES);
    let kind = SocketType::SEQPACKET;
    let (to, from) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    let mut last = 0;
    for count in [0, 1, 3, 252, 253] {
        let files = vec![from.as_fd(); count];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if count > 0 {
            assert!(control.push(SendAncillaryMessage::ScmRights(&files)));
        }
        let packet = [IoSlice::new(b"headSPANspill")];
        sendmsg(&to, &packet, &mut control, SendFlags::NOSIGNAL).unwrap();
        let (mut head, mut spill, mut fds) = ([0; 4], [0; 8], Vec::new());
        let span = mapping.span(8, 4).unwrap();
        let got = receive(
            from.as_fd(),
            &mut head,
            [span].into_iter(),
            &mut spill,
            &mut fds,
        );
        assert_eq!((got.unwrap(), &head, &spill), (13, b"head", b"spill\0\0\0"));
        assert_eq!(bytes(&mapping, 8, 4), b"SPAN");
        assert_eq!(fds.len(), count);
        for fd in &fds {
            assert!(
                rustix::io::fcntl_getfd(fd)
                    .unwrap()
                    .contains(rustix::io::FdFlags::CLOEXEC)
            );
            last = last.max(fd.as_raw_fd());
        }
    }
    assert!(last > 200, "they were open at the same time");
    let (mut head, mut fds) = ([0; 4], Vec::new());
    let none = receive(
        from.as_fd(),
        &mut head,
        std::iter::empty(),
        &mut [],
        &mut fds,
    );
    assert_eq!(none.unwrap_err().kind(), io::ErrorKind::WouldBlock);
}
