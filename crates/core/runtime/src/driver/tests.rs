//! Threads that share a driver: the lock on a link that always has another frame, and the background thread.

use std::net::{Shutdown, SocketAddr};
use std::sync::atomic::AtomicU64;

use devmem_uapi::MsgFlags;
use netsim::Flood;
use nic::{Nic, NicConfig};
use stack::{Readiness, Secret, SendMsg, SocketId, Stack, StackConfig};

use super::unsent::{POLL_INTERVAL, TICK};
use super::*;
use crate::calls::{Awaited, Parked};
use crate::limit::{Idling, NotReady, Wait, WaitLimit};
use crate::spin::Pause;

const AT: StackIndex = StackIndex(0);

/// A stack of a program that has an fd, which is ready while a listener has a connection to accept.
#[derive(Debug)]
struct OneStack {
    stack: Stack,
    /// The listener of the fd.
    fd: Option<SocketId>,
    is_fd_ready: bool,
}

impl Driven for OneStack {
    fn stacks(&self) -> &[Stack] {
        std::slice::from_ref(&self.stack)
    }

    fn stacks_mut(&mut self) -> &mut [Stack] {
        std::slice::from_mut(&mut self.stack)
    }

    fn tell_events(&mut self, calls: &mut Calls) {
        self.stack
            .take_events()
            .for_each(|socket| calls.wake(AT, socket));
        let is_ready = self.has_connection();
        if std::mem::replace(&mut self.is_fd_ready, is_ready) && !is_ready {
            calls.note_drained_fd();
        }
    }

    fn has_events(&self) -> bool {
        self.stack.has_events()
    }

    fn awaits_fd(&self) -> bool {
        self.fd.is_some()
    }
}

impl OneStack {
    fn has_connection(&self) -> bool {
        let ready = self.fd.and_then(|of| self.stack.readiness(of).ok());
        ready.is_some_and(|ready| ready.contains(Readiness::ACCEPTABLE))
    }
}

fn driver(stack: Stack) -> Arc<Driver<OneStack>> {
    let driven = OneStack {
        stack,
        fd: None,
        is_fd_ready: false,
    };
    Driver::new(driven, Clock::start(), Vec::new()).expect("eventfds")
}

/// Gives the program an fd that is ready while the listener has a connection.
fn make_fd(driver: &Driver<OneStack>, of: SocketId) {
    let mut driven = driver.lock();
    driven.fd = Some(of);
    driven.is_fd_ready = driven.has_connection();
    drop(driven);
    driver.expect_fd_waits();
}

/// Returns a stack with `frames` to receive, and the number that is left of them.
fn flooded(frames: u64) -> (Stack, Arc<AtomicU64>) {
    let (stack, left, _) = watched_flood(frames);
    (stack, left)
}

/// As [`flooded`], with the number of looks for a frame.
fn watched_flood(frames: u64) -> (Stack, Arc<AtomicU64>, Arc<AtomicU64>) {
    let left = Arc::new(AtomicU64::new(frames));
    let looks = Arc::<AtomicU64>::default();
    let seen = Arc::clone(&looks);
    let link = Flood::new(&left, move || {
        seen.fetch_add(1, Ordering::Relaxed);
    });
    let nic = Nic::new(Box::new(link), NicConfig::default()).expect("a NIC");
    let config = StackConfig::new([10, 77, 0, 2].into(), 24, Secret::from_seed(1));
    (Stack::new(nic, config).expect("a stack"), left, looks)
}

fn listen(stack: &mut Stack, port: u16) -> SocketId {
    let address = SocketAddr::from(([10, 77, 0, 2], port));
    stack.listen(address, 1).expect("a free port")
}

/// Returns a wait for a socket, without a rest.
fn wait(socket: SocketId, limit: WaitLimit) -> Wait {
    Wait {
        awaits: Awaited {
            stack: AT,
            socket: Some(socket),
        },
        limit,
        idling: Idling::Spin,
    }
}

/// Frames of the flood: far more than are received while the other thread makes its calls.
const FLOOD: u64 = 2_000_000;

#[test]
fn a_thread_that_waits_for_an_idle_socket_on_a_busy_link_lets_others_call() {
    const CALLS: usize = 100;
    let (mut stack, left) = flooded(FLOOD);
    let socket = listen(&mut stack, 1);
    let driver = driver(stack);
    let stop = AtomicBool::new(false);
    let wait = wait(socket, WaitLimit::Forever);
    let stopped = |_: &mut OneStack, _| stop.load(Ordering::Relaxed).then_some(());
    let left = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| driver.wait_for(wait, stopped));
        while left.load(Ordering::Relaxed) == FLOOD {
            std::thread::yield_now();
        }
        for _ in 0..CALLS {
            driver.call(|_, _| ());
        }
        let left = left.load(Ordering::Relaxed);
        stop.store(true, Ordering::Relaxed);
        assert_eq!(waiting.join().expect("no panic"), Ok(()));
        left
    });
    assert!(left > 0, "the calls waited for the end of the flood");
}

#[test]
fn calls_that_need_not_wait_poll_if_nobody_has_polled_for_a_while() {
    let (mut stack, left) = flooded(FLOOD);
    let socket = listen(&mut stack, 1);
    let driver = driver(stack);
    let wait = wait(socket, WaitLimit::Forever);
    let call = || driver.wait_for(wait, |_, _| Some(()));
    let left = || left.load(Ordering::Relaxed);
    // The first call may poll, because nobody has.
    call().expect("an attempt");
    let (before, began) = (left(), driver.now());
    let mut calls = 0;
    while driver.now().saturating_since(began) < POLL_INTERVAL {
        calls += 1;
        call().expect("an attempt");
    }
    assert!(before - left() <= TURN, "polled once in {calls} calls");
    call().expect("an attempt");
    assert!(left() < before);
}

/// Returns whether the background thread was woken since the last call.
fn is_background_woken(driver: &Driver<OneStack>) -> bool {
    let mut count = [0; 8];
    rustix::io::read(&driver.wake_background, &mut count).is_ok()
}

/// Returns a driver whose stack has a listener with one connection to accept.
fn with_one_to_accept() -> (Arc<Driver<OneStack>>, SocketId) {
    let (mut stack, _) = flooded(0);
    let listener = listen(&mut stack, 1);
    let now = Instant::from_millis(1);
    let here = SocketAddr::from(([10, 77, 0, 2], 1));
    stack.connect(here, now).expect("a route");
    stack.flush(FlushScope::All, now);
    while stack.poll(now).worked {}
    (driver(stack), listener)
}

/// Accepts the connection; returns whether the background thread was woken to lead.
fn accept_wakes_background(driver: &Driver<OneStack>, listener: SocketId) -> bool {
    let wait = wait(listener, WaitLimit::Never);
    let accepted = driver.wait_for(wait, |it, _| it.stack.accept(listener).ok());
    assert!(accepted.is_ok(), "{accepted:?}");
    is_background_woken(driver) && driver.core.lock().last_foreground.is_none()
}

#[test]
fn the_background_thread_leads_once_a_call_has_made_a_readiness_fd_unreadable() {
    let (driver, listener) = with_one_to_accept();
    assert!(!accept_wakes_background(&driver, listener), "it has no fd");
    let (driver, listener) = with_one_to_accept();
    make_fd(&driver, listener);
    assert!(is_background_woken(&driver), "it keeps the fd up to date");
    assert!(accept_wakes_background(&driver, listener));
}

#[test]
fn a_call_that_would_block_wakes_the_background_thread_only_for_programs_that_may_wait_for_an_fd() {
    let (mut stack, _) = flooded(0);
    let socket = listen(&mut stack, 1);
    let driver = driver(stack);
    let wait = wait(socket, WaitLimit::Never);
    let attempt = || {
        let attempted = driver.wait_for(wait, |_, _| None::<()>);
        assert_eq!(attempted, Err(NotReady::WouldBlock));
        is_background_woken(&driver)
    };
    assert!(!attempt() && !attempt(), "the program polls");
    make_fd(&driver, socket);
    assert!(is_background_woken(&driver), "it keeps the fd up to date");
    assert!(attempt(), "the program may wait for the fd");
}

#[test]
fn the_background_thread_of_a_program_with_an_fd_still_leads_after_a_call_that_must_not_wait() {
    let (driver, listener) = with_one_to_accept();
    make_fd(&driver, listener);
    let wait = wait(listener, WaitLimit::Never);
    // It sleeps on the link. The call makes the fd unreadable, and the next one changes nothing.
    driver.core.lock().calls.leader = Leader::Background;
    let accepted = driver.wait_for(wait, |it, _| it.stack.accept(listener).ok());
    assert!(accepted.is_ok(), "{accepted:?}");
    assert_eq!(driver.core.lock().last_foreground, None);
    assert_eq!(driver.wait_for(wait, |_, _| Some(())), Ok(()));
    assert_eq!(driver.core.lock().last_foreground, None);
}

#[test]
fn a_background_thread_that_is_awake_is_not_woken() {
    let (driver, listener) = with_one_to_accept();
    driver.stay_awake();
    make_fd(&driver, listener);
    assert!(!is_background_woken(&driver), "it sees the new fd");
    assert!(!accept_wakes_background(&driver, listener));
    assert_eq!(driver.core.lock().last_foreground, None, "it is to lead");
    let attempt = || {
        let attempted = driver.wait_for(wait(listener, WaitLimit::Never), |_, _| None::<()>);
        assert_eq!(attempted, Err(NotReady::WouldBlock));
        is_background_woken(&driver)
    };
    assert!(!attempt());
    // It looks, and a thread that waits for the lock meanwhile comes too late.
    drop(driver.lock_in_background().expect("nobody holds it"));
    assert!(attempt(), "it may rest");
    driver.rest_in_background(Duration::ZERO);
    assert!(!attempt(), "the rest is over");
    // It finds the lock taken by a thread that may wait.
    let core = driver.core.lock();
    driver.callers.store(1, Ordering::SeqCst);
    assert!(driver.lock_in_background().is_none());
    driver.callers.store(0, Ordering::SeqCst);
    drop(core);
    assert!(attempt());
}

#[test]
fn the_background_thread_looks_at_an_empty_link_once_before_it_sleeps() {
    let (stack, left, looks) = watched_flood(1);
    let driver = driver(stack);
    // Its sleep ends at once.
    driver.close();
    crate::background::step(&driver);
    assert_eq!(left.load(Ordering::Relaxed), 0);
    assert_eq!(looks.load(Ordering::Relaxed), 2, "a frame, and none");
    assert!(!is_background_woken(&driver), "it slept");
}

#[test]
fn a_frame_that_comes_alone_as_the_one_before_is_not_followed_by_a_look() {
    let (stack, left, looks) = watched_flood(0);
    let driver = driver(stack);
    let looks_at = |frames| {
        left.fetch_add(frames, Ordering::Relaxed);
        let before = looks.load(Ordering::Relaxed);
        driver.poll(&mut driver.core.lock());
        looks.load(Ordering::Relaxed) - before
    };
    assert_eq!([1, 0].map(looks_at), [2, 1], "a frame, and none; none");
    assert_eq!([1, 0, 1, 0].map(looks_at), [1, 1, 1, 1]);
    assert_eq!(
        [3, 0].map(looks_at),
        [1, 3],
        "the others come with the next poll"
    );
    assert_eq!(left.load(Ordering::Relaxed), 0);
    assert_eq!([1, 0].map(looks_at), [2, 1], "it may be one of three again");
}

#[test]
fn a_call_that_leaves_something_to_send_wakes_the_background_thread() {
    let (driver, _) = with_one_to_accept();
    let now = driver.now();
    assert_eq!(driver.rest(&mut driver.core.lock(), now), Some(TICK));
    assert_eq!(driver.blind_rest(), TICK);
    // Another one, whose background thread has not looked yet.
    let (driver, listener) = with_one_to_accept();
    let (sender, _) = driver.lock().stack.accept(listener).expect("one");
    let wait = wait(sender, WaitLimit::Forever);
    // Far more than the first congestion window: the rest waits for ACKs.
    let bytes = vec![7; 1 << 20];
    let message = SendMsg::new(&bytes);
    let send = |it: &mut OneStack, _| it.stack.sendmsg(sender, &message, MsgFlags::empty()).ok();
    driver.wait_for(wait, send).expect("room");
    assert!(is_background_woken(&driver));
    assert_eq!(driver.blind_rest(), POLL_INTERVAL);
    // The program polls.
    let mut core = driver.core.lock();
    let last_poll = core.driven.stack.last_poll();
    let rests = [1, 2, 4, 4].map(|factor| Some(factor * POLL_INTERVAL));
    assert_eq!([(); 4].map(|()| driver.rest(&mut core, last_poll)), rests);
    // It does not any more.
    let due = last_poll + POLL_INTERVAL;
    assert_eq!(driver.rest(&mut core, due), None);
    assert_eq!(driver.rest(&mut core, last_poll), Some(POLL_INTERVAL));
}

#[test]
fn a_waiter_naps_while_a_stream_arrives_and_not_after_a_send_of_the_program() {
    let (driver, listener) = with_one_to_accept();
    let (socket, _) = driver.lock().stack.accept(listener).expect("one");
    let wait = wait(socket, WaitLimit::Forever);
    let pause = || {
        let idle = Duration::from_micros(1);
        let mut core = driver.core.lock();
        let mut rest = wait.idling.rest();
        core.pause(
            &driver.clock,
            wait,
            driver.now(),
            idle,
            Duration::MAX,
            &mut rest,
        )
    };
    assert_eq!(pause(), Pause::Yield);
    driver.core.lock().received += 1000;
    assert!(matches!(pause(), Pause::Nap(_)));
    let message = SendMsg::new(b"a request");
    let send = |it: &mut OneStack, _| it.stack.sendmsg(socket, &message, MsgFlags::empty()).ok();
    driver.wait_for(wait, send).expect("room");
    assert_eq!(pause(), Pause::Yield);
}

#[test]
fn a_waiter_does_not_nap_while_connections_begin_and_end() {
    let (driver, listener) = with_one_to_accept();
    let wait = wait(listener, WaitLimit::Forever);
    let pause_after_packets = |packets| {
        let mut core = driver.core.lock();
        core.received += packets;
        let idle = Duration::from_micros(1);
        core.pause(
            &driver.clock,
            wait,
            driver.now(),
            idle,
            Duration::MAX,
            &mut None,
        )
    };
    assert_eq!(pause_after_packets(0), Pause::Yield, "one has begun");
    let end = |call: &dyn Fn(&mut Stack)| {
        assert!(matches!(pause_after_packets(1000), Pause::Nap(_)));
        call(&mut driver.lock().stack);
        assert_eq!(pause_after_packets(0), Pause::Yield);
        assert_eq!(pause_after_packets(100), Pause::Yield);
    };
    let (socket, _) = driver.lock().stack.accept(listener).expect("one");
    end(&|stack| stack.shutdown(socket, Shutdown::Write).expect("open"));
    end(&|stack| stack.close(socket).expect("open"));
    let here = SocketAddr::from(([10, 77, 0, 2], 1));
    end(&|stack| {
        stack
            .connect(here, Instant::from_millis(2))
            .expect("a route");
    });
}

#[test]
fn a_waiter_that_rests_does_not_spin() {
    let (mut stack, _) = flooded(0);
    let socket = listen(&mut stack, 1);
    let driver = driver(stack);
    let wait = Wait {
        idling: Idling::Rest(Duration::from_millis(10)),
        ..wait(socket, WaitLimit::For(Duration::from_millis(40)))
    };
    let mut attempts = 0;
    let waited = driver.wait_for(wait, |_, _| {
        attempts += 1;
        None::<()>
    });
    assert_eq!(waited, Err(NotReady::TimedOut));
    // Before the rest, after it, and after the sleep, which may end a little early. One that spins looks hundreds of times.
    assert!(attempts <= 5, "{attempts}");
}

#[test]
fn a_waiter_rests_after_the_sleep_if_a_rest_before_it_was_in_vain() {
    let (mut stack, _) = flooded(0);
    let socket = listen(&mut stack, 1);
    let driver = driver(stack);
    let (rest, long) = (Duration::from_micros(50), Duration::from_secs(1));
    let wait = Wait {
        idling: Idling::Rest(rest),
        ..wait(socket, WaitLimit::Forever)
    };
    let mut core = driver.core.lock();
    let clock = &driver.clock;
    let pause = |core: &mut Core<OneStack>, left: &mut Option<Duration>| {
        core.pause(clock, wait, driver.now(), rest, long, left)
    };
    for _ in 0..3 {
        assert_eq!(pause(&mut core, &mut Some(rest)), Pause::Nap(rest));
        assert_eq!(
            core.rest_awake(clock, wait.idling, long, long),
            Duration::ZERO
        );
    }
    assert_eq!(pause(&mut core, &mut None), Pause::Sleep, "it was in vain");
    for _ in 0..3 {
        assert_eq!(core.rest_awake(clock, wait.idling, long, long), rest);
        assert_eq!(pause(&mut core, &mut Some(rest)), Pause::Sleep);
    }
    let over = core.rest_awake(clock, wait.idling, long, rest / 2);
    assert_eq!(over, rest / 2, "not longer than it may wait");
    let short = core.rest_awake(clock, wait.idling, rest / 2, long);
    assert_eq!(short, Duration::ZERO, "the gap is shorter than a rest");
    assert_eq!(pause(&mut core, &mut Some(rest)), Pause::Nap(rest));
    let spins = core.rest_awake(clock, Idling::Spin, long, long);
    assert_eq!(spins, Duration::ZERO);
}

#[test]
fn nobody_rests_while_another_thread_waits_for_the_polls() {
    let (stack, _) = flooded(0);
    let driver = driver(stack);
    let mut core = driver.core.lock();
    assert!(core.may_rest());
    core.calls.parked.push(Parked {
        awaits: Awaited {
            stack: AT,
            socket: None,
        },
        thread: std::thread::current(),
    });
    assert!(!core.may_rest());
    core.calls.parked.clear();
    core.calls.leader = Leader::Background;
    assert!(!core.may_rest());
}
