//! Endpoints that break or are closed, and memory that goes away.

use std::io::{Read, Write};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use devmem_exchange::{
    Access, Carrier, Cause, Closing, Event, Fabric, HostMemory, INLINE_BYTES, Memory, MemoryGone,
    Record, Ticket, Violation,
};
use devmem_tcp::Netdev;

use crate::by_hand::ByHand;
use crate::world::{
    IDLE_TURNS, connect, device, host, options, pair, pair_with_pool, part, pattern, run,
};

#[test]
fn a_message_longer_than_its_receive_fails_both_sides_and_writes_nothing() {
    let (a, b) = pair("seed=1");
    let (ours, theirs) = connect(&a, &b);
    let (_, source) = host(&a, vec![1; 100]);
    let (buffer, target) = host(&b, vec![0; 100]);
    theirs.receive(&[part(&target, 0..99, 5)], 11).unwrap();
    ours.send(&source, 0..100, 5, 12).unwrap();
    let (of_a, of_b) = run(&ours, &theirs, 2, 2);
    assert!(
        matches!(of_a[..], [Event::Broken(_), Event::Failed { user: 12 }]),
        "{of_a:?}"
    );
    assert!(
        matches!(of_b[..], [Event::Broken(_), Event::Failed { user: 11 }]),
        "{of_b:?}"
    );
    for endpoint in [&ours, &theirs] {
        let cause = endpoint.cause().unwrap();
        let Cause::TooLong {
            sent: 100,
            posted: 99,
            tag: 5,
            ..
        } = *cause
        else {
            panic!("{cause}");
        };
    }
    buffer.with(|got| assert_eq!(*got, [0; 100]));
}

#[test]
fn operations_on_a_broken_endpoint_are_taken_and_fail() {
    let (a, b) = pair("seed=2");
    let (ours, theirs) = connect(&a, &b);
    drop(theirs);
    let (_, region) = host(&a, vec![1; 100]);
    let key = ours.publish(&region).unwrap();
    while ours.cause().is_none() {
        ours.progress();
    }
    assert!(matches!(ours.next_event(), Some(Event::Broken(_))));
    ours.send(&region, 0..100, 1, 1).unwrap();
    ours.receive(&[part(&region, 0..100, 1)], 2).unwrap();
    ours.put(&region, 0..0, key, 0, 3).unwrap();
    ours.get(key, 0, &region, 0..0, 4).unwrap();
    let failed: Vec<_> = std::iter::from_fn(|| ours.next_event()).collect();
    let users: Vec<_> = failed
        .iter()
        .map(|event| match event {
            Event::Failed { user } => *user,
            event => panic!("{event:?}"),
        })
        .collect();
    assert_eq!(users, [1, 2, 3, 4]);
    assert_eq!(region.users(), 0);
}

#[test]
fn what_was_sent_before_an_orderly_close_arrives() {
    for seed in 0..10 {
        let (a, b) = pair(&format!("loss=3%,seed={seed}"));
        let (ours, theirs) = connect(&a, &b);
        let bytes = pattern(seed, 200_000);
        let (_, source) = host(&a, bytes.clone());
        let (buffer, target) = host(&b, vec![0; 200_000]);
        theirs.receive(&[part(&target, 0..200_000, 1)], 1).unwrap();
        // Posted, but never sent to: fails when the peer has closed.
        theirs.receive(&[part(&target, 0..1, 2)], 2).unwrap();
        ours.send(&source, 0..200_000, 1, 1).unwrap();
        let (of_a, mut of_b) = run(&ours, &theirs, 1, 0);
        assert!(matches!(of_a[..], [Event::Sent { user: 1 }]));
        ours.close(Closing::Linger);
        while of_b.len() < 3 {
            theirs.progress();
            of_b.extend(std::iter::from_fn(|| theirs.next_event()));
        }
        assert!(
            matches!(
                of_b[..],
                [
                    Event::Received { user: 1, .. },
                    Event::Broken(_),
                    Event::Failed { user: 2 }
                ]
            ),
            "seed {seed}: {of_b:?}"
        );
        assert!(matches!(*theirs.cause().unwrap(), Cause::PeerClosed));
        buffer.with(|got| assert!(*got == bytes));
    }
}

#[test]
fn a_send_whose_bytes_have_arrived_is_done_although_the_receiver_has_closed() {
    for seed in 0..200 {
        // The record of the end may overtake the acknowledgement of the last bytes, which is on another connection.
        let (a, b) = pair(&format!("reorder=30%,delay=1ms,seed={seed}"));
        let (ours, theirs) = connect(&a, &b);
        let bytes = pattern(seed, 40_000);
        let (_, source) = device(&a, &bytes);
        let (buffer, target) = host(&b, vec![0; 40_000]);
        theirs.receive(&[part(&target, 0..40_000, 1)], 1).unwrap();
        ours.send(&source, 0..40_000, 1, 1).unwrap();
        let (mut of_a, of_b) = run(&ours, &theirs, 0, 1);
        assert!(matches!(of_b[..], [Event::Received { user: 1, .. }]));
        buffer.with(|got| assert!(*got == bytes));
        theirs.close(Closing::Linger);
        for _ in 0..IDLE_TURNS {
            of_a.extend(ours.wait_event(Duration::from_secs(1)));
            if !of_a.is_empty() {
                break;
            }
        }
        assert!(
            matches!(of_a.first(), Some(Event::Sent { user: 1 })),
            "seed {seed}: {of_a:?}"
        );
    }
}

#[test]
fn closing_with_operations_in_flight_breaks_the_peer() {
    let (a, b) = pair("seed=3");
    let (ours, theirs) = connect(&a, &b);
    let (_, source) = host(&a, vec![1; 1 << 20]);
    let (_, target) = host(&b, vec![0; 1 << 20]);
    theirs.receive(&[part(&target, 0..1 << 20, 1)], 1).unwrap();
    ours.send(&source, 0..1 << 20, 1, 1).unwrap();
    ours.progress();
    drop(ours);
    assert_eq!(source.users(), 0, "a closed endpoint uses no memory");
    while theirs.cause().is_none() {
        theirs.progress();
    }
    assert_eq!(target.users(), 0);
}

#[test]
fn a_region_in_use_is_not_given_back() {
    let (a, b) = pair("seed=4");
    let (ours, theirs) = connect(&a, &b);
    let (_, source) = host(&a, vec![1; 8]);
    let (_, target) = host(&b, vec![0; 8]);
    ours.send(&source, 0..8, 1, 1).unwrap();
    let (source, refused) = source.deregister().unwrap_err();
    assert!(
        refused.to_string().contains("1 operations still use"),
        "{refused}"
    );
    theirs.receive(&[part(&target, 0..8, 1)], 1).unwrap();
    let target = target.deregister().unwrap_err().0;
    run(&ours, &theirs, 1, 1);
    source.deregister().unwrap();
    target.deregister().unwrap();
}

/// Host memory that its owner can take away.
struct Revocable {
    len: usize,
    is_gone: AtomicBool,
}

impl HostMemory for Revocable {
    fn size(&self) -> usize {
        self.len
    }

    fn read(&self, range: Range<usize>, with: &mut dyn FnMut(&[u8])) -> Result<(), MemoryGone> {
        if self.is_gone.load(Ordering::Relaxed) {
            return Err(MemoryGone);
        }
        with(&vec![7; range.len()]);
        Ok(())
    }

    fn write(
        &self,
        range: Range<usize>,
        with: &mut dyn FnMut(&mut [u8]) -> usize,
    ) -> Result<(), MemoryGone> {
        if self.is_gone.load(Ordering::Relaxed) {
            return Err(MemoryGone);
        }
        let _written = with(&mut vec![0; range.len()]);
        Ok(())
    }
}

#[test]
fn memory_that_is_taken_away_breaks_both_sides() {
    // The first is sent behind its record, the second on a data stream.
    for len in [INLINE_BYTES, INLINE_BYTES + 1] {
        let (a, b) = pair("seed=5");
        let (ours, theirs) = connect(&a, &b);
        let memory = Arc::new(Revocable {
            len,
            is_gone: AtomicBool::new(false),
        });
        let source = a.register(Memory::Host(memory.clone()), Access::PRIVATE);
        let (_, target) = host(&b, vec![0; len]);
        ours.send(&source.unwrap(), 0..len, 1, 1).unwrap();
        memory.is_gone.store(true, Ordering::Relaxed);
        theirs.receive(&[part(&target, 0..len, 1)], 1).unwrap();
        run(&ours, &theirs, 2, 2);
        assert!(matches!(*ours.cause().unwrap(), Cause::MemoryGone));
        assert!(theirs.cause().is_some());
    }
}

/// A stranger on the control port is closed, and disturbs nobody.
#[test]
fn strangers_are_closed_and_endpoints_connect_all_the_same() {
    let (a, b) = Netdev::pair("seed=6".parse().unwrap()).unwrap();
    let b = Fabric::open(b, options()).unwrap();
    let listener = b.listen().unwrap();
    let mut stranger = a.connect(b.address()).unwrap();
    stranger.write_all(&[b'G'; 64]).unwrap();
    let silent = a.connect(b.address()).unwrap();
    let a = Fabric::open(a, options()).unwrap();
    let (ours, theirs) = connect(&a, &b);
    assert!(listener.poll().unwrap().is_none());
    assert!(listener.strangers() >= 1);
    assert_eq!(stranger.read(&mut [0; 8]).unwrap_or(0), 0);
    drop((silent, ours, theirs));
}

#[test]
fn a_record_that_names_nothing_breaks_the_endpoint() {
    let (nic, b) = Netdev::pair("seed=7".parse().unwrap()).unwrap();
    let b = Fabric::open(b, options()).unwrap();
    let listener = b.listen().unwrap();
    let (mut peer, theirs) = ByHand::connect(&nic, &b, &listener, 1);
    let chunk = Record::Chunk {
        op: 1,
        part: 0,
        carrier: Carrier::Data(0),
        offset: 0,
        len: 10,
        total: 10,
    };
    peer.say(chunk, &[]);
    while theirs.cause().is_none() {
        theirs.progress();
    }
    let cause = theirs.cause().unwrap();
    assert!(
        matches!(*cause, Cause::Protocol(Violation::UnknownReceive)),
        "{cause}"
    );
    let mut answers = [0; 128];
    peer.control.read_exact(&mut answers).unwrap();
    let answers = answers
        .as_chunks::<64>()
        .0
        .iter()
        .map(|bytes| Record::decode(bytes).unwrap());
    let answers: Vec<_> = answers.collect();
    assert!(
        matches!(answers[..], [Record::Ready, Record::Failed(_)]),
        "{answers:?}"
    );
}

#[test]
fn a_ticket_of_a_dropped_listener_is_refused() {
    let (a, b) = pair("seed=8");
    let other = b.listen().unwrap();
    let ticket = b.listen().unwrap().ticket();
    let mut dial = a
        .dial(&Ticket::from_bytes(&ticket.to_bytes()).unwrap())
        .unwrap();
    let refused = loop {
        assert!(other.poll().unwrap().is_none());
        match dial.poll() {
            Ok(endpoint) => assert!(endpoint.is_none()),
            Err(error) => break error,
        }
    };
    assert!(
        refused.to_string().contains("closed the connection"),
        "{refused}"
    );
}

/// A pool that is much smaller than the messages: the window closes, and opens again when the frags are home.
#[test]
fn a_small_pool_starves_nobody() {
    let (a, b) = pair_with_pool("seed=9", 1 << 20);
    let (ours, theirs) = connect(&a, &b);
    let bytes = pattern(1, 8 << 20);
    let (_, source) = host(&a, bytes.clone());
    let (buffer, target) = host(&b, vec![0; 8 << 20]);
    theirs.receive(&[part(&target, 0..8 << 20, 1)], 1).unwrap();
    ours.send(&source, 0..8 << 20, 1, 1).unwrap();
    run(&ours, &theirs, 1, 1);
    buffer.with(|got| assert!(*got == bytes));
}
