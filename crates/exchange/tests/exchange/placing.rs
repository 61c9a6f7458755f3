//! Chunks in mapped device memory are received at their place.

use devmem_exchange::{Closing, Event, Fabric, Options, Placement, Pool};
use devmem_tcp::Dmabuf;

use crate::world::{connect, device, options, pair_of, part, pattern, run};

const LEN: usize = 300_000;

/// Bytes of a message that takes many round trips.
const BIG: usize = 6 << 20;

/// Two fabrics of which the second one has a pool.
fn fabrics(impairment: &str, placement: Placement) -> (Fabric, Fabric) {
    let memory = Dmabuf::anonymous(4 << 20).unwrap();
    let theirs = Options {
        pool: Some(Pool { memory, queues: 2 }),
        placement,
        ..options()
    };
    pair_of(impairment, options(), theirs)
}

fn direct_bytes(fabric: &Fabric) -> u64 {
    let stats = fabric.nic().queue_stats();
    stats.iter().map(|queue| queue.direct_bytes).sum()
}

#[test]
fn chunks_are_received_at_their_place_unless_bytes_must_be_written_in_order() {
    for (placement, is_direct) in [(Placement::Direct, true), (Placement::InOrder, false)] {
        for impairment in ["seed=1", "loss=2%,reorder=2%,dup=1%,seed=2"] {
            let (a, b) = fabrics(impairment, placement);
            let (ours, theirs) = connect(&a, &b);
            let sent = pattern(7, 4 * LEN);
            let (_, source) = device(&a, &sent);
            let (memory, target) = device(&b, &vec![0; 4 * LEN + 100]);
            // Several messages at a time, whose chunks share the streams.
            for number in 0..4 {
                let range = number * LEN..(number + 1) * LEN;
                let place = range.start + 50..range.end + 50;
                theirs
                    .receive(&[part(&target, place, 1)], number as u64)
                    .unwrap();
                ours.send(&source, range, 1, number as u64).unwrap();
            }
            run(&ours, &theirs, 4, 4);
            let got = memory.slice(0..4 * LEN + 100).to_vec();
            assert!(got[50..][..4 * LEN] == sent, "{placement:?} {impairment}");
            assert!(got[..50] == [0; 50] && got[4 * LEN + 50..] == [0; 50]);
            // Not all: payload that arrives with the record that announces it, or out of order, is received elsewhere, and copied.
            assert_eq!(direct_bytes(&b) > 0, is_direct, "{impairment}");
        }
    }
}

#[test]
fn nothing_is_placed_any_more_when_the_endpoint_is_closed() {
    let (a, b) = fabrics("delay=1ms,rate=1gbit,seed=3", Placement::Direct);
    let (ours, theirs) = connect(&a, &b);
    let (_, source) = device(&a, &pattern(8, BIG));
    let (memory, target) = device(&b, &vec![0; BIG]);
    theirs.receive(&[part(&target, 0..BIG, 1)], 1).unwrap();
    ours.send(&source, 0..BIG, 1, 1).unwrap();
    while direct_bytes(&b) == 0 {
        assert!(ours.progress() | theirs.progress() || theirs.cause().is_none());
    }
    assert!(theirs.next_event().is_none(), "it has not arrived whole");
    theirs.close(Closing::Linger);
    memory.fill(0..BIG, 0xaa).unwrap();
    // The rest arrives, and is dropped.
    while ours.cause().is_none() {
        ours.wait_event(std::time::Duration::from_millis(1));
        b.progress();
    }
    assert!(matches!(
        *ours.cause().unwrap(),
        devmem_exchange::Cause::PeerClosed
    ));
    assert!(
        ours.next_event()
            .is_none_or(|event| !matches!(event, Event::Sent { .. }))
    );
    assert!(memory.slice(0..BIG).to_vec() == vec![0xaa; BIG]);
}
