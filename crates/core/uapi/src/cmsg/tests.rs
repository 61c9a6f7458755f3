use proptest::prelude::*;

use super::*;
use crate::sockopt::{IP_RECVERR, SOL_IP};

fn frag(frag_offset: u64, frag_size: u32, token: u32) -> DevmemCmsg {
    let (frag_token, dmabuf_id) = (FragToken(token), DmabufId(3));
    DevmemCmsg::Dmabuf(DmabufCmsg {
        frag_offset,
        frag_size,
        frag_token,
        dmabuf_id,
        flags: 0,
    })
}

fn written(buf: &mut [u8], write: impl FnOnce(&mut CmsgWriter<'_>)) -> &[u8] {
    let mut writer = CmsgWriter::new(buf);
    write(&mut writer);
    let len = writer.written();
    &buf[..len]
}

#[test]
#[cfg(target_pointer_width = "64")]
fn lengths_are_those_of_64_bit_linux() {
    let lens = [0, 1, 4, 8, 9, 24].map(|data| (cmsg_len(data), cmsg_space(data)));
    assert_eq!(
        lens,
        [(16, 16), (17, 24), (20, 24), (24, 24), (25, 32), (40, 40)]
    );
    assert_eq!(space_for(128), 5120);
}

#[test]
fn lengths_are_those_of_the_c_library() {
    for data in 0..100u32 {
        assert_eq!(cmsg_len(data as usize), bits_socket::cmsg_len(data));
        assert_eq!(cmsg_space(data as usize), bits_socket::cmsg_space(data));
    }
}

/// `CMSG_LEN` and `CMSG_SPACE` as bits/socket.h defines them, over libc's `cmsghdr`.
mod bits_socket {
    const fn align(len: usize) -> usize {
        (len + size_of::<libc::size_t>() - 1) & !(size_of::<libc::size_t>() - 1)
    }

    pub fn cmsg_len(data: u32) -> usize {
        align(size_of::<libc::cmsghdr>()) + data as usize
    }

    pub fn cmsg_space(data: u32) -> usize {
        align(data as usize) + align(size_of::<libc::cmsghdr>())
    }
}

#[test]
fn absurd_lengths_saturate() {
    assert_eq!(cmsg_len(usize::MAX), usize::MAX);
    assert_eq!(cmsg_space(usize::MAX), usize::MAX);
    assert_eq!(cmsg_space(usize::MAX - 9), usize::MAX);
    assert_eq!(space_for(usize::MAX), usize::MAX);
}

#[test]
#[cfg(all(target_pointer_width = "64", target_endian = "little"))]
fn a_dmabuf_message_is_byte_exact() {
    let mut buf = [0xee; 48];
    let bytes = written(&mut buf, |out| {
        CmsgSink::push(out, frag(0x0001_0000, 4096, 7)).unwrap();
    });
    #[rustfmt::skip]
    let expected = [
        40, 0, 0, 0, 0, 0, 0, 0, // cmsg_len
        1, 0, 0, 0, 79, 0, 0, 0, // SOL_SOCKET, SCM_DEVMEM_DMABUF
        0, 0, 1, 0, 0, 0, 0, 0,  // frag_offset
        0, 16, 0, 0, 7, 0, 0, 0, // frag_size, frag_token
        3, 0, 0, 0, 0, 0, 0, 0,  // dmabuf_id, flags
    ];
    assert_eq!(bytes, expected);
    assert!(buf[40..].iter().all(|byte| *byte == 0xee));
}

#[test]
#[cfg(all(target_pointer_width = "64", target_endian = "little"))]
fn a_linear_message_has_only_its_size() {
    let mut buf = [0xee; 40];
    let bytes = written(&mut buf, |out| {
        CmsgSink::push(out, DevmemCmsg::Linear(0x0102)).unwrap();
    });
    let mut expected = [0; 40];
    expected[0] = 40;
    expected[8] = 1;
    expected[12] = 78;
    expected[24..26].copy_from_slice(&[2, 1]);
    assert_eq!(bytes, expected);
}

#[test]
#[cfg(all(target_pointer_width = "64", target_endian = "little"))]
fn a_dmabuf_to_send_from_is_a_plain_u32_and_padding() {
    let mut buf = [0xee; 64];
    let bytes = written(&mut buf, |out| {
        out.push_tx_dmabuf(DmabufId(0x0102_0304)).unwrap()
    });
    #[rustfmt::skip]
    let expected = [
        20, 0, 0, 0, 0, 0, 0, 0,
        1, 0, 0, 0, 79, 0, 0, 0,
        4, 3, 2, 1, 0, 0, 0, 0,
    ];
    assert_eq!(bytes, expected);
}

#[test]
fn the_last_message_may_lack_its_padding() {
    for room in cmsg_len(5)..=cmsg_space(5) {
        let mut buf = vec![0xee; room];
        let bytes = written(&mut buf, |out| out.push(1, 2, b"12345").unwrap());
        assert_eq!(bytes.len(), room);
        let mut iter = CmsgIter::new(bytes);
        assert_eq!(
            iter.next(),
            Some(Cmsg {
                level: 1,
                ty: 2,
                data: b"12345"
            })
        );
        assert_eq!((iter.next(), iter.is_malformed()), (None, false));
    }
}

#[test]
fn a_message_without_room_does_not_change_the_buffer() {
    for room in 0..cmsg_len(5) {
        let mut buf = vec![0xee; room];
        let mut writer = CmsgWriter::new(&mut buf);
        assert_eq!(writer.push(1, 2, b"12345"), Err(NoSpace));
        assert_eq!(writer.written(), 0);
        assert!(buf.iter().all(|byte| *byte == 0xee), "{room} bytes");
    }
}

#[test]
fn a_smaller_message_fits_where_a_larger_one_did_not() {
    let mut buf = vec![0; cmsg_space(8) + cmsg_space(4)];
    let bytes = written(&mut buf, |out| {
        out.push(1, 1, &[1; 8]).unwrap();
        assert_eq!(out.push(1, 2, &[2; 16]), Err(NoSpace));
        out.push(1, 3, &[3; 4]).unwrap();
    });
    assert_eq!(
        CmsgIter::new(bytes).map(|cmsg| cmsg.ty).collect::<Vec<_>>(),
        [1, 3]
    );
}

#[test]
fn room_counts_devmem_messages_that_still_fit() {
    let mut buf = vec![0; space_for(3) - 1];
    let mut writer = CmsgWriter::new(&mut buf);
    for left in [2, 1] {
        assert_eq!(writer.room(), left);
        CmsgSink::push(&mut writer, frag(0, 1, 1)).unwrap();
    }
    assert_eq!(writer.room(), 0);
    assert_eq!(CmsgSink::push(&mut writer, frag(0, 1, 1)), Err(NoSpace));
    assert_eq!(writer.written(), space_for(2));
}

#[test]
fn devmem_messages_survive_the_buffer_in_order() {
    let sent = [
        DevmemCmsg::Linear(12),
        frag(1 << 40, u32::MAX, 1),
        frag(4096, 1, u32::MAX),
    ];
    let mut buf = vec![0; space_for(sent.len())];
    let bytes = written(&mut buf, |out| {
        for cmsg in sent {
            CmsgSink::push(out, cmsg).unwrap();
        }
    });
    let seen: Vec<_> = CmsgIter::new(bytes)
        .map(|cmsg| DevmemCmsg::parse(&cmsg))
        .collect();
    assert_eq!(seen, sent.map(Some));
    assert_eq!(sent.map(|cmsg| cmsg.payload_len()), [12, u32::MAX, 1]);
}

#[test]
fn other_and_short_messages_are_no_devmem_messages() {
    let data = [0; 24];
    let cmsg = |level, ty, data| Cmsg { level, ty, data };
    assert_eq!(DevmemCmsg::parse(&cmsg(SOL_SOCKET, 1, &data)), None);
    assert_eq!(
        DevmemCmsg::parse(&cmsg(SOL_IP, SCM_DEVMEM_DMABUF, &data)),
        None
    );
    assert_eq!(
        DevmemCmsg::parse(&cmsg(SOL_SOCKET, SCM_DEVMEM_DMABUF, &data[1..])),
        None
    );
    assert_eq!(
        DevmemCmsg::parse(&cmsg(SOL_SOCKET, SCM_DEVMEM_LINEAR, &[])),
        None
    );
    let linear = DevmemCmsg::parse(&cmsg(SOL_SOCKET, SCM_DEVMEM_LINEAR, &data));
    assert_eq!(linear, Some(DevmemCmsg::Linear(0)));
}

#[test]
fn a_dmabuf_to_send_from_has_exactly_four_bytes() {
    let id = 5u32.to_ne_bytes();
    let cmsg = |level, ty, data| Cmsg { level, ty, data };
    let named = |data| cmsg(SOL_SOCKET, SCM_DEVMEM_DMABUF, data).tx_dmabuf();
    assert_eq!(named(&id), Some(Some(DmabufId(5))));
    for wrong in [&[][..], &id[..3], &[0; 5], &[0; 24]] {
        assert_eq!(named(wrong), Some(None));
    }
    assert_eq!(cmsg(SOL_SOCKET, SCM_DEVMEM_LINEAR, &id).tx_dmabuf(), None);
    assert_eq!(cmsg(SOL_IP, IP_RECVERR, &id).tx_dmabuf(), None);
}

#[test]
fn messages_for_the_socket_are_known_to_a_send_or_refused() {
    let unknown = |level, ty| {
        let data = &[][..];
        Cmsg { level, ty, data }.is_unknown_to_send()
    };
    for known in [1, 2, 12, 36, 37, 65, SCM_DEVMEM_DMABUF] {
        assert!(!unknown(SOL_SOCKET, known), "{known}");
    }
    for other in [0, SCM_DEVMEM_LINEAR, 61, 999] {
        assert!(unknown(SOL_SOCKET, other), "{other}");
        assert!(!unknown(SOL_IP, other), "{other}");
    }
}

#[test]
fn a_length_that_leads_nowhere_ends_the_walk() {
    for len in [0, 1, HEADER_LEN - 1, cmsg_len(9), usize::MAX] {
        let mut buf = vec![0; cmsg_space(8) + cmsg_space(8)];
        written(&mut buf, |out| {
            out.push(1, 1, &[0; 8]).unwrap();
            out.push(1, 2, &[0; 8]).unwrap();
        });
        let second = cmsg_space(8);
        buf[second..second + WORD].copy_from_slice(&len.to_ne_bytes());
        let mut iter = CmsgIter::new(&buf);
        assert_eq!(iter.next().map(|cmsg| cmsg.ty), Some(1));
        assert!(!iter.is_malformed());
        assert_eq!(
            (iter.next(), iter.is_malformed()),
            (None, true),
            "length {len}"
        );
        assert_eq!(iter.next(), None);
    }
}

#[test]
fn bytes_too_few_for_a_header_are_the_end() {
    for len in 0..HEADER_LEN {
        let bytes = vec![0xff; len];
        let mut iter = CmsgIter::new(&bytes);
        assert_eq!(
            (iter.next(), iter.is_malformed()),
            (None, false),
            "{len} bytes"
        );
    }
}

proptest! {
    #[test]
    fn written_messages_are_read_back_and_never_truncated(
        room in 0usize..300,
        messages in proptest::collection::vec(
            (any::<i32>(), any::<i32>(), proptest::collection::vec(any::<u8>(), 0..60)),
            0..8,
        ),
    ) {
        let mut buf = vec![0xee; room];
        let mut writer = CmsgWriter::new(&mut buf);
        let mut accepted = Vec::new();
        for (level, ty, data) in &messages {
            let before = writer.written();
            let fits = cmsg_len(data.len()) <= room - before;
            prop_assert_eq!(writer.push(*level, *ty, data).is_ok(), fits);
            if fits {
                accepted.push(Cmsg { level: *level, ty: *ty, data });
            } else {
                prop_assert_eq!(writer.written(), before);
            }
        }
        let len = writer.written();
        prop_assert!(len <= room && buf[len..].iter().all(|byte| *byte == 0xee));
        let mut iter = CmsgIter::new(&buf[..len]);
        prop_assert_eq!(iter.by_ref().collect::<Vec<_>>(), accepted);
        prop_assert!(!iter.is_malformed());
    }

    #[test]
    fn any_bytes_are_walked_to_an_end(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
        lens in proptest::collection::vec((any::<proptest::sample::Index>(), 0usize..80), 0..6),
    ) {
        // Random bytes make hardly a length that leads on; plant some that may.
        for (at, len) in lens {
            if bytes.len() > WORD {
                let at = at.index((bytes.len() - WORD) / WORD + 1) * WORD;
                let end = (at + WORD).min(bytes.len());
                bytes[at..end].copy_from_slice(&len.to_ne_bytes()[..end - at]);
            }
        }
        let mut taken = 0;
        for cmsg in CmsgIter::new(&bytes) {
            taken += cmsg_len(cmsg.data.len());
            prop_assert!(taken <= bytes.len());
            let _ = (DevmemCmsg::parse(&cmsg), cmsg.tx_dmabuf());
            let _ = crate::SockExtendedErr::parse(&cmsg);
        }
    }
}
