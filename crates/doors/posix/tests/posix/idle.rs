//! What a thread of a program does that waits in real time: it polls the link itself, spins, and naps while a stream arrives.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

use devmem_posix::Engine;
use devmem_posix::abi::{SOCK_STREAM, so};
use devmem_uapi::{Errno, sockopt::SOL_SOCKET};
use netsim::Flood;
use nic::{Nic, NicConfig};
use stack::{Secret, Stack, StackConfig};

/// Waits for a connection for a millisecond.
fn accept_in_vain(engine: &Engine, listener: i32) {
    let accepted = engine.posix().accept(listener, 0);
    assert_eq!(accepted.map(|(fd, _)| fd), Err(Errno::EAGAIN));
}

#[test]
fn a_thread_that_waits_polls_the_link_spins_and_naps_while_a_stream_arrives() {
    let frames = Arc::<AtomicU64>::default();
    let looks = Arc::<Mutex<HashMap<ThreadId, u64>>>::default();
    let seen = Arc::clone(&looks);
    let link = Flood::new(&frames, move || {
        let this = std::thread::current().id();
        *seen.lock().unwrap().entry(this).or_default() += 1;
    });
    let nic = Nic::new(Box::new(link), NicConfig::default()).unwrap();
    let ours = "10.77.0.1".parse().unwrap();
    let stack = Stack::new(nic, StackConfig::new(ours, 24, Secret::from_seed(1))).unwrap();
    let engine = crate::start(stack);
    let listener = engine.posix().call(|t| {
        let fd = t.socket(2, SOCK_STREAM, 0)?;
        t.listen(fd, 1)?;
        let millisecond = [0i64, 1000].map(i64::to_ne_bytes).concat();
        t.setsockopt(fd, (SOL_SOCKET, so::RCVTIMEO), &millisecond)?;
        Ok::<_, Errno>(fd)
    });
    let listener = listener.unwrap();
    accept_in_vain(&engine, listener);
    let this = std::thread::current().id();
    let own = looks.lock().unwrap().get(&this).copied();
    assert!(own >= Some(2), "it looks, yields, and looks again: {own:?}");
    let pauses = engine.posix().waiter().pauses();
    assert!(pauses.yields > 0, "{pauses:?}");
    assert_eq!(pauses.naps, 0, "no stream has arrived");
    // On a busy processor the thread may get no quick look after a yield, without which it does not nap.
    let mut rounds = 0;
    while engine.posix().waiter().pauses().naps == 0 {
        rounds += 1;
        assert!(rounds < 10_000, "{:?}", engine.posix().waiter().pauses());
        frames.store(1000, Ordering::Relaxed);
        accept_in_vain(&engine, listener);
    }
}
