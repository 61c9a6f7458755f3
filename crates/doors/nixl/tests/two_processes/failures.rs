//! What fails, and what must go on all the same.

use crate::far::{Far, pattern, until};
use crate::loaded::{
    Agent, BACKEND, IN_PROGRESS, INVALID_PARAM, MISMATCH, Memory, NOT_ALLOWED, NOT_FOUND,
    NOT_POSTED, REMOTE_DISCONNECT, REPOST_ACTIVE, Range, SUCCESS, Transfer,
};
use crate::near::{Both, NAME, Near, done, end_of};

/// A transfer that a peer without a thread does not serve, so that it goes on until the test says otherwise.
const LEN: usize = 16 << 20;

/// A peer without a thread, which serves only while it is asked for notifications; connected, and with memory of both sides.
fn idle_peer() -> (Far, Near, Both) {
    let mut far = Far::start("far", false);
    let near = Near::meet(&mut far, true, &[]);
    wake(&near, &mut far);
    let both = near.memories(&mut far, LEN, 1);
    (far, near, both)
}

/// Lets such a peer serve until a transfer with a notification has succeeded. Returns the notification.
fn serve(far: &mut Far, transfer: &Transfer<'_>) -> String {
    far.begin("notifications 1");
    assert_eq!(end_of(transfer), SUCCESS);
    far.answer()
}

/// Lets a peer without a thread serve, until it has a notification of this process, which has a thread.
fn wake(near: &Near, far: &mut Far) {
    assert_eq!(near.agent.notify("far", b"wake up"), SUCCESS);
    assert_eq!(far.notifications(1).len(), 1);
}

pub fn a_transfer_that_goes_on_is_not_posted_again() {
    let (mut far, near, both) = idle_peer();
    let write = near.transfer(true, &[both.pair(0, 0, LEN)]);
    assert_eq!(write.check(), NOT_POSTED);
    assert_eq!(write.post(Some(b"there")), IN_PROGRESS);
    assert_eq!(write.post(None), REPOST_ACTIVE);
    serve(&mut far, &write);
    write.post(Some(b"again"));
    serve(&mut far, &write);
}

pub fn a_cancelled_read_leaves_the_memory_alone() {
    let (mut far, near, both) = idle_peer();
    let read = near.transfer(false, &[both.pair(0, 0, LEN)]);
    assert_eq!(read.post(None), IN_PROGRESS);
    drop(read);
    assert_eq!(near.agent.deregister(both.local), SUCCESS);
    wake(&near, &mut far);
    assert!(both.near.read(0, LEN) == vec![0; LEN]);
    // What was asked for comes, and goes nowhere; the next transfer is not disturbed.
    let region = near.agent.register(&both.near);
    let (mut here, there) = both.pair(0, 0, 100_000);
    here.region = region;
    let read = near.transfer(false, &[(here, there)]);
    read.post(Some(b"read"));
    serve(&mut far, &read);
    assert!(both.near.read(0, 100_000) == pattern(1, 100_000));
}

pub fn a_cancelled_write_gives_no_notification() {
    let (mut far, near, both) = idle_peer();
    let write = near.transfer(true, &[both.pair(0, 0, LEN)]);
    assert_eq!(write.post(Some(b"never")), IN_PROGRESS);
    drop(write);
    let next = near.transfer(true, &[both.pair(0, 0, 1000)]);
    next.post(Some(b"next"));
    let word = serve(&mut far, &next);
    assert!(word.ends_with(&crate::far::hex(b"next")), "{word}");
}

pub fn a_peer_that_is_killed_is_a_disconnect_and_may_come_back() {
    kill_and_restart(false);
    a_peer_that_is_killed_in_the_middle_of_transfers_is_a_disconnect();
}

pub fn a_peer_that_is_killed_in_the_middle_of_transfers_is_a_disconnect() {
    kill_and_restart(true);
}

/// The peer is killed while it is being connected, or later.
fn kill_and_restart(is_connected: bool) {
    let mut far = Far::start("far", false);
    let near = Near::meet(&mut far, true, &[]);
    if is_connected {
        wake(&near, &mut far);
    }
    let both = near.memories(&mut far, LEN, 1);
    let (write, read) = (
        near.transfer(true, &[both.pair(0, 0, LEN)]),
        near.transfer(false, &[both.pair(0, 0, LEN)]),
    );
    assert_eq!(write.post(None), IN_PROGRESS);
    assert_eq!(read.post(None), IN_PROGRESS);
    far.kill();
    assert_eq!(end_of(&write), REMOTE_DISCONNECT);
    assert_eq!(end_of(&read), REMOTE_DISCONNECT);
    // Nobody is there.
    assert_eq!(done(&write, None), REMOTE_DISCONNECT);
    drop((write, read));

    let mut far = Far::start("far", true);
    assert_eq!(near.agent.load_agent("far", far.info()), NOT_ALLOWED);
    assert_eq!(near.agent.disconnect("far"), SUCCESS);
    near.introduce(&mut far);
    let both = near.memories(&mut far, LEN, 2);
    both.near.write(0, &pattern(3, LEN));
    assert_eq!(
        done(&near.transfer(true, &[both.pair(0, 0, LEN)]), None),
        SUCCESS
    );
    assert!(far.bytes(&both.far, 0, LEN) == pattern(3, LEN));
}

pub fn a_peer_that_was_restarted_is_recognised() {
    // Its port is taken by another agent: the cookie tells them apart.
    let (info, second) = until("a port that is free again", || {
        let first = Agent::open("far", true, &[]).expect("an agent");
        let info = first.info();
        let port = u16::from_le_bytes([info[40], info[41]]).to_string();
        drop(first);
        let second = Agent::open("far", true, &[("port", &port)]).ok()?;
        Some((info, second))
    });
    let near = Agent::open(NAME, true, &[]).expect("an agent");
    assert_eq!(near.load_agent("far", &info), SUCCESS);
    let memory = Memory::new(64);
    let (local, data) = (
        near.register(&memory),
        second.describe(second.register(&memory)),
    );
    let remote = near.load_region("far", &data).expect("a region");
    let range = |region| Range {
        address: memory.address(),
        len: 64,
        region,
    };
    let write = near
        .prepare(true, "far", &[range(local)], &[range(remote)])
        .expect("a transfer");
    assert_eq!(done(&write, None), REMOTE_DISCONNECT);
    assert_eq!(near.disconnect("far"), SUCCESS);
    assert_eq!(near.load_agent("far", &second.info()), SUCCESS);
    assert_eq!(done(&write, None), SUCCESS);
}

pub fn a_peer_is_disconnected_and_connected_again() {
    let mut far = Far::start("far", true);
    let near = Near::meet(&mut far, true, &[]);
    for round in 0..5 {
        let both = near.memories(&mut far, 100_000, round);
        assert_eq!(
            done(
                &near.transfer(false, &[both.pair(0, 0, 100_000)]),
                Some(b"n")
            ),
            SUCCESS
        );
        assert!(both.near.read(0, 100_000) == pattern(round, 100_000));
        assert_eq!(near.agent.disconnect("far"), SUCCESS);
        assert_eq!(near.agent.disconnect("far"), NOT_FOUND);
        assert_eq!(near.agent.notify("far", b"gone"), NOT_FOUND);
        near.introduce(&mut far);
    }
    assert_eq!(far.notifications(5).len(), 5);
}

pub fn deregistered_memory_is_touched_no_more() {
    let (mut far, near, both) = idle_peer();
    let read = near.transfer(false, &[both.pair(0, 0, LEN)]);
    assert_eq!(read.post(None), IN_PROGRESS);
    // The result is an error: the core of NIXL ignores it, so nothing may be written from here on.
    assert_eq!(near.agent.deregister(both.local), NOT_ALLOWED);
    assert_eq!(near.agent.deregister(both.local), NOT_FOUND);
    wake(&near, &mut far);
    let status = end_of(&read);
    assert_eq!(status, BACKEND);
    assert!(both.near.read(0, LEN) == vec![0; LEN]);
    assert_eq!(read.post(None), NOT_FOUND);
}

pub fn memory_that_is_freed_fails_its_transfers_only() {
    let mut far = Far::start("far", true);
    let near = Near::meet(&mut far, true, &[]);
    let gone = near.memories(&mut far, LEN, 1);
    let write = near.transfer(true, &[gone.pair(0, 0, LEN)]);
    let read = near.transfer(false, &[gone.pair(0, 0, LEN)]);
    gone.near.forbid();
    for transfer in [&write, &read] {
        assert_eq!(done(transfer, None), BACKEND);
    }
    // The connections were given up; they are made again.
    let both = near.memories(&mut far, LEN, 2);
    assert_eq!(
        done(&near.transfer(false, &[both.pair(0, 0, LEN)]), None),
        SUCCESS
    );
    assert!(both.near.read(0, LEN) == pattern(2, LEN));
}

pub fn ranges_that_are_not_registered_are_refused() {
    let mut far = Far::start("far", true);
    let near = Near::meet(&mut far, true, &[]);
    let both = near.memories(&mut far, 4096, 1);
    let (local, remote) = both.pair(0, 0, 4096);
    let cut = |range: Range, len| Range { len, ..range };
    let at = |range: Range, address| Range { address, ..range };
    let of = |range: Range, region| Range { region, ..range };
    for (peer, local, remote, status) in [
        ("far", cut(local, 4097), cut(remote, 4097), INVALID_PARAM),
        ("far", local, at(remote, remote.address + 1), INVALID_PARAM),
        ("far", at(local, u64::MAX), remote, INVALID_PARAM),
        ("far", cut(local, 4095), remote, MISMATCH),
        ("far", of(local, 77), remote, NOT_FOUND),
        ("far", local, of(remote, 77), NOT_FOUND),
        ("stranger", local, remote, NOT_FOUND),
    ] {
        let refused = near.agent.prepare(true, peer, &[local], &[remote]);
        assert_eq!(
            refused.map(drop).unwrap_err(),
            status,
            "{local:?}, {remote:?}"
        );
    }
    for bad in [&b""[..], b"not a region", &both.far.data[..10]] {
        assert_eq!(
            near.agent.load_region("far", bad).unwrap_err(),
            INVALID_PARAM
        );
    }
    assert_eq!(near.agent.load_agent("another", b"UCX"), INVALID_PARAM);
}

pub fn memory_that_the_peer_deregistered_is_refused_by_it() {
    let mut far = Far::start("far", true);
    let near = Near::meet(&mut far, true, &[]);
    for (is_write, len) in [(true, 100), (true, 100_000), (false, 100_000)] {
        let both = near.memories(&mut far, len, 1);
        let transfer = near.transfer(is_write, &[both.pair(0, 0, len)]);
        assert_eq!(done(&transfer, None), SUCCESS);
        assert_eq!(far.tell(&format!("deregister {}", both.far.number)), "0");
        assert_eq!(done(&transfer, Some(b"never")), NOT_ALLOWED);
    }
    let both = near.memories(&mut far, 100, 4);
    assert_eq!(
        done(
            &near.transfer(false, &[both.pair(0, 0, 100)]),
            Some(b"read")
        ),
        SUCCESS
    );
    assert_eq!(far.notifications(1), [(NAME.to_owned(), b"read".to_vec())]);
}

pub fn a_child_of_fork_has_no_agent() {
    let mut far = Far::start("far", true);
    let near = Near::meet(&mut far, true, &[]);
    let both = near.memories(&mut far, 100_000, 1);
    let read = near.transfer(false, &[both.pair(0, 0, 100_000)]);
    assert_eq!(done(&read, None), SUCCESS);
    assert_eq!(
        far.tell(&format!("fork {}", both.far.number)),
        NOT_ALLOWED.to_string()
    );
    // The end of the child has closed nothing of its parent.
    assert_eq!(done(&read, Some(b"read")), SUCCESS);
    assert_eq!(far.notifications(1).len(), 1);
}

pub fn parameters_are_checked() {
    for (key, value) in [
        ("require", "device"),
        ("way", "pigeon"),
        ("speed", "high"),
        ("connections", "0"),
    ] {
        assert!(
            Agent::open(NAME, true, &[(key, value)]).is_err(),
            "{key}={value}"
        );
    }
    let agent =
        Agent::open(NAME, true, &[("address", "127.0.0.1"), ("timeout", "5")]).expect("an agent");
    assert!(!agent.info().is_empty());
}
