//! epoll: which events are edges, and epolls that watch epolls.

use devmem_posix::abi::{ctl, ev};
use devmem_posix::{EpollEvent, Posix, VirtualTime};
use devmem_uapi::{Errno, MsgFlags};

use super::{Loopback, SendArgs, loopback, table};

fn epoll(posix: &Posix<VirtualTime>) -> i32 {
    posix.call(|t| t.epoll_create(0)).unwrap()
}

fn add(posix: &Posix<VirtualTime>, epfd: i32, fd: i32, events: u32) -> Result<(), Errno> {
    let event = EpollEvent { events, data: 5 };
    posix.call(|t| t.epoll_ctl(epfd, ctl::ADD, fd, event))
}

fn next(posix: &Posix<VirtualTime>, epfd: i32) -> u32 {
    let events = posix.epoll_wait(epfd, 8, 0).unwrap();
    events.iter().fold(0, |bits, event| bits | event.events)
}

/// Sends on `fd` until its queue is full.
fn fill(it: &Loopback, fd: i32) {
    while it.posix.send(fd, SendArgs::new(&[7; 100_000]), 0).is_ok() {
        it.posix.run_now();
    }
}

/// Reads everything that `fd` receives.
fn drain(it: &Loopback, fd: i32) {
    while it.recv(fd, 1 << 20, MsgFlags::empty()).is_ok() {
        it.posix.sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn an_epoll_that_watches_one_direction_has_no_edge_of_the_other() {
    let it = loopback();
    let (reads, writes) = (epoll(&it.posix), epoll(&it.posix));
    add(&it.posix, reads, it.server, ev::IN | ev::ET).unwrap();
    add(&it.posix, writes, it.server, ev::OUT | ev::ET).unwrap();
    assert_eq!(next(&it.posix, writes), ev::OUT);
    it.send(it.client, b"x");
    assert_eq!(next(&it.posix, reads), ev::IN);
    assert_eq!(next(&it.posix, writes), 0);
    fill(&it, it.server);
    assert_eq!(next(&it.posix, writes), 0);
    drain(&it, it.client);
    assert_eq!(next(&it.posix, writes), ev::OUT);
    assert_eq!((next(&it.posix, writes), next(&it.posix, reads)), (0, 0));
    // The end of the stream is an edge of both directions.
    it.posix.call(|t| t.shutdown(it.client, 1)).unwrap();
    it.posix.run_now();
    assert_eq!(next(&it.posix, writes), ev::OUT);
    assert_eq!(next(&it.posix, reads), ev::IN);
}

#[test]
fn new_room_is_an_edge_only_after_the_queue_was_full() {
    let it = loopback();
    let epfd = epoll(&it.posix);
    add(&it.posix, epfd, it.client, ev::OUT | ev::ET).unwrap();
    assert_eq!(next(&it.posix, epfd), ev::OUT);
    for _ in 0..10 {
        it.send(it.client, &[1; 50_000]);
        drain(&it, it.server);
        assert_eq!(next(&it.posix, epfd), 0, "the queue was never full");
    }
    fill(&it, it.client);
    drain(&it, it.server);
    assert_eq!(next(&it.posix, epfd), ev::OUT);
    // The queue also counts as full after poll has reported that there is no room.
    fill(&it, it.client);
    let (again, looks) = (epoll(&it.posix), epoll(&it.posix));
    add(&it.posix, again, it.client, ev::OUT | ev::ET).unwrap();
    add(&it.posix, looks, it.client, ev::OUT).unwrap();
    assert_eq!((next(&it.posix, again), next(&it.posix, looks)), (0, 0));
    drain(&it, it.server);
    assert_eq!(next(&it.posix, again), ev::OUT);
    let twice = (next(&it.posix, looks), next(&it.posix, looks));
    assert_eq!(twice, (ev::OUT, ev::OUT), "it is no edge");
}

#[test]
fn a_one_shot_watch_is_reported_once_until_it_is_modified() {
    let it = loopback();
    let epfd = epoll(&it.posix);
    add(&it.posix, epfd, it.server, ev::IN | ev::ONESHOT).unwrap();
    it.send(it.client, b"x");
    assert_eq!((next(&it.posix, epfd), next(&it.posix, epfd)), (ev::IN, 0));
    it.send(it.client, b"y");
    assert_eq!(next(&it.posix, epfd), 0);
    let event = EpollEvent {
        events: ev::IN | ev::ONESHOT,
        data: 5,
    };
    let rearm = || {
        it.posix
            .call(|t| t.epoll_ctl(epfd, ctl::MOD, it.server, event))
    };
    rearm().unwrap();
    assert_eq!((next(&it.posix, epfd), next(&it.posix, epfd)), (ev::IN, 0));
    drain(&it, it.server);
    rearm().unwrap();
    assert_eq!(next(&it.posix, epfd), 0, "there is nothing");
    it.send(it.client, b"z");
    assert_eq!(next(&it.posix, epfd), ev::IN);
}

#[test]
fn an_epoll_is_ready_for_reading_when_it_has_events() {
    let it = loopback();
    let (inner, middle, outer) = (epoll(&it.posix), epoll(&it.posix), epoll(&it.posix));
    add(&it.posix, outer, middle, ev::IN | ev::ET).unwrap();
    add(&it.posix, middle, inner, ev::IN).unwrap();
    add(&it.posix, inner, it.server, ev::IN).unwrap();
    assert_eq!(next(&it.posix, outer), 0);
    it.send(it.client, b"x");
    assert_eq!(
        (next(&it.posix, outer), next(&it.posix, outer)),
        (ev::IN, 0)
    );
    assert_eq!(next(&it.posix, middle), ev::IN);
    assert_eq!(next(&it.posix, middle), ev::IN, "it is no edge");
    assert_eq!(next(&it.posix, inner), ev::IN);
    it.send(it.client, b"y");
    assert_eq!(next(&it.posix, outer), ev::IN);
    drain(&it, it.server);
    assert_eq!((next(&it.posix, middle), next(&it.posix, inner)), (0, 0));
    it.posix.close(inner).unwrap();
    it.send(it.client, b"z");
    assert_eq!((next(&it.posix, outer), next(&it.posix, middle)), (0, 0));
}

#[test]
fn adding_a_ready_file_to_an_epoll_wakes_the_epoll_that_watches_it() {
    let it = loopback();
    let (inner, outer) = (epoll(&it.posix), epoll(&it.posix));
    add(&it.posix, outer, inner, ev::IN | ev::ET).unwrap();
    it.send(it.client, b"x");
    assert_eq!(next(&it.posix, outer), 0);
    add(&it.posix, inner, it.server, ev::IN).unwrap();
    assert_eq!(next(&it.posix, outer), ev::IN);
}

#[test]
fn at_most_five_epolls_watch_each_other_in_a_row_and_none_in_a_cycle() {
    let (posix, _other) = table();
    let all: Vec<i32> = (0..6).map(|_| epoll(&posix)).collect();
    // From both ends, so that the epolls above count as well as those below.
    for (watcher, watched) in [(0, 1), (3, 4), (1, 2), (2, 3)] {
        assert_eq!(add(&posix, all[watcher], all[watched], ev::IN), Ok(()));
    }
    assert_eq!(add(&posix, all[4], all[5], ev::IN), Err(Errno::ELOOP));
    assert_eq!(add(&posix, all[5], all[0], ev::IN), Err(Errno::ELOOP));
    assert_eq!(add(&posix, all[5], all[1], ev::IN), Ok(()));
    for (watcher, watched) in [(1, 0), (4, 0), (2, 1)] {
        let added = add(&posix, all[watcher], all[watched], ev::IN);
        assert_eq!(added, Err(Errno::ELOOP), "{watcher} {watched}");
    }
    assert_eq!(add(&posix, all[0], all[0], ev::IN), Err(Errno::EINVAL));
    let exclusive = add(&posix, all[0], all[5], ev::IN | ev::EXCLUSIVE);
    assert_eq!(exclusive, Err(Errno::EINVAL));
    let socket = posix.call(|t| t.socket(2, 1, 0)).unwrap();
    assert_eq!(add(&posix, all[4], socket, ev::IN), Ok(()));
}
