//! Control buffers as the kernel writes them, whole and damaged.

use devmem_uapi::{CmsgSink, CmsgWriter, DmabufId};
use proptest::prelude::*;

use super::*;

const TIMESTAMP: (i32, i32) = (SOL_SOCKET, 29);

fn frag(token: u32, offset: u64, size: u32) -> DevmemCmsg {
    DevmemCmsg::Dmabuf(DmabufCmsg {
        frag_offset: offset,
        frag_size: size,
        frag_token: FragToken(token),
        dmabuf_id: DmabufId(3),
        flags: 0,
    })
}

fn control(messages: &[DevmemCmsg]) -> Vec<u8> {
    let mut buffer = vec![0; 4096];
    let mut writer = CmsgWriter::new(&mut buffer);
    for message in messages {
        CmsgSink::push(&mut writer, *message).unwrap();
    }
    let written = writer.written();
    buffer.truncate(written);
    buffer
}

/// A control buffer of a little-endian 64-bit kernel, written by hand instead of by `CmsgWriter`: 10 linear bytes, then
/// two frags.
#[cfg(all(target_endian = "little", target_pointer_width = "64"))]
fn by_hand() -> Vec<u8> {
    let words: [u64; 15] = [
        40,
        1 | 78 << 32,
        0,
        10,
        0,
        40,
        1 | 79 << 32,
        0x2_a000,
        1438 | 1 << 32,
        3,
        40,
        1 | 79 << 32,
        0x2_b000,
        4096 | 2 << 32,
        3,
    ];
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn frags(received: ReceivedMessage<'_>) -> Vec<RxFrag<'_>> {
    match received.content {
        Content::Devmem(frags) => frags.collect(),
        other => panic!("not device memory: {other:?}"),
    }
}

#[test]
#[cfg(all(target_endian = "little", target_pointer_width = "64"))]
fn a_control_buffer_of_the_kernel_is_parsed_in_stream_order() {
    let control = by_hand();
    let data: Vec<u8> = (0..64).collect();
    let received = ReceivedMessage::parse(5544, MsgFlags::SOCK_DEVMEM, &control, &data).unwrap();
    assert_eq!(received.bytes, 5544);
    let device = |offset, size, token| {
        let DevmemCmsg::Dmabuf(cmsg) = frag(token, offset, size) else {
            unreachable!()
        };
        RxFrag::Device(cmsg)
    };
    let expected = [
        RxFrag::Linear(&data[..10]),
        device(0x2_a000, 1438, 1),
        device(0x2_b000, 4096, 2),
    ];
    assert_eq!(frags(received), expected);
}

#[test]
fn linear_bytes_of_several_packets_are_packed_and_none_is_lost() {
    let control = control(&[
        DevmemCmsg::Linear(3),
        frag(1, 0, 100),
        DevmemCmsg::Linear(2),
        frag(2, 4096, 50),
    ]);
    let data = [1, 2, 3, 4, 5, 0, 0];
    let received = ReceivedMessage::parse(155, MsgFlags::empty(), &control, &data).unwrap();
    let linear: Vec<u8> = frags(received)
        .iter()
        .filter_map(|frag| match frag {
            RxFrag::Linear(bytes) => Some(*bytes),
            RxFrag::Device(_) => None,
        })
        .flatten()
        .copied()
        .collect();
    assert_eq!(linear, [1, 2, 3, 4, 5]);
}

#[test]
fn data_without_devmem_messages_is_readable_and_0_bytes_are_the_end() {
    let data = [7; 16];
    let received = ReceivedMessage::parse(5, MsgFlags::empty(), &[], &data).unwrap();
    assert!(matches!(
        received.content,
        Content::Readable([7, 7, 7, 7, 7])
    ));
    let received = ReceivedMessage::parse(0, MsgFlags::empty(), &[], &data).unwrap();
    assert!(matches!(received.content, Content::End));
}

#[test]
fn other_control_messages_are_skipped() {
    let mut buffer = [0; 256];
    let mut writer = CmsgWriter::new(&mut buffer);
    writer.push(TIMESTAMP.0, TIMESTAMP.1, &[0; 16]).unwrap();
    CmsgSink::push(&mut writer, frag(1, 0, 9)).unwrap();
    let written = writer.written();
    let received = ReceivedMessage::parse(9, MsgFlags::empty(), &buffer[..written], &[]).unwrap();
    assert_eq!(frags(received).len(), 1);
    // Alone, they do not make the data device memory.
    let mut writer = CmsgWriter::new(&mut buffer);
    writer.push(TIMESTAMP.0, TIMESTAMP.1, &[0; 16]).unwrap();
    let written = writer.written();
    let received =
        ReceivedMessage::parse(2, MsgFlags::empty(), &buffer[..written], &[1, 2]).unwrap();
    assert!(matches!(received.content, Content::Readable([1, 2])));
}

#[test]
fn dropped_control_messages_are_an_error_with_the_remaining_tokens() {
    let control = control(&[frag(4, 0, 100), frag(5, 4096, 100)]);
    let (problem, tokens) =
        ReceivedMessage::parse(300, MsgFlags::CTRUNC, &control, &[0; 300]).unwrap_err();
    assert_eq!(problem, ControlProblem::Truncated);
    assert_eq!(tokens, [FragToken(4), FragToken(5)]);
}

#[test]
fn bytes_without_a_control_message_are_an_error() {
    let control = control(&[DevmemCmsg::Linear(10), frag(4, 0, 100)]);
    for returned in [0, 109, 111] {
        let refused = ReceivedMessage::parse(returned, MsgFlags::empty(), &control, &[0; 300]);
        let problem = ControlProblem::ByteTotal {
            returned,
            described: 110,
        };
        assert_eq!(refused.unwrap_err(), (problem, vec![FragToken(4)]));
    }
}

#[test]
fn more_linear_bytes_than_the_buffer_holds_are_an_error() {
    let control = control(&[DevmemCmsg::Linear(10)]);
    let (problem, _) =
        ReceivedMessage::parse(10, MsgFlags::empty(), &control, &[0; 9]).unwrap_err();
    let expected = ControlProblem::LinearOverflow {
        linear: 10,
        room: 9,
    };
    assert_eq!(problem, expected);
    let (problem, _) = ReceivedMessage::parse(10, MsgFlags::empty(), &[], &[0; 9]).unwrap_err();
    assert!(matches!(problem, ControlProblem::ByteTotal { .. }));
}

#[test]
fn a_devmem_message_that_is_too_short_is_malformed() {
    let mut buffer = [0; 64];
    let mut writer = CmsgWriter::new(&mut buffer);
    writer
        .push(SOL_SOCKET, SCM_DEVMEM_DMABUF, &[0; 23])
        .unwrap();
    let written = writer.written();
    let (problem, tokens) =
        ReceivedMessage::parse(5, MsgFlags::empty(), &buffer[..written], &[0; 9]).unwrap_err();
    assert_eq!((problem, tokens), (ControlProblem::Malformed, vec![]));
}

proptest! {
    #[test]
    fn no_control_bytes_panic_and_accepted_ones_account_for_every_byte(
        bytes in 0usize..2000,
        flags in any::<u32>(),
        control in prop::collection::vec(any::<u8>(), 0..200),
        data in prop::collection::vec(any::<u8>(), 0..200),
    ) {
        let flags = MsgFlags::from_bits_retain(flags);
        if let Ok(received) = ReceivedMessage::parse(bytes, flags, &control, &data) {
            prop_assert_eq!(total(&received), bytes);
        }
    }

    #[test]
    fn messages_with_wild_sizes_add_up_or_are_refused(
        sizes in prop::collection::vec((any::<bool>(), 0u32..3000), 0..20),
        returned in 0usize..6000,
        room in 0usize..4000,
    ) {
        let messages: Vec<_> = sizes.iter().map(|&(linear, size)| match linear {
            true => DevmemCmsg::Linear(size),
            false => frag(1, 0, size),
        }).collect();
        let control = control(&messages);
        let data = vec![0; room];
        if let Ok(received) = ReceivedMessage::parse(returned, MsgFlags::empty(), &control, &data) {
            prop_assert_eq!(total(&received), returned);
        }
    }
}

fn total(received: &ReceivedMessage<'_>) -> usize {
    match &received.content {
        Content::End => 0,
        Content::Readable(bytes) => bytes.len(),
        Content::Devmem(frags) => frags
            .clone()
            .map(|frag| match frag {
                RxFrag::Device(cmsg) => cmsg.frag_size as usize,
                RxFrag::Linear(bytes) => bytes.len(),
            })
            .sum(),
    }
}
