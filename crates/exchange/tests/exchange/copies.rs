//! Messages into memory that its device copies to, late.

use devmem_exchange::{Access, Closing, Fabric, Memory, Options, Pool, Region};
use devmem_tcp::Dmabuf;
use netmem::{FakeDevice, FakePace, Lane};

use crate::world::{connect, host, options, pair_of, part, pattern, run};

/// A fabric that receives into memory of a device, the other end of its wire, and the region of a target there.
fn with_device(device: &FakeDevice, target: &Dmabuf) -> (Fabric, Fabric, Region) {
    let pool = Pool {
        memory: device.alloc(4 << 20).unwrap(),
        queues: 1,
    };
    let theirs = Options {
        pool: Some(pool),
        ..options()
    };
    let (a, b) = pair_of("seed=9", options(), theirs);
    let target = b.register(Memory::Device(target), Access::PRIVATE).unwrap();
    (a, b, target)
}

#[test]
fn no_turn_waits_for_the_copies_of_a_device_and_a_message_is_done_after_its_own() {
    const LEN: usize = 1 << 20;
    let device = FakeDevice::new(FakePace::AfterPolls(3));
    let to = device.alloc(LEN).unwrap();
    let (a, b, target) = with_device(&device, &to);
    let (ours, theirs) = connect(&a, &b);
    for seed in 0..3 {
        let bytes = pattern(seed, LEN);
        let (_, source) = host(&a, bytes.clone());
        theirs.receive(&[part(&target, 0..LEN, 1)], 1).unwrap();
        ours.send(&source, 0..LEN, 1, 2).unwrap();
        run(&ours, &theirs, 1, 1);
        assert!(to.slice(0..LEN).to_vec() == bytes);
    }
    assert_eq!(theirs.stats().received_by_device, 3 * LEN as u64);
    assert_eq!(device.waited(Lane::Gather), 0);
}

#[test]
fn a_notification_and_the_end_of_a_registration_wait_for_the_copies_of_a_put() {
    const LEN: usize = 100_000;
    let device = FakeDevice::new(FakePace::AfterPolls(20));
    let to = device.alloc(128 << 10).unwrap();
    let (a, b, _) = with_device(&device, &to);
    let target = b.register(Memory::Device(&to), Access::PUBLIC).unwrap();
    let (ours, theirs) = connect(&a, &b);
    let bytes = pattern(1, LEN);
    let (_, source) = host(&a, bytes.clone());
    let key = theirs.publish(&target).unwrap();
    ours.put(&source, 0..LEN, key, 0, 1).unwrap();
    ours.notify(b"it was put").unwrap();
    let turn = || {
        let _ = ours.progress() | theirs.progress();
    };
    // All chunks are announced when the first one is in its place.
    while theirs.stats().received_bytes == 0 {
        turn();
    }
    let mut used = target.deregister();
    while let Err((target, _)) = used {
        assert!(
            theirs.next_event().is_none(),
            "a notification came too early"
        );
        turn();
        used = target.deregister();
    }
    assert!(to.slice(0..LEN).to_vec() == bytes);
    run(&ours, &theirs, 0, 1);
}

#[test]
fn a_closed_endpoint_has_no_copy_under_way() {
    const LEN: usize = 20_000;
    for turns in (0..300).step_by(5) {
        let device = FakeDevice::new(FakePace::AfterPolls(20));
        let to = device.alloc(LEN.next_multiple_of(4096)).unwrap();
        let (a, b, target) = with_device(&device, &to);
        let (ours, theirs) = connect(&a, &b);
        let (_, source) = host(&a, pattern(1, LEN));
        theirs.receive(&[part(&target, 0..LEN, 1)], 1).unwrap();
        ours.send(&source, 0..LEN, 1, 2).unwrap();
        for _ in 0..turns {
            let _ = ours.progress() | theirs.progress();
        }
        theirs.close(Closing::Linger);
        to.fill(0..LEN, 0xee).unwrap();
        device.run();
        assert!(
            to.slice(0..LEN).to_vec() == [0xee; LEN],
            "after {turns} turns"
        );
    }
}
