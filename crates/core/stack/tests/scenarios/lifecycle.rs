//! Connections from SYN to the last ACK.

use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use super::common::{Bound, PORT, drops};
use super::{DoorSocket, Pair, Sink, Source};
use devmem_uapi::{Errno, MsgFlags};
use netsim::{Door, PairConfig, Pattern, Progress, Side};
use stack::{Readiness, SendMsg, SocketOption};
use tcp::StateKind;

const DEVMEM: MsgFlags = MsgFlags::SOCK_DEVMEM;

fn local(side: Side) -> SocketAddr {
    SocketAddr::new(side.ipv4(), PORT)
}

fn state(end: &impl Door<Socket = DoorSocket>, socket: DoorSocket) -> StateKind {
    end.info(socket).unwrap().unwrap().state
}

#[test]
fn connecting_to_a_closed_port_is_refused_at_once() {
    let mut pair = Pair::new(&PairConfig::default());
    let now = pair.now();
    let id = pair.a.connect(local(Side::B), now).unwrap();
    pair.run_for(Duration::from_millis(10));
    assert!(
        pair.a
            .readiness(id)
            .unwrap()
            .contains(Readiness::ERROR | Readiness::READABLE | Readiness::WRITABLE)
    );
    let refused = pair
        .a
        .sendmsg(id, &SendMsg::new(b"x"), MsgFlags::empty())
        .unwrap_err();
    assert_eq!(refused, Errno::ECONNREFUSED);
    // Reported once; then receives return the end of the stream.
    assert_eq!(
        pair.a
            .sendmsg(id, &SendMsg::new(b"x"), MsgFlags::empty())
            .unwrap_err(),
        Errno::EPIPE
    );
    assert_eq!(drops(&pair.b)["tcp_no_socket"], 1);
    pair.a.close(id).unwrap();
    pair.finish();
}

#[test]
fn connecting_is_ehostunreach_if_no_neighbour_answers() {
    let mut pair = Pair::new(&PairConfig::default());
    let now = pair.now();
    let id = pair
        .a
        .connect("10.77.0.99:1".parse().unwrap(), now)
        .unwrap();
    pair.run_for(Duration::from_secs(5));
    assert_eq!(pair.a.take_error(id), Ok(Some(Errno::EHOSTUNREACH)));
    assert!(drops(&pair.a)["neighbor_failed"] > 0);
    pair.a.close(id).unwrap();
    pair.finish();
}

#[test]
fn connecting_where_no_route_leads_is_refused_with_the_reason() {
    let mut pair = Pair::new(&PairConfig::default());
    let now = pair.now();
    for (to, errno) in [
        ("8.8.8.8:1", Errno::ENETUNREACH),
        ("10.77.0.255:1", Errno::ENETUNREACH),
        ("224.0.0.1:1", Errno::ENETUNREACH),
        ("10.77.0.2:0", Errno::ECONNREFUSED),
    ] {
        let refused = pair.a.connect(to.parse().unwrap(), now).unwrap_err();
        assert_eq!(refused, errno, "{to}");
    }
    pair.finish();
}

#[test]
fn a_peer_that_vanishes_is_given_up_after_the_user_timeout() {
    let mut bound = Bound::new(&PairConfig::default());
    let timeout = SocketOption::UserTimeout(Some(Duration::from_secs(5)));
    bound.pair.a.set_option(bound.sender, timeout).unwrap();
    bound.pair.cable().pull();
    bound
        .pair
        .a
        .sendmsg(bound.sender, &SendMsg::new(&[1; 100]), MsgFlags::empty())
        .unwrap();
    bound.pair.run_for(Duration::from_secs(4));
    assert_eq!(bound.pair.a.take_error(bound.sender), Ok(None));
    bound.pair.run_for(Duration::from_secs(6));
    // The result of neighbour resolution is more precise than a timeout.
    assert_eq!(
        bound.pair.a.take_error(bound.sender),
        Ok(Some(Errno::EHOSTUNREACH))
    );
    bound.pair.cable().plug();
    bound.finish();
}

#[test]
fn listening_is_refused_with_the_reason() {
    let mut pair = Pair::new(&PairConfig {
        max_sockets: 2,
        ..PairConfig::default()
    });
    let taken = local(Side::B);
    let listener = pair.b.listen(taken, 1).unwrap();
    assert_eq!(pair.b.listen(taken, 1), Err(Errno::EADDRINUSE));
    let any = "0.0.0.0:5201".parse().unwrap();
    assert_eq!(pair.b.listen(any, 1), Err(Errno::EADDRINUSE));
    let foreign: SocketAddr = "10.77.0.9:1".parse().unwrap();
    assert_eq!(pair.b.listen(foreign, 1), Err(Errno::EADDRNOTAVAIL));
    let free = pair.b.listen("0.0.0.0:0".parse().unwrap(), 1).unwrap();
    assert!(pair.b.local_addr(free).unwrap().port() >= stack::EPHEMERAL_FIRST);
    assert_eq!(
        pair.b.listen("0.0.0.0:1".parse().unwrap(), 1),
        Err(Errno::ENFILE)
    );
    let now = pair.now();
    assert_eq!(pair.b.connect(local(Side::A), now), Err(Errno::ENFILE));
    for id in [listener, free] {
        pair.b.close(id).unwrap();
    }
    assert!(pair.b.listen(taken, 1).is_ok());
}

#[test]
fn a_wildcard_listener_serves_both_families() {
    let mut pair = Pair::new(&PairConfig::default());
    let listener = pair.b.listen("[::]:5201".parse().unwrap(), 4).unwrap();
    let mut ends = Vec::new();
    for ip in [Side::B.ipv4(), Side::B.ipv6()] {
        ends.push(pair.connect_to(Side::B, listener, SocketAddr::new(ip, PORT)));
    }
    for (ours, theirs) in ends {
        pair.a.close(theirs).unwrap();
        pair.b.close(ours).unwrap();
    }
    pair.b.close(listener).unwrap();
    pair.finish();
}

#[test]
fn the_accept_queue_is_bounded_and_syns_beyond_it_wait() {
    let mut pair = Pair::new(&PairConfig::default());
    let listener = pair.b.listen(local(Side::B), 3).unwrap();
    let mut openers = Vec::new();
    for _ in 0..8 {
        let now = pair.now();
        openers.push(pair.a.connect(local(Side::B), now).unwrap());
        pair.run_for(Duration::from_millis(2));
    }
    assert!(drops(&pair.b)["tcp_accept_queue_full"] >= 5);
    assert!(
        pair.b
            .readiness(listener)
            .unwrap()
            .contains(Readiness::READABLE)
    );
    let mut accepted = Vec::new();
    let end = pair.now() + Duration::from_secs(60);
    pair.run(|pair| {
        accepted.extend(pair.b.accept(listener).ok().map(|(id, _)| id));
        if accepted.len() == 8 || pair.now() > end {
            Progress::Done
        } else {
            Progress::Waiting
        }
    })
    .unwrap();
    assert_eq!(accepted.len(), 8);
    assert_eq!(pair.b.accept(listener), Err(Errno::EAGAIN));
    assert_eq!(pair.b.accept(accepted[0]), Err(Errno::EINVAL));
    openers.iter().for_each(|&id| pair.a.close(id).unwrap());
    accepted.iter().for_each(|&id| pair.b.close(id).unwrap());
    pair.b.close(listener).unwrap();
    pair.finish();
}

#[test]
fn closing_a_listener_resets_connections_in_the_accept_queue() {
    let mut pair = Pair::new(&PairConfig::default());
    let listener = pair.b.listen(local(Side::B), 3).unwrap();
    let now = pair.now();
    let opener = pair.a.connect(local(Side::B), now).unwrap();
    pair.run_for(Duration::from_millis(10));
    assert_eq!(state(&pair.a, opener), StateKind::Established);
    pair.b.close(listener).unwrap();
    pair.run_for(Duration::from_millis(10));
    assert_eq!(pair.a.take_error(opener), Ok(Some(Errno::ECONNRESET)));
    pair.a.close(opener).unwrap();
    assert_eq!(pair.b.stats().sockets, 0);
    pair.finish();
}

#[test]
fn half_close_lets_the_other_direction_go_on() {
    let mut bound = Bound::new(&PairConfig::default());
    bound
        .pair
        .b
        .shutdown(bound.receiver, Shutdown::Write)
        .unwrap();
    bound.pair.run_for(Duration::from_millis(10));
    assert!(
        bound
            .pair
            .a
            .readiness(bound.sender)
            .unwrap()
            .contains(Readiness::READ_CLOSED)
    );
    bound.send(5000);
    let received = bound.recv(8192, 8, DEVMEM).unwrap();
    assert_eq!(received.outcome.bytes, 5000);
    bound.give_back(&received);
    let refused = bound
        .pair
        .b
        .sendmsg(bound.receiver, &SendMsg::new(b"x"), MsgFlags::empty())
        .unwrap_err();
    assert_eq!(refused, Errno::EPIPE);
    bound.finish();
}

#[test]
fn shutdown_for_reading_reads_as_the_end_of_the_stream() {
    let mut bound = Bound::new(&PairConfig::default());
    bound
        .pair
        .b
        .shutdown(bound.receiver, Shutdown::Read)
        .unwrap();
    assert_eq!(bound.recv(100, 1, DEVMEM).unwrap().outcome.bytes, 0);
    bound.finish();
}

#[test]
fn closing_with_unread_data_resets_the_peer() {
    let mut bound = Bound::new(&PairConfig::default());
    bound.send(1000);
    bound.pair.b.close(bound.receiver).unwrap();
    bound.pair.run_for(Duration::from_millis(10));
    assert_eq!(
        bound.pair.a.take_error(bound.sender),
        Ok(Some(Errno::ECONNRESET))
    );
    assert_eq!(bound.pair.b.stats().sockets, 0);
    bound.finish();
}

#[test]
fn data_for_a_closed_reader_resets_the_peer() {
    let mut bound = Bound::new(&PairConfig::default());
    bound.pair.b.close(bound.receiver).unwrap();
    bound.pair.run_for(Duration::from_millis(10));
    bound
        .pair
        .a
        .sendmsg(bound.sender, &SendMsg::new(&[1; 100]), MsgFlags::empty())
        .unwrap();
    bound.pair.run_for(Duration::from_millis(10));
    assert_eq!(
        bound.pair.a.take_error(bound.sender),
        Ok(Some(Errno::EPIPE))
    );
    assert_eq!(drops(&bound.pair.b)["tcp_reader_gone"], 1);
    bound.finish();
}

#[test]
fn an_error_is_reported_once_and_after_earlier_data() {
    let mut bound = Bound::new(&PairConfig::default());
    bound.send(1000);
    bound.pair.a.abort(bound.sender).unwrap();
    bound.pair.run_for(Duration::from_millis(10));
    let received = bound.recv(4096, 8, DEVMEM).unwrap();
    assert_eq!(received.outcome.bytes, 1000);
    bound.give_back(&received);
    assert_eq!(bound.recv(4096, 8, DEVMEM), Err(Errno::ECONNRESET));
    assert_eq!(bound.recv(4096, 8, DEVMEM).unwrap().outcome.bytes, 0);
    bound.finish();
}

#[test]
fn close_in_flight_comes_to_rest_with_all_memory_home() {
    for close_after in [0, 1, 50_000, 300_000] {
        for receiver_closes in [false, true] {
            let mut pair = Pair::new(&PairConfig {
                seed: close_after,
                ..PairConfig::default()
            });
            let id = pair.bind(Side::B, 1 << 20, netmem::NiovSize::DEFAULT, &[0]);
            let (receiver, sender) = pair.connect(Side::B, Side::B.ipv4(), PORT);
            let pattern = Pattern::new(1);
            let mut source = Source::new(sender, pattern, 1_000_000, 10_000);
            let mut sink = Sink::new(receiver, pattern).with_memory(id, pair.dmabuf(Side::B, id));
            pair.run(|pair| {
                if source.sent() > close_after {
                    return Progress::Done;
                }
                source.run(&mut pair.a).and(sink.run(&mut pair.b))
            })
            .unwrap();
            match receiver_closes {
                true => pair.b.close(receiver).unwrap(),
                false => pair.a.close(sender).unwrap(),
            }
            pair.run_for(Duration::from_millis(100));
            let _ = pair.b.close(receiver);
            let _ = pair.a.close(sender);
            drop(sink);
            pair.run_until_idle().unwrap();
            assert_eq!(
                (pair.a.stats().sockets, pair.b.stats().sockets),
                (0, 0),
                "{close_after} {receiver_closes}"
            );
            pair.finish();
        }
    }
}

#[test]
fn a_closed_socket_is_ebadf_for_every_call() {
    let mut bound = Bound::new(&PairConfig::default());
    let id = bound.receiver;
    let end = &mut bound.pair.b;
    end.close(id).unwrap();
    let no_delay = SocketOption::NoDelay(true);
    let outcomes = [
        end.close(id),
        end.abort(id),
        end.shutdown(id, Shutdown::Both),
        end.accept(id).map(drop),
        end.sendmsg(id, &SendMsg::new(b"x"), MsgFlags::empty())
            .map(drop),
        end.dontneed(id, &[]).map(drop),
        end.dontneed_bytes(id, &[1]).map(drop),
        end.set_option(id, no_delay),
        end.readiness(id).map(drop),
        end.info(id).map(drop),
        end.local_addr(id).map(drop),
        end.take_error(id).map(drop),
    ];
    assert_eq!(outcomes, [Err(Errno::EBADF); 12]);
    assert_eq!(bound.recv(1, 1, DEVMEM).unwrap_err(), Errno::EBADF);
    bound.finish();
}

#[test]
fn an_orphan_in_fin_wait_2_ends_after_a_minute_and_its_memory_is_home_before() {
    let mut bound = Bound::new(&PairConfig::default());
    bound.send(1000);
    let received = bound.recv(4096, 8, DEVMEM).unwrap();
    assert_eq!(received.tokens(), [1]);
    // With the token outstanding; the peer never closes its side.
    bound.pair.b.close(bound.receiver).unwrap();
    let queue = steer::RxQueueId(0);
    let niovs = bound
        .pair
        .b
        .stack_mut()
        .nic()
        .queue_info(queue)
        .unwrap()
        .niovs;
    // The net_iov that is being filled counts as used.
    assert!(bound.pair.b.rx_space(queue).free_niovs + 1 >= niovs);
    bound.pair.run_for(Duration::from_secs(30));
    assert_eq!(bound.pair.b.stats().orphans, 1);
    bound.pair.run_for(Duration::from_secs(31));
    assert_eq!(
        (bound.pair.b.stats().orphans, bound.pair.b.stats().sockets),
        (0, 0)
    );
    assert_eq!(bound.pair.b.promised(queue), 0);
    bound.finish();
}

#[test]
fn an_orphan_whose_peer_keeps_the_window_shut_ends_too() {
    let mut pair = Pair::new(&PairConfig {
        host_mem_bytes: 256 << 10,
        ..PairConfig::default()
    });
    let (receiver, sender) = pair.connect(Side::B, Side::B.ipv4(), PORT);
    let mut source = Source::new(sender, Pattern::new(1), 1_000_000, 10_000);
    let end = pair.now() + Duration::from_secs(5);
    pair.run(|pair| {
        let _ = source.run(&mut pair.a);
        if pair.now() > end {
            Progress::Done
        } else {
            Progress::Waiting
        }
    })
    .unwrap();
    pair.a.close(sender).unwrap();
    assert_eq!(pair.a.stats().orphans, 1);
    pair.run_for(2 * tcp::config::ORPHAN_TIMEOUT);
    assert_eq!((pair.a.stats().orphans, pair.a.stats().sockets), (0, 0));
    // Received bytes can still be read; a send then fails, because the peer has closed.
    let mut sink = Sink::new(receiver, Pattern::new(1));
    loop {
        match sink.receive_once(&mut pair.b) {
            Ok(bytes) => assert!(bytes > 0, "a reset is no orderly end"),
            Err(error) => break assert_eq!(error, Errno::EAGAIN),
        }
    }
    pair.b
        .sendmsg(receiver, &SendMsg::new(b"x"), MsgFlags::empty())
        .unwrap();
    pair.run_for(Duration::from_millis(10));
    assert_eq!(pair.b.take_error(receiver), Ok(Some(Errno::ECONNRESET)));
    pair.b.close(receiver).unwrap();
    pair.finish();
}

#[test]
fn orphans_are_bounded_and_one_too_many_is_reset() {
    let mut pair = Pair::new(&PairConfig {
        max_orphans: 2,
        ..PairConfig::default()
    });
    let listener = pair.b.listen(local(Side::B), 10).unwrap();
    let ends: Vec<_> = (0..5)
        .map(|_| pair.connect_to(Side::B, listener, local(Side::B)))
        .collect();
    for (_, opener) in &ends {
        pair.a.close(*opener).unwrap();
    }
    pair.run_for(Duration::from_millis(10));
    assert_eq!(pair.a.stats().orphans, 2);
    let reset = ends
        .iter()
        .filter(|(id, _)| pair.b.take_error(*id) == Ok(Some(Errno::ECONNRESET)))
        .count();
    assert_eq!(reset, 3);
    ends.iter().for_each(|(id, _)| pair.b.close(*id).unwrap());
    pair.b.close(listener).unwrap();
    pair.finish();
}

#[test]
fn time_wait_keeps_the_name_for_a_minute_and_a_new_connection_may_have_it_earlier() {
    let mut pair = Pair::new(&PairConfig::default());
    let (receiver, sender) = pair.connect(Side::B, Side::B.ipv4(), PORT);
    pair.a.close(sender).unwrap();
    pair.run_for(Duration::from_millis(10));
    pair.b.close(receiver).unwrap();
    pair.run_for(Duration::from_secs(30));
    assert_eq!(
        (pair.a.stats().connections, pair.b.stats().connections),
        (1, 0)
    );
    assert_eq!(pair.a.stats().orphans, 0);
    pair.run_for(Duration::from_secs(31));
    assert_eq!(pair.a.stats().connections, 0);
    pair.finish();
}

#[test]
fn keepalive_finds_a_dead_peer() {
    let mut pair = Pair::new(&PairConfig::default());
    let (receiver, sender) = pair.connect(Side::B, Side::B.ipv4(), PORT);
    let keepalive = tcp::Keepalive {
        idle: Duration::from_secs(10),
        interval: Duration::from_secs(1),
        count: 3,
    };
    pair.b
        .set_option(receiver, SocketOption::KeepAlive(Some(keepalive)))
        .unwrap();
    pair.run_for(Duration::from_secs(100));
    assert_eq!(state(&pair.b, receiver), StateKind::Established);
    pair.cable().pull();
    pair.run_for(Duration::from_secs(20));
    assert_eq!(pair.b.take_error(receiver), Ok(Some(Errno::ETIMEDOUT)));
    pair.cable().plug();
    pair.a.abort(sender).unwrap();
    pair.b.close(receiver).unwrap();
    pair.finish();
}
