//! Endpoints whose progress a thread makes, in real time, and programs that only wait.

use std::time::{Duration, Instant};

use devmem_exchange::{Cause, Closing, Endpoint, Engine, Event, Fabric, Options};
use devmem_tcp::Netdev;

use crate::world::{connect, device, host, part, pattern};

/// Time after which a test that waits has failed.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug)]
enum Backend {
    /// A wire of this name.
    User(&'static str),
    /// The loopback interface.
    Kernel,
}

fn fabrics(backend: Backend, engines: [Engine; 2]) -> (Fabric, Fabric) {
    let open = |address, engine| {
        let nic = match backend {
            Backend::User(wire) => Netdev::user(format!("mem:{wire}"), address),
            Backend::Kernel => Netdev::kernel("lo"),
        };
        let nic = nic.unwrap();
        let options = Options {
            engine,
            ..Options::default()
        };
        Fabric::open(nic, options).unwrap()
    };
    let a = open("10.77.0.1/24", engines[0]);
    (a, open("10.77.0.2/24", engines[1]))
}

fn wait(endpoint: &Endpoint) -> Event {
    let event = endpoint.wait_event(PATIENCE);
    event.unwrap_or_else(|| panic!("no event in {PATIENCE:?}; {:?}", endpoint.cause()))
}

/// One thread waits for one endpoint at a time: the other one must go on without it.
#[test]
fn threads_move_messages_both_ways_while_the_program_waits_for_one_of_them() {
    for backend in [Backend::User("engine-both"), Backend::Kernel] {
        let (a, b) = fabrics(backend, [Engine::Thread; 2]);
        let (ours, theirs) = connect(&a, &b);
        for len in [0, 8, 4096, 4097, 8 << 20] {
            let (first, second) = (pattern(1, len), pattern(2, len));
            let (_, from_a) = host(&a, first.clone());
            let (_memory, from_b) = device(&b, &second);
            let (at_a, to_a) = host(&a, vec![0; len]);
            let (at_b, to_b) = host(&b, vec![0; len]);
            // Nothing is posted for the first send: it goes on when the peer's thread has sent the record.
            ours.send(&from_a, 0..len, 0, 1).unwrap();
            ours.receive(&[part(&to_a, 0..len, 0)], 2).unwrap();
            theirs.send(&from_b, 0..len, 0, 3).unwrap();
            theirs.receive(&[part(&to_b, 0..len, 0)], 4).unwrap();
            for endpoint in [&ours, &ours, &theirs, &theirs] {
                let event = wait(endpoint);
                assert!(
                    matches!(event, Event::Sent { .. } | Event::Received { .. }),
                    "{backend:?}, {len} bytes: {event:?}"
                );
            }
            at_a.with(|got| assert!(*got == second, "{backend:?}, {len} bytes"));
            at_b.with(|got| assert!(*got == first, "{backend:?}, {len} bytes"));
        }
    }
}

/// The peer makes progress only when it is waited for: TCP's window is full in between.
#[test]
fn a_thread_goes_on_when_tcp_has_room_again() {
    for backend in [Backend::User("engine-room"), Backend::Kernel] {
        let (a, b) = fabrics(backend, [Engine::Thread, Engine::Calls]);
        let (ours, theirs) = connect(&a, &b);
        let len = 32 << 20;
        let bytes = pattern(3, len);
        let (_, source) = host(&a, bytes.clone());
        let (buffer, target) = host(&b, vec![0; len]);
        theirs.receive(&[part(&target, 0..len, 0)], 1).unwrap();
        ours.send(&source, 0..len, 0, 2).unwrap();
        assert!(matches!(wait(&theirs), Event::Received { user: 1, .. }));
        assert!(matches!(wait(&ours), Event::Sent { user: 2 }));
        buffer.with(|got| assert!(*got == bytes, "{backend:?}"));
    }
}

#[test]
fn a_wait_for_an_event_that_does_not_come_takes_its_time_while_bytes_arrive() {
    const AT_MOST: Duration = Duration::from_millis(10);
    let (a, b) = fabrics(Backend::User("engine-partial"), [Engine::Calls; 2]);
    let (ours, theirs) = connect(&a, &b);
    let len = 32 << 20;
    let (_, source) = host(&a, pattern(5, len));
    let (_, target) = host(&b, vec![0; len]);
    theirs.receive(&[part(&target, 0..len, 0)], 1).unwrap();
    ours.send(&source, 0..len, 0, 2).unwrap();
    // The sender makes no progress but this, so that the message never ends.
    while theirs.stats().received_bytes == 0 {
        ours.progress();
        theirs.progress();
    }
    ours.progress();
    let started = Instant::now();
    assert!(theirs.wait_event(AT_MOST).is_none());
    assert!(started.elapsed() >= AT_MOST);
}

#[test]
fn several_threads_post_while_another_one_makes_progress() {
    const THREADS: u64 = 4;
    const MESSAGES: u64 = 100;
    let (a, b) = fabrics(Backend::User("engine-posts"), [Engine::Thread; 2]);
    let (ours, theirs) = connect(&a, &b);
    let (_, source) = host(&a, pattern(4, 6000));
    let (_, target) = host(&b, vec![0; 6000]);
    std::thread::scope(|scope| {
        for tag in 0..THREADS as u32 {
            let (ours, theirs, source, target) = (&ours, &theirs, &source, &target);
            scope.spawn(move || {
                for number in 0..MESSAGES {
                    let len = 60 * number as usize;
                    let user = u64::from(tag) * MESSAGES + number;
                    while theirs.receive(&[part(target, 0..len, tag)], user).is_err() {
                        std::thread::yield_now();
                    }
                    ours.send(source, 0..len, tag, user).unwrap();
                }
            });
        }
        for endpoint in [&ours, &theirs] {
            let mut ended: Vec<_> = (0..THREADS * MESSAGES)
                .map(|_| match wait(endpoint) {
                    Event::Sent { user } | Event::Received { user, .. } => user,
                    event => panic!("{event:?}"),
                })
                .collect();
            ended.sort_unstable();
            assert!(ended.into_iter().eq(0..THREADS * MESSAGES));
        }
    });
}

#[test]
fn a_program_that_waits_is_told_that_the_peer_has_closed() {
    let backends = [Backend::User("engine-close"), Backend::Kernel];
    let engines = [Engine::Calls, Engine::Thread];
    for (backend, engine) in backends
        .iter()
        .flat_map(|of| engines.map(|with| (*of, with)))
    {
        let (a, b) = fabrics(backend, [engine; 2]);
        let (ours, theirs) = connect(&a, &b);
        let (_, target) = host(&b, vec![0; 8]);
        theirs.receive(&[part(&target, 0..8, 0)], 7).unwrap();
        ours.close(Closing::Linger);
        let Event::Broken(cause) = wait(&theirs) else {
            panic!("it is told first");
        };
        assert!(matches!(*cause, Cause::PeerClosed), "{cause}");
        assert!(matches!(wait(&theirs), Event::Failed { user: 7 }));
    }
}

/// A third NIC on the wire is refused as long as one of the first two exists.
#[test]
fn a_dropped_fabric_leaves_neither_a_thread_nor_its_nic() {
    for _ in 0..3 {
        let (a, b) = fabrics(Backend::User("engine-drop"), [Engine::Thread; 2]);
        let (ours, theirs) = connect(&a, &b);
        let (_, target) = host(&b, vec![0; 8]);
        theirs.receive(&[part(&target, 0..8, 0)], 7).unwrap();
        drop((a, b, ours, theirs));
    }
}
