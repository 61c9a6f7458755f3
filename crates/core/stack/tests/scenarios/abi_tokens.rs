//! Giving tokens back: each rule of SO_DEVMEM_DONTNEED in Linux.

use super::common::{Bound, assert_says};
use devmem_uapi::{DmabufToken, Errno, FragToken, MsgFlags};
use netmem::NiovSize;
use netsim::{Door as _, PairConfig, Side};
use zerocopy::IntoBytes;

const DEVMEM: MsgFlags = MsgFlags::SOCK_DEVMEM;

fn range(start: u32, count: u32) -> DmabufToken {
    DmabufToken {
        token_start: FragToken(start),
        token_count: count,
    }
}

/// A socket that holds tokens 1 to `count`, each of one byte.
fn holding(count: u32) -> Bound {
    let mut bound = Bound::new(&PairConfig::default());
    for _ in 0..count.div_ceil(1000) {
        bound.send(1000);
    }
    for token in 1..=count {
        assert_eq!(bound.recv(1, 1, DEVMEM).unwrap().tokens(), [token]);
    }
    assert_eq!(
        bound.pair.b.tokens_outstanding(bound.receiver),
        Ok(count as usize)
    );
    bound
}

fn dontneed(bound: &mut Bound, ranges: &[DmabufToken]) -> Result<u32, Errno> {
    bound.pair.b.dontneed(bound.receiver, ranges)
}

/// Reads and discards the unread bytes, so that closing does not reset the connection.
fn finish(mut bound: Bound) {
    let _ = bound.recv(1 << 20, 0, MsgFlags::TRUNC);
    bound.finish();
}

#[test]
fn the_number_of_frags_freed_is_returned_and_unknown_tokens_are_skipped() {
    let mut bound = holding(10);
    assert_eq!(dontneed(&mut bound, &[range(1, 4)]), Ok(4));
    assert_eq!(
        dontneed(
            &mut bound,
            &[range(1, 4), range(100, 5), range(0, 1), range(9, 5)]
        ),
        Ok(2)
    );
    assert_eq!(dontneed(&mut bound, &[]), Ok(0));
    assert_eq!(bound.pair.b.tokens_outstanding(bound.receiver), Ok(4));
    finish(bound);
}

#[test]
fn tokens_are_the_lowest_free_numbers_of_their_socket() {
    let mut bound = holding(5);
    assert_eq!(dontneed(&mut bound, &[range(2, 1), range(4, 1)]), Ok(2));
    let next: Vec<_> = (0..3)
        .map(|_| bound.recv(1, 1, DEVMEM).unwrap().tokens()[0])
        .collect();
    assert_eq!(next, [2, 4, 6]);
    finish(bound);
}

#[test]
fn each_socket_counts_its_own_tokens() {
    let mut bound = holding(3);
    let (other, sender) = bound
        .pair
        .connect(Side::B, Side::B.ipv4(), super::common::PORT + 1);
    assert_eq!(dontneed(&mut bound, &[range(1, 1)]), Ok(1));
    assert_eq!(bound.pair.b.dontneed(other, &[range(2, 1)]), Ok(0));
    assert_eq!(bound.pair.b.tokens_outstanding(bound.receiver), Ok(2));
    assert_eq!(dontneed(&mut bound, &[range(2, 1)]), Ok(1));
    bound.pair.a.close(sender).unwrap();
    bound.pair.b.close(other).unwrap();
    finish(bound);
}

#[test]
fn more_than_128_ranges_are_einval_and_free_nothing() {
    let mut bound = holding(200);
    let ranges: Vec<_> = (1..=129).map(|token| range(token, 1)).collect();
    let refused = dontneed(&mut bound, &ranges).unwrap_err();
    assert_eq!(refused, Errno::EINVAL);
    assert_says(&bound.pair.b, &["129"]);
    assert_eq!(dontneed(&mut bound, &ranges[..128]), Ok(128));
    finish(bound);
}

#[test]
fn a_call_looks_at_1024_frags_misses_counted() {
    let mut bound = holding(1500);
    assert_eq!(dontneed(&mut bound, &[range(1, 1500)]), Ok(1024));
    assert_eq!(
        dontneed(&mut bound, &[range(1, 1024), range(1400, 10)]),
        Ok(0)
    );
    assert_eq!(
        dontneed(&mut bound, &[range(1, 1000), range(1025, 100)]),
        Ok(24)
    );
    finish(bound);
}

#[test]
fn the_bytes_of_the_option_must_be_whole_ranges() {
    let mut bound = holding(5);
    let bytes = [range(1, 2), range(4, 1)];
    let bytes = bytes.as_bytes();
    for cut in 1..8 {
        let refused = bound
            .pair
            .b
            .dontneed_bytes(bound.receiver, &bytes[..cut])
            .unwrap_err();
        assert_eq!(refused, Errno::EINVAL);
        assert_says(&bound.pair.b, &[&format!("{cut} bytes")]);
    }
    let long = vec![0; 129 * 8];
    let refused = bound
        .pair
        .b
        .dontneed_bytes(bound.receiver, &long)
        .unwrap_err();
    assert_eq!(refused, Errno::EINVAL);
    assert_says(&bound.pair.b, &["129"]);
    assert_eq!(bound.pair.b.dontneed_bytes(bound.receiver, bytes), Ok(3));
    assert_eq!(bound.pair.b.dontneed_bytes(bound.receiver, &[]), Ok(0));
    finish(bound);
}

#[test]
fn a_closed_socket_is_ebadf_and_has_returned_its_tokens() {
    let mut bound = holding(100);
    let before = bound.pair.b.rx_space(steer::RxQueueId(0)).free_niovs;
    bound.pair.b.close(bound.receiver).unwrap();
    let refused = dontneed(&mut bound, &[range(1, 1)]).unwrap_err();
    assert_eq!(refused, Errno::EBADF);
    assert!(bound.pair.b.rx_space(steer::RxQueueId(0)).free_niovs >= before);
    bound.finish();
}

#[test]
fn memory_outlives_the_binding_as_long_as_a_token_holds_it() {
    let mut bound = Bound::with_memory(&PairConfig::default(), 1 << 20, NiovSize::DEFAULT);
    bound.send(1000);
    let received = bound.recv(4096, 8, DEVMEM).unwrap();
    bound.pair.b.unbind(bound.id).unwrap();
    bound.check_frag(&received.frags()[0], 0);
    bound.send(500);
    let plain = bound.recv(4096, 8, DEVMEM).unwrap();
    assert_eq!(plain.messages, []);
    bound.check_frag(&received.frags()[0], 0);
    bound.give_back(&received);
    bound.finish();
}
