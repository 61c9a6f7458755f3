//! Receiving: each rule of recvmsg in Linux.

use super::common::{Bound, RecvArgs, assert_says, recv};
use devmem_uapi::{DevmemCmsg, Errno, MsgFlags};
use netmem::NiovSize;
use netsim::{Door as _, PairConfig, Side};
use stack::{ETOOSMALL, Stopped};

const DEVMEM: MsgFlags = MsgFlags::SOCK_DEVMEM;

/// A pair whose NICs leave the first 16 payload bytes of each packet in host memory.
fn with_linear() -> Bound {
    Bound::new(&PairConfig {
        linear_bytes: 16,
        ..PairConfig::default()
    })
}

/// Unbinds the memory, so that later packets are readable.
fn unbind(bound: &mut Bound) {
    bound.pair.b.unbind(bound.id).unwrap();
}

#[test]
fn recvmsg_without_flag_on_devmem_is_efault_and_the_data_stays() {
    let mut bound = Bound::new(&PairConfig::default());
    bound.send(1000);
    let refused = bound.recv(4096, 8, MsgFlags::empty()).unwrap_err();
    assert_eq!(refused, Errno::EFAULT);
    assert_says(&bound.pair.b, &["1000 bytes", "device memory"]);
    let received = bound.recv(4096, 8, DEVMEM).unwrap();
    assert_eq!(received.outcome.bytes, 1000);
    bound.give_back(&received);
    bound.finish();
}

#[test]
fn without_flag_the_readable_bytes_before_the_border_are_returned_first() {
    let mut bound = Bound::new(&PairConfig::default());
    unbind(&mut bound);
    bound.send(300);
    bound.id = bound.pair.bind(Side::B, 1 << 20, NiovSize::DEFAULT, &[0]);
    bound.send(500);
    let first = bound.recv(4096, 8, MsgFlags::empty()).unwrap();
    assert_eq!(
        (first.outcome.bytes, first.outcome.stopped),
        (300, Stopped::Border)
    );
    assert_eq!(bound.recv(4096, 8, MsgFlags::empty()), Err(Errno::EFAULT));
    assert_says(&bound.pair.b, &["500 bytes"]);
    let second = bound.recv(4096, 8, DEVMEM).unwrap();
    bound.check_frag(&second.frags()[0], 300);
    bound.give_back(&second);
    bound.finish();
}

#[test]
fn the_control_message_of_a_devmem_frag_has_offset_size_token_and_id() {
    let mut bound = Bound::new(&PairConfig::default());
    bound.send(1000);
    let received = bound.recv(4096, 8, DEVMEM).unwrap();
    let [DevmemCmsg::Dmabuf(frag)] = received.messages[..] else {
        panic!("{received:?}")
    };
    assert_eq!(
        (
            frag.frag_size,
            frag.frag_token.0,
            frag.dmabuf_id,
            frag.flags
        ),
        (1000, 1, bound.id, 0)
    );
    assert_eq!(
        (received.outcome.bytes, received.outcome.host_bytes),
        (1000, 0)
    );
    bound.check_frag(&frag, 0);
    bound.give_back(&received);
    bound.finish();
}

#[test]
fn readable_data_is_copied_and_has_no_devmem_message_even_with_the_flag() {
    let mut bound = Bound::new(&PairConfig::default());
    unbind(&mut bound);
    bound.send(700);
    let received = bound.recv(4096, 8, DEVMEM).unwrap();
    assert_eq!((received.outcome.bytes, received.messages.len()), (700, 0));
    bound.pattern.check(0, &received.host).unwrap();
    bound.finish();
}

#[test]
fn one_call_never_crosses_the_border_in_either_direction() {
    let mut bound = Bound::new(&PairConfig::default());
    bound.send(100);
    unbind(&mut bound);
    bound.send(200);
    let first = bound.recv(4096, 8, DEVMEM).unwrap();
    assert_eq!(
        (first.outcome.bytes, first.outcome.stopped),
        (100, Stopped::Border)
    );
    let second = bound.recv(4096, 8, DEVMEM).unwrap();
    assert_eq!((second.outcome.bytes, second.messages.len()), (200, 0));
    bound.pattern.check(100, &second.host).unwrap();
    bound.give_back(&first);
    bound.finish();
}

#[test]
fn linear_bytes_are_copied_and_have_one_control_message_before_those_of_their_frags() {
    let mut bound = with_linear();
    bound.send(1000);
    let received = bound.recv(4096, 8, DEVMEM).unwrap();
    let [DevmemCmsg::Linear(16), DevmemCmsg::Dmabuf(frag)] = received.messages[..] else {
        panic!("{received:?}")
    };
    assert_eq!(
        (
            received.outcome.bytes,
            received.outcome.host_bytes,
            frag.frag_size
        ),
        (1000, 16, 984)
    );
    bound.pattern.check(0, &received.host).unwrap();
    bound.check_frag(&frag, 16);
    bound.give_back(&received);
    bound.finish();
}

#[test]
fn linear_bytes_of_one_call_are_packed() {
    let mut bound = with_linear();
    bound.send(500);
    bound.send(600);
    let received = bound.recv(4096, 8, DEVMEM).unwrap();
    let kinds: Vec<_> = received
        .messages
        .iter()
        .map(DevmemCmsg::payload_len)
        .collect();
    assert_eq!(kinds, [16, 484, 16, 584]);
    assert_eq!(received.host.len(), 32);
    bound.pattern.check(0, &received.host[..16]).unwrap();
    bound.pattern.check(500, &received.host[16..]).unwrap();
    bound.give_back(&received);
    bound.finish();
}

#[test]
fn the_linear_part_alone_is_unreadable_all_the_same() {
    let mut bound = with_linear();
    bound.send(500);
    assert_eq!(bound.recv(4096, 8, MsgFlags::empty()), Err(Errno::EFAULT));
    assert_says(&bound.pair.b, &["16 bytes"]);
    bound.recv(16, 8, DEVMEM).unwrap();
    let rest = bound.recv(4096, 8, DEVMEM).unwrap();
    assert_eq!(rest.outcome.bytes, 484);
    bound.give_back(&rest);
    bound.finish();
}

#[test]
fn the_iovec_length_bounds_device_bytes_too() {
    let mut bound = Bound::new(&PairConfig::default());
    bound.send(1000);
    let received = bound.recv(600, 8, DEVMEM).unwrap();
    assert_eq!(
        (received.outcome.bytes, received.outcome.stopped),
        (600, Stopped::Full)
    );
    bound.give_back(&received);
    bound.finish();
}

#[test]
fn a_frag_delivered_in_parts_has_a_token_per_part() {
    let mut bound = Bound::new(&PairConfig::default());
    bound.send(1000);
    let parts: Vec<_> = (0..3)
        .map(|_| bound.recv(400, 8, DEVMEM).unwrap())
        .collect();
    let frags: Vec<_> = parts.iter().flat_map(|part| part.frags()).collect();
    let sizes: Vec<_> = frags.iter().map(|frag| frag.frag_size).collect();
    let tokens: Vec<_> = frags.iter().map(|frag| frag.frag_token.0).collect();
    assert_eq!((sizes, tokens), (vec![400, 400, 200], vec![1, 2, 3]));
    assert_eq!(frags[1].frag_offset, frags[0].frag_offset + 400);
    let mut position = 0;
    for frag in &frags {
        bound.check_frag(frag, position);
        position += u64::from(frag.frag_size);
    }
    parts.iter().for_each(|part| bound.give_back(part));
    bound.finish();
}

#[test]
fn device_bytes_need_no_memory_in_the_iovec() {
    let mut bound = Bound::new(&PairConfig::default());
    bound.send(1000);
    let mut args = RecvArgs {
        host: Vec::new(),
        len: 4096,
        ..RecvArgs::new(0, 8, DEVMEM)
    };
    let received = recv(&mut bound.pair.b, bound.receiver, &mut args).unwrap();
    assert_eq!(received.outcome.bytes, 1000);
    bound.give_back(&received);
    bound.finish();
}

#[test]
fn host_bytes_without_memory_in_the_iovec_are_efault() {
    let mut bound = with_linear();
    bound.send(1000);
    let mut args = RecvArgs {
        host: Vec::new(),
        len: 4096,
        ..RecvArgs::new(0, 8, DEVMEM)
    };
    let refused = recv(&mut bound.pair.b, bound.receiver, &mut args).unwrap_err();
    assert_eq!(refused, Errno::EFAULT);
    assert_says(&bound.pair.b, &["16 bytes", "the iovec has no memory"]);
    bound.finish();
}

#[test]
fn without_room_for_a_message_the_call_stops_before_the_frag_and_issues_no_token() {
    let mut bound = Bound::new(&PairConfig::default());
    for _ in 0..3 {
        bound.send(100);
    }
    let first = bound.recv(4096, 2, DEVMEM).unwrap();
    assert_eq!(
        (first.outcome.bytes, first.outcome.stopped),
        (200, Stopped::ControlFull)
    );
    assert_eq!(bound.pair.b.tokens_outstanding(bound.receiver), Ok(2));
    let second = bound.recv(4096, 2, DEVMEM).unwrap();
    assert_eq!((second.tokens(), second.outcome.bytes), (vec![3], 100));
    bound.check_frag(&second.frags()[0], 200);
    bound.give_back(&first);
    bound.give_back(&second);
    bound.finish();
}

#[test]
fn with_no_control_space_at_all_the_error_is_returned_and_nothing_is_lost() {
    let mut bound = Bound::new(&PairConfig::default());
    bound.send(100);
    for space in [0, 39] {
        let mut args = RecvArgs {
            control: vec![0; space],
            ..RecvArgs::new(4096, 0, DEVMEM)
        };
        let refused = recv(&mut bound.pair.b, bound.receiver, &mut args).unwrap_err();
        assert_eq!(refused, ETOOSMALL);
        assert_says(&bound.pair.b, &["40"]);
    }
    assert_eq!(bound.pair.b.tokens_outstanding(bound.receiver), Ok(0));
    let mut args = RecvArgs {
        control: vec![0; 40],
        ..RecvArgs::new(4096, 0, DEVMEM)
    };
    let received = recv(&mut bound.pair.b, bound.receiver, &mut args).unwrap();
    bound.give_back(&received);
    bound.finish();
}

#[test]
fn a_linear_part_without_room_for_its_message_is_not_delivered() {
    let mut bound = with_linear();
    bound.send(500);
    bound.send(600);
    let first = bound.recv(4096, 2, DEVMEM).unwrap();
    assert_eq!(
        (first.outcome.bytes, first.outcome.stopped),
        (500, Stopped::ControlFull)
    );
    let second = bound.recv(4096, 2, DEVMEM).unwrap();
    bound.pattern.check(500, &second.host).unwrap();
    assert_eq!(second.outcome.bytes, 600);
    bound.give_back(&first);
    bound.give_back(&second);
    bound.finish();
}

#[test]
fn peek_creates_tokens_and_references_and_leaves_the_data() {
    let mut bound = Bound::new(&PairConfig::default());
    bound.send(1000);
    let peeked = bound.recv(4096, 8, DEVMEM | MsgFlags::PEEK).unwrap();
    assert_eq!((peeked.outcome.bytes, peeked.tokens()), (1000, vec![1]));
    let received = bound.recv(4096, 8, DEVMEM).unwrap();
    assert_eq!((received.outcome.bytes, received.tokens()), (1000, vec![2]));
    assert_eq!(
        peeked.frags()[0].frag_offset,
        received.frags()[0].frag_offset
    );
    bound.give_back(&received);
    bound.check_frag(&peeked.frags()[0], 0);
    bound.give_back(&peeked);
    bound.finish();
}

#[test]
fn peek_at_host_bytes_copies_them_and_leaves_them() {
    let mut bound = Bound::new(&PairConfig::default());
    unbind(&mut bound);
    bound.send(100);
    bound.send(200);
    let peeked = bound.recv(150, 8, DEVMEM | MsgFlags::PEEK).unwrap();
    bound.pattern.check(0, &peeked.host).unwrap();
    let received = bound.recv(4096, 8, DEVMEM).unwrap();
    assert_eq!((peeked.outcome.bytes, received.outcome.bytes), (150, 300));
    bound.pattern.check(0, &received.host).unwrap();
    bound.finish();
}

#[test]
fn trunc_discards_across_the_border_without_messages() {
    let mut bound = Bound::new(&PairConfig::default());
    bound.send(1000);
    unbind(&mut bound);
    bound.send(500);
    let discarded = bound.recv(1200, 8, MsgFlags::TRUNC).unwrap();
    assert_eq!(
        (
            discarded.outcome.bytes,
            discarded.outcome.host_bytes,
            discarded.messages.len()
        ),
        (1200, 0, 0)
    );
    assert_eq!(bound.pair.b.tokens_outstanding(bound.receiver), Ok(0));
    let rest = bound.recv(4096, 8, DEVMEM).unwrap();
    bound.pattern.check(1200, &rest.host).unwrap();
    assert_eq!(rest.outcome.bytes, 300);
    bound.finish();
}

#[test]
fn nothing_to_read_is_eagain_and_the_end_of_the_stream_is_zero() {
    let mut bound = Bound::new(&PairConfig::default());
    let nothing = bound.recv(4096, 8, DEVMEM).unwrap_err();
    assert_eq!(nothing, Errno::EAGAIN);
    bound.send(10);
    bound
        .pair
        .a
        .shutdown(bound.sender, std::net::Shutdown::Write)
        .unwrap();
    bound.pair.run_for(std::time::Duration::from_millis(10));
    let last = bound.recv(4096, 8, DEVMEM).unwrap();
    assert_eq!(
        (last.outcome.bytes, last.outcome.stopped),
        (10, Stopped::Eof)
    );
    for _ in 0..2 {
        assert_eq!(bound.recv(4096, 8, DEVMEM).unwrap().outcome.bytes, 0);
    }
    bound.give_back(&last);
    bound.finish();
}

#[test]
fn a_receive_of_no_bytes_returns_none_and_takes_none() {
    let mut bound = Bound::new(&PairConfig::default());
    bound.send(10);
    assert_eq!(bound.recv(0, 8, DEVMEM).unwrap().outcome.bytes, 0);
    assert_eq!(super::common::readable(&bound.pair.b, bound.receiver), 10);
    let received = bound.recv(10, 8, DEVMEM).unwrap();
    bound.give_back(&received);
    bound.finish();
}

#[test]
fn the_error_queue_is_empty() {
    let mut bound = Bound::new(&PairConfig::default());
    assert_eq!(bound.recv(0, 0, MsgFlags::ERRQUEUE), Err(Errno::EAGAIN));
    bound.finish();
}
