//! Puts, gets and notifications.

use devmem_exchange::{Access, Buffer, Cause, Event, Failure, Memory, RegionKey};

use crate::world::{connect, device, host, pair, pattern, run};

#[test]
fn a_notification_arrives_after_the_puts_before_it() {
    for seed in 0..10 {
        let (a, b) = pair(&format!("loss=2%,reorder=5%,seed={seed}"));
        let (ours, theirs) = connect(&a, &b);
        let bytes = pattern(seed, 200_000);
        let (_, source) = host(&a, bytes.clone());
        let (buffer, target) = host(&b, vec![0; 250_000]);
        let key = theirs.publish(&target).unwrap();
        ours.put(&source, 0..150_000, key, 50_000, 1).unwrap();
        ours.put(&source, 150_000..200_000, key, 200_000, 2)
            .unwrap();
        let text = pattern(seed, 50 + seed as usize * 7);
        ours.notify(&text).unwrap();
        let (_, of_b) = run(&ours, &theirs, 2, 1);
        assert!(
            matches!(&of_b[0], Event::Notified { bytes } if *bytes == text),
            "{of_b:?}"
        );
        buffer.with(|got| assert!(got[50_000..] == bytes, "seed {seed}"));
    }
}

#[test]
fn an_empty_notification_arrives_as_one() {
    let (a, b) = pair("seed=1");
    let (ours, theirs) = connect(&a, &b);
    ours.notify(b"").unwrap();
    ours.notify(b"second").unwrap();
    let (_, of_b) = run(&ours, &theirs, 0, 2);
    let texts: Vec<_> = of_b
        .iter()
        .map(|event| match event {
            Event::Notified { bytes } => bytes.as_slice(),
            event => panic!("{event:?}"),
        })
        .collect();
    assert_eq!(texts, [&b""[..], b"second"]);
}

#[test]
fn a_get_fetches_from_host_and_device_memory() {
    let (a, b) = pair("seed=2,loss=1%");
    let (ours, theirs) = connect(&a, &b);
    let bytes = pattern(3, 120_000);
    let (_, from_host) = host(&b, bytes.clone());
    let (_memory, from_device) = device(&b, &bytes);
    let (buffer, target) = host(&a, vec![0; 120_000]);
    let [from_host, from_device] =
        [&from_host, &from_device].map(|region| theirs.publish(region).unwrap());
    ours.get(from_host, 1000, &target, 0..60_000, 1).unwrap();
    ours.get(from_device, 61_000, &target, 60_000..119_000, 2)
        .unwrap();
    ours.get(from_device, 0, &target, 5..5, 3).unwrap();
    let (of_a, _) = run(&ours, &theirs, 3, 0);
    assert!(
        of_a.iter().all(|event| matches!(event, Event::Got { .. })),
        "{of_a:?}"
    );
    buffer.with(|got| assert!(got[..119_000] == bytes[1000..]));
}

/// Runs one operation that the peer must refuse, and returns the causes of both sides.
fn refused(operation: impl Fn(&devmem_exchange::Endpoint, &devmem_exchange::Region)) {
    let (a, b) = pair("seed=3");
    let (ours, theirs) = connect(&a, &b);
    let (_, region) = host(&a, vec![1; 100]);
    operation(&ours, &region);
    // A put of host memory is done when TCP has copied it, before the peer has refused it.
    while ours.cause().is_none() || theirs.cause().is_none() {
        ours.progress();
        theirs.progress();
    }
    let cause = theirs.cause().expect("the target breaks the endpoint");
    assert!(cause.to_string().contains("not published"), "{cause}");
    let cause = ours.cause().expect("the peer is told");
    assert!(
        matches!(*cause, Cause::PeerFailed(Failure::Region)),
        "{cause}"
    );
}

#[test]
fn a_put_to_a_region_that_is_not_published_breaks_both_sides() {
    refused(|ours, region| ours.put(region, 0..100, RegionKey(99), 0, 1).unwrap());
}

#[test]
fn a_get_from_a_region_that_is_not_published_breaks_both_sides() {
    refused(|ours, region| ours.get(RegionKey(99), 0, region, 0..100, 1).unwrap());
}

#[test]
fn a_put_outside_of_the_region_or_without_permission_writes_nothing() {
    for (access, offset) in [
        (Access::PUBLIC, 1u64),
        (Access::PUBLIC, u64::MAX),
        (
            Access {
                put: false,
                get: true,
            },
            0,
        ),
    ] {
        let (a, b) = pair("seed=4");
        let (ours, theirs) = connect(&a, &b);
        let (_, source) = host(&a, vec![1; 100]);
        let buffer = Buffer::new(vec![0; 100]);
        let target = b.register(Memory::Host(buffer.clone()), access).unwrap();
        let key = theirs.publish(&target).unwrap();
        ours.put(&source, 0..100, key, offset, 1).unwrap();
        run(&ours, &theirs, 1, 1);
        assert!(theirs.cause().is_some(), "offset {offset}");
        buffer.with(|got| assert_eq!(*got, [0; 100]));
    }
}

#[test]
fn a_region_that_was_dropped_can_no_longer_be_named() {
    let (a, b) = pair("seed=5");
    let (ours, theirs) = connect(&a, &b);
    let (_, source) = host(&a, vec![1; 100]);
    let (buffer, target) = host(&b, vec![0; 100]);
    let key = theirs.publish(&target).unwrap();
    target.deregister().unwrap();
    ours.put(&source, 0..100, key, 0, 1).unwrap();
    run(&ours, &theirs, 1, 1);
    assert!(theirs.cause().is_some());
    buffer.with(|got| assert_eq!(*got, [0; 100]));
}
