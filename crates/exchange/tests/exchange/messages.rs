//! Sends and receives.

use std::sync::{Arc, Mutex};

use devmem_exchange::{
    Access, Event, Fabric, INLINE_BYTES, MAX_RECEIVES, Memory, Options, Pool, PostError,
    RECORD_BYTES,
};
use devmem_tcp::{Netdev, capture::Direction};
use netmem::{FakeDevice, FakePace};

use crate::world::{
    connect, device, host, options, pair, pair_of, pair_with, pair_with_pool, part, pattern, run,
};

/// Lengths around the borders of a chunk of 16 KiB.
const LENGTHS: [usize; 9] = [0, 1, 127, 4096, 16383, 16384, 16385, 100_000, 1_000_003];

#[test]
fn messages_of_any_length_arrive_in_host_memory() {
    let (a, b) = pair("seed=1");
    let (ours, theirs) = connect(&a, &b);
    for (tag, len) in (0..).zip(LENGTHS) {
        let bytes = pattern(len as u64, len);
        let (_, source) = host(&a, bytes.clone());
        let (buffer, target) = host(&b, vec![0xee; len + 10]);
        theirs
            .receive(&[part(&target, 0..len + 10, tag)], 1)
            .unwrap();
        ours.send(&source, 0..len, tag, 2).unwrap();
        let (of_a, of_b) = run(&ours, &theirs, 1, 1);
        assert!(matches!(of_a[..], [Event::Sent { user: 2 }]), "{of_a:?}");
        let [Event::Received { user: 1, sizes }] = &of_b[..] else {
            panic!("{of_b:?}");
        };
        assert_eq!(**sizes, [len as u64]);
        buffer.with(|got| {
            assert!(got[..len] == bytes, "{len}");
            assert_eq!(
                got[len..],
                [0xee; 10],
                "{len}: bytes behind the message changed"
            );
        });
    }
    assert_eq!(ours.stats().sent_bytes, theirs.stats().received_bytes);
}

#[test]
fn device_memory_is_sent_without_a_copy_and_gathered_from_the_pool() {
    let (a, b) = pair_with_pool("seed=2", 4 << 20);
    let (ours, theirs) = connect(&a, &b);
    for (tag, len) in (0..).zip(LENGTHS) {
        let bytes = pattern(len as u64, len);
        let (_from, source) = device(&a, &bytes);
        let (to, target) = device(&b, &vec![0xee; len + 10]);
        theirs
            .receive(&[part(&target, 0..len + 10, tag)], 1)
            .unwrap();
        ours.send(&source, 0..len, tag, 2).unwrap();
        let (of_a, of_b) = run(&ours, &theirs, 1, 1);
        assert!(matches!(of_a[..], [Event::Sent { user: 2 }]), "{of_a:?}");
        assert!(
            matches!(of_b[..], [Event::Received { user: 1, .. }]),
            "{of_b:?}"
        );
        let got = to.slice(0..len + 10).to_vec();
        assert!(got[..len] == bytes, "{len}");
        assert_eq!(got[len..], [0xee; 10]);
    }
}

#[test]
fn memory_is_bound_for_sending_when_it_is_asked_for_or_the_reason_is_told() {
    let (a, b) = pair("seed=8");
    let (ours, theirs) = connect(&a, &b);
    let (_memory, source) = device(&a, &pattern(1, 50_000));
    let (_, host_source) = host(&a, vec![1]);
    for region in [&source, &source, &host_source] {
        a.bind_tx(region).unwrap();
    }
    let (buffer, target) = host(&b, vec![0; 50_000]);
    theirs.receive(&[part(&target, 0..50_000, 1)], 1).unwrap();
    ours.send(&source, 0..50_000, 1, 2).unwrap();
    run(&ours, &theirs, 1, 1);
    buffer.with(|got| assert!(*got == pattern(1, 50_000)));

    // Memory without a file is nothing for the kernel. It is copied when it is sent all the same.
    let lo = Fabric::open(Netdev::kernel("lo").unwrap(), options()).unwrap();
    let (_memory, source) = device(&lo, &pattern(2, 50_000));
    assert!(lo.bind_tx(&source).is_err());
    let (ours, theirs) = connect(&lo, &lo);
    let (buffer, target) = host(&lo, vec![0; 50_000]);
    theirs.receive(&[part(&target, 0..50_000, 1)], 1).unwrap();
    ours.send(&source, 0..50_000, 1, 2).unwrap();
    run(&ours, &theirs, 1, 1);
    buffer.with(|got| assert!(*got == pattern(2, 50_000)));
}

#[test]
fn each_kind_of_memory_meets_each_other() {
    let (a, b) = pair_with_pool("seed=3,loss=1%", 4 << 20);
    let (ours, theirs) = connect(&a, &b);
    let bytes = pattern(9, 300_000);
    let (_, from_host) = host(&a, bytes.clone());
    let (_memory, from_device) = device(&a, &bytes);
    let (to_host, host_target) = host(&b, vec![0; bytes.len()]);
    let (to_device, device_target) = device(&b, &vec![0; bytes.len()]);
    theirs
        .receive(&[part(&host_target, 0..bytes.len(), 1)], 1)
        .unwrap();
    theirs
        .receive(&[part(&device_target, 0..bytes.len(), 2)], 2)
        .unwrap();
    ours.send(&from_device, 0..bytes.len(), 1, 1).unwrap();
    ours.send(&from_host, 0..bytes.len(), 2, 2).unwrap();
    run(&ours, &theirs, 2, 2);
    to_host.with(|got| assert!(*got == bytes));
    assert!(to_device.slice(0..bytes.len()).to_vec() == bytes);
}

/// Of both kinds of messages, those behind their record and those on a data stream; with and without a pool of the device.
#[test]
fn memory_that_the_cpu_cannot_access_is_written_and_read_by_its_device() {
    let device = FakeDevice::new(FakePace::AfterPolls(2));
    let pool = Pool {
        memory: device.alloc(4 << 20).unwrap(),
        queues: 1,
    };
    for pool in [None, Some(pool)] {
        let theirs = Options { pool, ..options() };
        let (a, b) = pair_of("seed=9", options(), theirs);
        let (ours, theirs) = connect(&a, &b);
        let [from, to] = [(); 2].map(|()| device.alloc(256 << 10).unwrap());
        let source = a.register(Memory::Device(&from), Access::PRIVATE).unwrap();
        let target = b.register(Memory::Device(&to), Access::PRIVATE).unwrap();
        for len in [1, INLINE_BYTES, INLINE_BYTES + 1, 100_000] {
            for is_from_host in [true, false] {
                let bytes = pattern(len as u64 + u64::from(is_from_host), len);
                from.copy_in(0, &bytes).unwrap();
                to.fill(0..256 << 10, 0xee).unwrap();
                let (_, in_host) = host(&a, bytes.clone());
                let source = if is_from_host { &in_host } else { &source };
                theirs
                    .receive(&[part(&target, 100..200_000, 1)], 1)
                    .unwrap();
                ours.send(source, 0..len, 1, 2).unwrap();
                run(&ours, &theirs, 1, 1);
                let mut got = vec![0; len + 200];
                to.copy_out(0, &mut got).unwrap();
                let expected = [&[0xee; 100], &bytes[..], &[0xee; 100]].concat();
                assert!(got == expected, "{len} bytes, from host {is_from_host}");
            }
        }
    }
}

#[test]
fn sends_wait_for_their_receives_and_match_by_tag_in_order() {
    let (a, b) = pair("seed=4");
    let (ours, theirs) = connect(&a, &b);
    let (_, source) = host(&a, vec![1, 2, 3, 4]);
    for (at, tag) in [(0, 7), (1, 8), (2, 7), (3, 9)] {
        ours.send(&source, at..at + 1, tag, at as u64).unwrap();
    }
    let (buffer, target) = host(&b, vec![0; 8]);
    let parts = [
        part(&target, 0..2, 9),
        part(&target, 2..4, 7),
        part(&target, 4..6, 7),
    ];
    theirs.receive(&parts, 1).unwrap();
    theirs.receive(&[part(&target, 6..8, 8)], 2).unwrap();
    let (of_a, of_b) = run(&ours, &theirs, 4, 2);
    assert_eq!(of_a.len(), 4);
    let mut sizes: Vec<_> = of_b
        .iter()
        .map(|event| match event {
            Event::Received { user, sizes } => (*user, sizes.to_vec()),
            event => panic!("{event:?}"),
        })
        .collect();
    // Receives may end in any order.
    sizes.sort_unstable();
    assert_eq!(sizes, [(1, vec![1, 1, 1]), (2, vec![1])]);
    buffer.with(|got| assert_eq!(*got, [4, 0, 1, 0, 3, 0, 2, 0]));
}

#[test]
fn nothing_is_sent_that_was_not_posted() {
    let (a, b) = pair("seed=5");
    let (ours, theirs) = connect(&a, &b);
    let (_, source) = host(&a, vec![1; 100_000]);
    ours.send(&source, 0..100_000, 1, 1).unwrap();
    for _ in 0..100 {
        ours.progress();
        theirs.progress();
    }
    assert_eq!(ours.stats().sent_bytes, 0);
    assert_eq!(source.users(), 1);
}

#[test]
fn both_directions_share_the_streams() {
    let (a, b) = pair("seed=6,reorder=2%");
    let (ours, theirs) = connect(&a, &b);
    let (first, second) = (pattern(1, 500_000), pattern(2, 400_000));
    let (_, from_a) = host(&a, first.clone());
    let (_, from_b) = host(&b, second.clone());
    let (at_a, to_a) = host(&a, vec![0; 400_000]);
    let (at_b, to_b) = host(&b, vec![0; 500_000]);
    ours.receive(&[part(&to_a, 0..400_000, 0)], 1).unwrap();
    theirs.receive(&[part(&to_b, 0..500_000, 0)], 1).unwrap();
    ours.send(&from_a, 0..500_000, 0, 2).unwrap();
    theirs.send(&from_b, 0..400_000, 0, 2).unwrap();
    run(&ours, &theirs, 2, 2);
    at_a.with(|got| assert!(*got == second));
    at_b.with(|got| assert!(*got == first));
}

#[test]
fn posting_is_bounded_and_can_go_on_after_events() {
    let (a, b) = pair("seed=7");
    let (ours, theirs) = connect(&a, &b);
    let (_, source) = host(&a, vec![1; 8]);
    let (_, target) = host(&b, vec![0; 8]);
    for user in 0..MAX_RECEIVES as u64 {
        theirs.receive(&[part(&target, 0..8, 1)], user).unwrap();
    }
    let refused = theirs.receive(&[part(&target, 0..8, 1)], 1);
    assert!(matches!(refused, Err(PostError::Full)), "{refused:?}");
    ours.send(&source, 0..8, 1, 0).unwrap();
    run(&ours, &theirs, 1, 1);
    theirs.receive(&[part(&target, 0..8, 1)], 1).unwrap();
}

#[test]
fn wrong_ranges_and_regions_are_refused() {
    let (a, b) = pair("seed=8");
    let (ours, _theirs) = connect(&a, &b);
    let (_, source) = host(&a, vec![1; 8]);
    let (_, foreign) = host(&b, vec![1; 8]);
    let refused = ours.send(&source, 4..9, 1, 0);
    assert!(
        matches!(refused, Err(PostError::OutOfBounds { size: 8, .. })),
        "{refused:?}"
    );
    let refused = ours.send(&foreign, 0..8, 1, 0);
    assert!(
        matches!(refused, Err(PostError::OtherFabric)),
        "{refused:?}"
    );
    let refused = ours.receive(&[], 1);
    assert!(
        matches!(refused, Err(PostError::Parts { parts: 0 })),
        "{refused:?}"
    );
    assert_eq!(source.users(), 0);
}

/// Many messages of different kinds under loss, reordering and duplication: each byte in its place, each operation once.
#[test]
fn impaired_worlds_lose_nothing() {
    for seed in 0..40 {
        let impairment = format!("loss=2%,reorder=5%,dup=1%,seed={seed}");
        let mut small = options();
        small.chunk = 4096;
        let (a, b) = pair_with(&impairment, small);
        let (ours, theirs) = connect(&a, &b);
        let messages = 12;
        let mut kept = Vec::new();
        for number in 0..messages {
            let len = (seed as usize * 7919 + number * 4801) % 30_000;
            let bytes = pattern(seed + number as u64, len);
            let (_, source) = host(&a, bytes.clone());
            let (buffer, target) = host(&b, vec![0xee; len + 1]);
            let tag = number as u32 % 3;
            theirs
                .receive(&[part(&target, 0..len + 1, tag)], number as u64)
                .unwrap();
            ours.send(&source, 0..len, tag, number as u64).unwrap();
            kept.push((buffer, bytes));
        }
        let (of_a, of_b) = run(&ours, &theirs, messages, messages);
        assert_eq!(
            (of_a.len(), of_b.len()),
            (messages, messages),
            "seed {seed}"
        );
        for (number, (buffer, bytes)) in kept.iter().enumerate() {
            buffer.with(|got| {
                assert!(
                    got[..bytes.len()] == bytes[..],
                    "seed {seed}, message {number}"
                );
                assert_eq!(got[bytes.len()], 0xee);
            });
        }
    }
}

/// The records of posted receives wait for the next message in the other direction.
#[test]
fn a_short_message_is_one_packet_with_its_record_and_those_before_it() {
    let lens = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&lens);
    let sink = move |_, direction, frame: &[u8]| {
        if direction == Direction::Tx {
            seen.lock().unwrap().push(frame.len());
        }
    };
    let a = Netdev::builder("mem:one-packet").and_then(|nic| nic.address("10.77.0.1/24"));
    let a = a.unwrap().capture(Box::new(sink)).open().unwrap();
    let b = Netdev::user("mem:one-packet", "10.77.0.2/24").unwrap();
    let a = Fabric::open(a, Options::default()).unwrap();
    let b = Fabric::open(b, Options::default()).unwrap();
    let (ours, theirs) = connect(&a, &b);
    let (_, source) = host(&a, vec![7; 8]);
    let (_, target) = host(&b, vec![0; 8]);
    theirs.receive(&[part(&target, 0..8, 0)], 1).unwrap();
    // So that the permission has arrived, and the message need not wait for it.
    theirs.notify(b"posted").unwrap();
    run(&ours, &theirs, 1, 0);
    ours.receive(&[part(&source, 0..8, 0)], 2).unwrap();
    ours.send(&source, 0..8, 0, 3).unwrap();
    run(&ours, &theirs, 1, 1);
    // Ethernet, IPv4, and TCP with timestamps; two records and the bytes.
    let expected = 14 + 20 + 32 + 2 * RECORD_BYTES + 8;
    let lens = lens.lock().unwrap();
    assert!(lens.contains(&expected), "no {expected} in {lens:?}");
}

/// In real time, with both ends polled by one thread: a turn ends although TCP would take more.
#[test]
fn one_thread_serves_both_ends_of_large_messages() {
    let nic = |address| Netdev::user("mem:large", address).unwrap();
    let (a, b) = (nic("10.77.0.1/24"), nic("10.77.0.2/24"));
    let a = Fabric::open(a, Options::default()).unwrap();
    let b = Fabric::open(b, Options::default()).unwrap();
    let (ours, theirs) = connect(&a, &b);
    let len = 16 << 20;
    let (first, second) = (pattern(1, len), pattern(2, len));
    let (_, from_a) = host(&a, first.clone());
    let (_, from_b) = host(&b, second.clone());
    let (at_a, to_a) = host(&a, vec![0; len]);
    let (at_b, to_b) = host(&b, vec![0; len]);
    ours.receive(&[part(&to_a, 0..len, 0)], 1).unwrap();
    theirs.receive(&[part(&to_b, 0..len, 0)], 1).unwrap();
    ours.send(&from_a, 0..len, 0, 2).unwrap();
    theirs.send(&from_b, 0..len, 0, 2).unwrap();
    let mut events = 0;
    while events < 4 {
        ours.progress();
        theirs.progress();
        for endpoint in [&ours, &theirs] {
            while let Some(event) = endpoint.next_event() {
                assert!(
                    matches!(event, Event::Sent { .. } | Event::Received { .. }),
                    "{event:?}"
                );
                events += 1;
            }
        }
    }
    at_a.with(|got| assert!(*got == second));
    at_b.with(|got| assert!(*got == first));
}
