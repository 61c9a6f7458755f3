//! Peers that send as much as they can of what nobody waits for, and that name what they were not given.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use devmem_exchange::{
    Access, Carrier, Cause, Endpoint, Engine, Event, Fabric, Memory, Options, PostError,
    PublishError, Record, RegionKey, Violation,
};
use devmem_tcp::{Netdev, Stream};

use crate::by_hand::ByHand;
use crate::world::{IDLE_TURNS, connect, host, options, pair, part, run};

/// Time after which a test that waits has failed.
const PATIENCE: Duration = Duration::from_secs(100);

/// Notifications, and bytes of them with 4 KiB for the last one, that an endpoint may hold for a program that takes none.
const MOST_NOTIFICATIONS: usize = 1024;
const MOST_BYTES: usize = (1 << 20) + 4096;

/// Records, or pieces of payload, of one turn.
const TURN: u64 = 256;

/// A fabric in virtual time, and a NIC for its peer.
fn world(seed: u64) -> (Netdev, Fabric) {
    let (a, b) = Netdev::pair(format!("seed={seed}").parse().unwrap()).unwrap();
    (a, Fabric::open(b, options()).unwrap())
}

/// Writes as much of `bytes` as the peer takes now.
fn write_some(stream: &mut Stream, bytes: &mut &[u8]) {
    match stream.write(bytes) {
        Ok(written) => *bytes = &bytes[written..],
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}"),
    }
}

fn notify(text: &[u8]) -> Vec<u8> {
    let len = text.len() as u64;
    [&Record::Notify { len }.encode()[..], text].concat()
}

/// Takes the notifications that were delivered, without progress.
fn take(endpoint: &Endpoint) -> Vec<Vec<u8>> {
    let events = std::iter::from_fn(|| endpoint.next_event());
    let texts = events.map(|event| match event {
        Event::Notified { bytes } => bytes,
        event => panic!("{event:?}"),
    });
    texts.collect()
}

#[test]
fn notifications_that_nobody_takes_stop_the_peer_and_go_on_when_they_are_taken() {
    for (seed, len, number) in [(1, 0, 20_000_u32), (2, 100, 20_000), (3, 4096, 6_000)] {
        let (nic, fabric) = world(seed);
        let listener = fabric.listen().unwrap();
        let (mut peer, endpoint) = ByHand::connect(&nic, &fabric, &listener, 1);
        let text = |number: u32| {
            let mut text = vec![7; len];
            let numbered = len.min(4);
            text[..numbered].copy_from_slice(&number.to_le_bytes()[..numbered]);
            text
        };
        let all: Vec<u8> = (0..number).flat_map(|it| notify(&text(it))).collect();
        let mut left = &all[..];
        peer.control.set_nonblocking(true);
        let mut idle = 0;
        while idle < 100 {
            let before = left.len();
            write_some(&mut peer.control, &mut left);
            let worked = endpoint.progress() || left.len() < before;
            idle = if worked { 0 } else { idle + 1 };
        }
        let held = take(&endpoint);
        let bytes: usize = held.iter().map(Vec::len).sum();
        assert!(
            held.len() <= MOST_NOTIFICATIONS && bytes <= MOST_BYTES,
            "{} notifications of {len} bytes are held",
            held.len()
        );
        assert!(!left.is_empty() || len < 4096, "TCP stops the peer");
        let mut taken = held;
        while taken.len() < number as usize {
            write_some(&mut peer.control, &mut left);
            endpoint.progress();
            taken.extend(take(&endpoint));
            assert!(endpoint.cause().is_none(), "{:?}", endpoint.cause());
        }
        assert!(taken.into_iter().eq((0..number).map(text)));
    }
}

/// Returns the NIC of a hostile peer, and a fabric at the other end of the wire `link`, with a thread.
fn with_thread(link: &str) -> (Netdev, Fabric) {
    let nic = |address| Netdev::user(link, address).unwrap();
    let (a, b) = (nic("10.77.0.1/24"), nic("10.77.0.2/24"));
    let engine = Engine::Thread;
    let options = Options {
        engine,
        ..options()
    };
    (a, Fabric::open(b, options).unwrap())
}

#[test]
fn a_thread_reads_on_when_notifications_were_taken() {
    let (a, fabric) = with_thread("mem:hostile-notify");
    let listener = fabric.listen().unwrap();
    let (mut peer, endpoint) = ByHand::connect(&a, &fabric, &listener, 1);
    const NUMBER: usize = 10_000;
    let all: Vec<u8> = (0..NUMBER).flat_map(|_| notify(&[1; 100])).collect();
    std::thread::scope(|scope| {
        // Blocks until the program takes notifications.
        scope.spawn(|| peer.control.write_all(&all).unwrap());
        for number in 0..NUMBER {
            let event = endpoint.wait_event(PATIENCE);
            assert!(
                matches!(&event, Some(Event::Notified { bytes }) if *bytes == [1; 100]),
                "{number}: {event:?}"
            );
        }
    });
}

/// A put of one byte, behind its record or on the first data stream.
fn one_byte_put(key: RegionKey, carrier: Carrier) -> Vec<u8> {
    let record = Record::Put {
        key: key.0,
        carrier,
        offset: 0,
        len: 1,
    };
    let mut said = record.encode().to_vec();
    if carrier == Carrier::Control {
        said.push(9);
    }
    said
}

#[test]
fn a_turn_ends_under_puts_of_one_byte() {
    const PUTS: u64 = 4000;
    for (seed, carrier) in [(4, Carrier::Control), (5, Carrier::Data(0))] {
        let (nic, fabric) = world(seed);
        let listener = fabric.listen().unwrap();
        let (mut peer, endpoint) = ByHand::connect(&nic, &fabric, &listener, 1);
        let (buffer, region) = host(&fabric, vec![0; 8]);
        let key = endpoint.publish(&region).unwrap();
        let all: Vec<u8> = (0..PUTS).flat_map(|_| one_byte_put(key, carrier)).collect();
        let mut left = &all[..];
        peer.control.set_nonblocking(true);
        if carrier != Carrier::Control {
            peer.data[0].write_all(&[9; PUTS as usize]).unwrap();
        }
        let (mut done, mut longest) = (0, 0);
        for _ in 0..IDLE_TURNS {
            // All that TCP takes is there before the turn.
            while !left.is_empty() {
                let before = left.len();
                write_some(&mut peer.control, &mut left);
                if left.len() == before {
                    break;
                }
            }
            endpoint.progress();
            let now = endpoint.stats().received_bytes;
            longest = longest.max(now - done);
            done = now;
            if done == PUTS {
                break;
            }
        }
        assert_eq!(done, PUTS, "{carrier:?}: {:?}", endpoint.cause());
        assert!(
            (1..=TURN).contains(&longest),
            "one turn made {longest} puts, {carrier:?}"
        );
        buffer.with(|bytes| assert_eq!(bytes[0], 9));
    }
}

/// One connection is flooded as fast as another processor can; the messages of another one of the same fabric arrive all the same.
#[test]
fn a_flood_on_one_connection_leaves_turns_to_the_others() {
    let (a, fabric) = with_thread("mem:hostile-fair");
    let listener = fabric.listen().unwrap();
    let (mut peer, flooded) = ByHand::connect(&a, &fabric, &listener, 1);
    let (_, region) = host(&fabric, vec![0; 8]);
    let key = flooded.publish(&region).unwrap();
    let honest = Fabric::open(
        a,
        Options {
            engine: Engine::Thread,
            ..options()
        },
    )
    .unwrap();
    let (ours, theirs) = connect(&honest, &fabric);
    let flood: Vec<u8> = (0..1000)
        .flat_map(|_| one_byte_put(key, Carrier::Control))
        .collect();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                peer.control.write_all(&flood).unwrap();
            }
        });
        let start = Instant::now();
        while flooded.stats().received_bytes == 0 && start.elapsed() < PATIENCE {
            std::thread::yield_now();
        }
        let (_, source) = host(&honest, vec![1; 6000]);
        let (_, target) = host(&fabric, vec![0; 6000]);
        let outcome = (0..20).try_for_each(|number| {
            let posted = theirs.receive(&[part(&target, 0..6000, 1)], number);
            posted.map_err(|error| error.to_string())?;
            let sent = ours.send(&source, 0..6000, 1, number);
            sent.map_err(|error| error.to_string())?;
            match (theirs.wait_event(PATIENCE), ours.wait_event(PATIENCE)) {
                (Some(Event::Received { .. }), Some(Event::Sent { .. })) => Ok(()),
                other => Err(format!("{number}: {other:?}")),
            }
        });
        // Before a panic, which waits for the flood.
        is_over.store(true, Ordering::Relaxed);
        outcome.unwrap();
    });
    assert!(flooded.cause().is_none(), "{:?}", flooded.cause());
    assert!(flooded.stats().received_bytes > 0, "the flood never began");
}

#[test]
fn keys_that_were_guessed_name_nothing() {
    let (nic, fabric) = world(6);
    let listener = fabric.listen().unwrap();
    let kept: Vec<_> = (0..3).map(|_| host(&fabric, vec![0; 8])).collect();
    let (_given, honest) = ByHand::connect(&nic, &fabric, &listener, 1);
    let given: Vec<_> = kept
        .iter()
        .map(|(_, region)| honest.publish(region).unwrap().0)
        .collect();
    let near = given
        .iter()
        .flat_map(|key| [key ^ 1, key.wrapping_add(1), key.swap_bytes()]);
    // Small numbers, near ones, and those that another endpoint was given.
    let guesses = (0..8)
        .chain([u64::MAX])
        .chain(near)
        .chain(given.iter().copied());
    for guess in guesses.collect::<Vec<_>>() {
        let (mut peer, endpoint) = ByHand::connect(&nic, &fabric, &listener, 1);
        peer.control
            .write_all(&one_byte_put(RegionKey(guess), Carrier::Control))
            .unwrap();
        while endpoint.cause().is_none() {
            endpoint.progress();
        }
        let cause = endpoint.cause().unwrap();
        assert!(
            matches!(*cause, Cause::Protocol(Violation::Region)),
            "key {guess:#x}: {cause}"
        );
    }
    assert!(honest.cause().is_none());
    for (buffer, _) in &kept {
        buffer.with(|bytes| assert_eq!(*bytes, [0; 8]));
    }
}

#[test]
fn a_key_is_valid_on_the_endpoint_that_published_it_and_what_permits_nothing_has_none() {
    let (a, b) = pair("seed=7");
    let (first, first_peer) = connect(&a, &b);
    let (second, second_peer) = connect(&a, &b);
    let (_, source) = host(&a, vec![3; 8]);
    let (buffer, target) = host(&b, vec![0; 8]);
    let key = first_peer.publish(&target).unwrap();
    assert_eq!(first_peer.publish(&target).unwrap(), key);
    assert_ne!(second_peer.publish(&target).unwrap(), key);
    second.put(&source, 0..8, key, 0, 1).unwrap();
    while second_peer.cause().is_none() {
        second.progress();
        second_peer.progress();
    }
    buffer.with(|bytes| assert_eq!(*bytes, [0; 8]));
    first.put(&source, 0..8, key, 0, 2).unwrap();
    first.notify(b"done").unwrap();
    run(&first, &first_peer, 1, 1);
    buffer.with(|bytes| assert_eq!(*bytes, [3; 8]));

    let memory = devmem_exchange::Buffer::new(vec![0; 8]);
    let private = b.register(Memory::Host(memory), Access::PRIVATE).unwrap();
    let refused = first_peer.publish(&private);
    assert!(matches!(refused, Err(PublishError::Private)), "{refused:?}");
    let refused = first_peer.publish(&source);
    assert!(
        matches!(refused, Err(PublishError::OtherFabric)),
        "{refused:?}"
    );
}

/// A peer that takes nothing from its data stream: what the program posts behind it is bounded.
#[test]
fn notifications_behind_a_stuck_message_are_refused_when_there_are_too_many() {
    let (nic, fabric) = world(8);
    let listener = fabric.listen().unwrap();
    let (mut peer, endpoint) = ByHand::connect(&nic, &fabric, &listener, 1);
    let len = 64 << 20;
    let (_, source) = host(&fabric, vec![1; len]);
    let room = Record::Posted {
        op: 1,
        part: 0,
        len: len as u64,
        tag: 0,
    };
    peer.say(room, &[]);
    endpoint.send(&source, 0..len, 0, 1).unwrap();
    let refused = (0..10_000).find_map(|_| {
        endpoint.progress();
        endpoint.notify(&[0; 4096]).err()
    });
    assert!(matches!(refused, Some(PostError::Full)), "{refused:?}");
}
