//! Connections from SYN to the last ACK, and everything that can come between.

mod common;

use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use common::{Bound, PORT, drops};
use devmem_uapi::{Errno, MsgFlags};
use netsim::{Pair, PairConfig, Pattern, Progress, RawPeer, RawSegment, Side, Sink, Source};
use stack::{
    AcceptError, ConnectError, ListenError, OptionName, Readiness, RecvError, SendError, SendMsg,
    SocketOption,
};
use tcp::StateKind;
use wire::TcpFlags;

const DEVMEM: MsgFlags = MsgFlags::SOCK_DEVMEM;

fn local(side: Side) -> SocketAddr {
    SocketAddr::new(side.ipv4(), PORT)
}

fn state(stack: &stack::Stack, id: stack::SocketId) -> StateKind {
    stack.info(id).unwrap().unwrap().state
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
    assert_eq!(refused.errno(), Errno::ECONNREFUSED);
    // Told once; then the socket is merely over.
    assert_eq!(
        pair.a
            .sendmsg(id, &SendMsg::new(b"x"), MsgFlags::empty())
            .unwrap_err()
            .errno(),
        Errno::EPIPE
    );
    assert_eq!(drops(&pair.b)["tcp_no_socket"], 1);
    pair.a.close(id).unwrap();
    pair.finish();
}

#[test]
fn connecting_to_nobody_is_unreachable_when_no_neighbour_answers() {
    let mut pair = Pair::new(&PairConfig::default());
    let now = pair.now();
    let id = pair
        .a
        .connect("10.77.0.99:1".parse().unwrap(), now)
        .unwrap();
    pair.run_for(Duration::from_secs(5));
    assert_eq!(
        pair.a.take_error(id),
        Ok(Some(tcp::TcpError::HostUnreachable))
    );
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
        ("10.77.0.255:1", Errno::EACCES),
        ("224.0.0.1:1", Errno::EACCES),
        ("10.77.0.2:0", Errno::ECONNREFUSED),
    ] {
        let refused = pair.a.connect(to.parse().unwrap(), now).unwrap_err();
        assert_eq!(refused.errno(), errno, "{to}: {refused}");
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
    // What the neighbour cache found out says more than the silence does.
    assert_eq!(
        bound.pair.a.take_error(bound.sender),
        Ok(Some(tcp::TcpError::HostUnreachable))
    );
    bound.pair.cable().plug();
    bound.finish();
}

#[test]
fn a_neighbour_that_does_not_speak_tcp_times_out() {
    let mut peer = RawPeer::new();
    let now = peer.now();
    let id = peer
        .stack
        .connect(SocketAddr::new(Side::A.ipv4(), 1), now)
        .unwrap();
    let mut syns = 0;
    for _ in 0..131 {
        peer.run_for(Duration::from_secs(1));
        syns += peer
            .answer_arp()
            .iter()
            .filter(|frame| frame.tcp().is_some())
            .count();
    }
    assert_eq!(
        (syns, peer.stack.take_error(id)),
        (7, Ok(Some(tcp::TcpError::TimedOut)))
    );
}

#[test]
fn listening_is_refused_with_the_reason() {
    let mut pair = Pair::new(&PairConfig {
        max_sockets: 2,
        ..PairConfig::default()
    });
    let taken = local(Side::B);
    let listener = pair.b.listen(taken, 1).unwrap();
    assert_eq!(pair.b.listen(taken, 1), Err(ListenError::AddrInUse(taken)));
    let any = "0.0.0.0:5201".parse().unwrap();
    assert_eq!(pair.b.listen(any, 1), Err(ListenError::AddrInUse(any)));
    let foreign: SocketAddr = "10.77.0.9:1".parse().unwrap();
    assert_eq!(
        pair.b.listen(foreign, 1),
        Err(ListenError::AddrNotAvailable(foreign.ip()))
    );
    let free = pair.b.listen("0.0.0.0:0".parse().unwrap(), 1).unwrap();
    assert!(pair.b.local_addr(free).unwrap().port() >= stack::EPHEMERAL_FIRST);
    assert_eq!(
        pair.b.listen("0.0.0.0:1".parse().unwrap(), 1),
        Err(ListenError::TooManySockets { limit: 2 })
    );
    let now = pair.now();
    assert_eq!(
        pair.b.connect(local(Side::A), now),
        Err(ConnectError::TooManySockets { limit: 2 })
    );
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
            .contains(Readiness::ACCEPTABLE)
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
    assert_eq!(pair.b.accept(listener), Err(AcceptError::WouldBlock));
    assert_eq!(
        pair.b.accept(accepted[0]),
        Err(AcceptError::NotListening { id: accepted[0] })
    );
    openers.iter().for_each(|&id| pair.a.close(id).unwrap());
    accepted.iter().for_each(|&id| pair.b.close(id).unwrap());
    pair.b.close(listener).unwrap();
    pair.finish();
}

#[test]
fn a_flood_of_syns_is_answered_by_cookies_and_a_real_peer_gets_through() {
    let mut peer = RawPeer::new();
    peer.introduce();
    let theirs = local(Side::B);
    let listener = peer.stack.listen(theirs, 4).unwrap();
    let syn = |port: u16| RawSegment {
        seq: u32::from(port),
        flags: TcpFlags::SYN,
        ..RawSegment::default()
    };
    let from = |port| SocketAddr::new(Side::A.ipv4(), port);
    for port in 1000..3000 {
        peer.send_tcp(from(port), theirs, &syn(port));
    }
    // Every one is answered, and only the first few are remembered.
    let answers: Vec<_> = std::iter::from_fn(|| peer.receive_tcp()).collect();
    assert_eq!(answers.len(), 2000);
    assert_eq!(
        (peer.stack.stats().sockets, peer.stack.stats().connections),
        (1, 0)
    );
    // One of those not remembered proves that it is there.
    let (headers, _) = &answers[1500];
    let syn_ack = headers.tcp().unwrap();
    let port = syn_ack.dst_port;
    let seq = u32::from(port) + 1;
    let ack = RawSegment {
        seq,
        ack: syn_ack.seq + 1,
        ..RawSegment::default()
    };
    peer.send_tcp(from(port), theirs, &ack);
    let (id, remote) = peer.stack.accept(listener).unwrap();
    assert_eq!(remote, from(port));
    // A guess does not.
    let guess = RawSegment {
        seq,
        ack: syn_ack.seq + 2,
        ..RawSegment::default()
    };
    peer.forget();
    peer.send_tcp(from(port + 1), theirs, &guess);
    let (headers, _) = peer.receive_tcp().unwrap();
    assert!(headers.tcp().unwrap().flags.contains(TcpFlags::RST));
    peer.stack.abort(id).unwrap();
}

#[test]
fn closing_a_listener_resets_what_waits_to_be_accepted() {
    let mut pair = Pair::new(&PairConfig::default());
    let listener = pair.b.listen(local(Side::B), 3).unwrap();
    let now = pair.now();
    let opener = pair.a.connect(local(Side::B), now).unwrap();
    pair.run_for(Duration::from_millis(10));
    assert_eq!(state(&pair.a, opener), StateKind::Established);
    pair.b.close(listener).unwrap();
    pair.run_for(Duration::from_millis(10));
    assert_eq!(pair.a.take_error(opener), Ok(Some(tcp::TcpError::Reset)));
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
    assert_eq!(
        (refused, refused.errno()),
        (SendError::Shutdown { id: bound.receiver }, Errno::EPIPE)
    );
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
        Ok(Some(tcp::TcpError::Reset))
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
        Ok(Some(tcp::TcpError::BrokenPipe))
    );
    assert_eq!(drops(&bound.pair.b)["tcp_reader_gone"], 1);
    bound.finish();
}

#[test]
fn an_error_is_told_once_and_after_the_data_that_came_before() {
    let mut bound = Bound::new(&PairConfig::default());
    bound.send(1000);
    bound.pair.a.abort(bound.sender).unwrap();
    bound.pair.run_for(Duration::from_millis(10));
    let received = bound.recv(4096, 8, DEVMEM).unwrap();
    assert_eq!(received.outcome.bytes, 1000);
    bound.give_back(&received);
    assert_eq!(
        bound.recv(4096, 8, DEVMEM),
        Err(RecvError::Connection(tcp::TcpError::Reset))
    );
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
fn a_stale_id_is_ebadf_for_every_call() {
    let mut bound = Bound::new(&PairConfig::default());
    let id = bound.receiver;
    let stack = &mut bound.pair.b;
    stack.close(id).unwrap();
    let errnos = [
        stack.close(id).unwrap_err().errno(),
        stack.abort(id).unwrap_err().errno(),
        stack.shutdown(id, Shutdown::Both).unwrap_err().errno(),
        stack.accept(id).unwrap_err().errno(),
        stack
            .sendmsg(id, &SendMsg::new(b"x"), MsgFlags::empty())
            .unwrap_err()
            .errno(),
        stack.dontneed(id, &[]).unwrap_err().errno(),
        stack.dontneed_bytes(id, &[1]).unwrap_err().errno(),
        stack
            .set_option(id, SocketOption::NoDelay(true))
            .unwrap_err()
            .errno(),
        stack.option(id, OptionName::NoDelay).unwrap_err().errno(),
        stack.readiness(id).unwrap_err().errno(),
        stack.info(id).unwrap_err().errno(),
        stack.local_addr(id).unwrap_err().errno(),
        stack.peer_addr(id).unwrap_err().errno(),
        stack.take_error(id).unwrap_err().errno(),
    ];
    assert_eq!(errnos, [Errno::EBADF; 14]);
    assert_eq!(bound.recv(1, 1, DEVMEM).unwrap_err().errno(), Errno::EBADF);
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
    let niovs = bound.pair.b.nic().queue_info(queue).unwrap().niovs;
    // The net_iov that is being filled counts as used.
    assert!(bound.pair.b.nic_mut().rx_space(queue).free_niovs + 1 >= niovs);
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
    // What arrived is still there to be read; who then speaks learns that nobody is there any more.
    let mut sink = Sink::new(receiver, Pattern::new(1));
    loop {
        match sink.receive_once(&mut pair.b) {
            Ok(bytes) => assert!(bytes > 0, "a reset is no orderly end"),
            Err(error) => break assert_eq!(error, RecvError::WouldBlock),
        }
    }
    pair.b
        .sendmsg(receiver, &SendMsg::new(b"x"), MsgFlags::empty())
        .unwrap();
    pair.run_for(Duration::from_millis(10));
    assert_eq!(pair.b.take_error(receiver), Ok(Some(tcp::TcpError::Reset)));
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
        .filter(|(id, _)| pair.b.take_error(*id) == Ok(Some(tcp::TcpError::Reset)))
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

/// Opens a connection from a hand-made peer, whose SYN has the number `iss`; returns it and the ISN of its other end.
fn open_by_hand(
    peer: &mut RawPeer,
    (ours, theirs): (SocketAddr, SocketAddr),
    listener: stack::SocketId,
    iss: u32,
) -> (stack::SocketId, u32) {
    let syn = RawSegment {
        seq: iss,
        flags: TcpFlags::SYN,
        ..RawSegment::default()
    };
    peer.send_tcp(ours, theirs, &syn);
    let (headers, _) = peer.receive_tcp().expect("a SYN-ACK");
    let syn_ack = *headers.tcp().unwrap();
    assert!(
        syn_ack.flags.contains(TcpFlags::SYN | TcpFlags::ACK),
        "{syn_ack:?}"
    );
    let ack = RawSegment {
        seq: iss + 1,
        ack: syn_ack.seq + 1,
        ..RawSegment::default()
    };
    peer.send_tcp(ours, theirs, &ack);
    let (id, remote) = peer.stack.accept(listener).unwrap();
    assert_eq!(remote, ours);
    (id, syn_ack.seq)
}

/// Answers the FIN of the other end, which sent `iss` and no data, with a FIN: it is in TIME-WAIT then.
fn finish_by_hand(
    peer: &mut RawPeer,
    (ours, theirs): (SocketAddr, SocketAddr),
    (seq, iss): (u32, u32),
) {
    let fin = RawSegment {
        seq,
        ack: iss + 2,
        flags: TcpFlags::FIN | TcpFlags::ACK,
        ..RawSegment::default()
    };
    peer.send_tcp(ours, theirs, &fin);
    peer.forget();
}

#[test]
fn a_syn_for_a_connection_in_time_wait_opens_a_new_one() {
    let mut peer = RawPeer::new();
    peer.introduce();
    let ends = (SocketAddr::new(Side::A.ipv4(), 4000), local(Side::B));
    let listener = peer.stack.listen(ends.1, 4).unwrap();
    let (id, iss) = open_by_hand(&mut peer, ends, listener, 1000);
    // B closes first and ends in TIME-WAIT.
    peer.stack.close(id).unwrap();
    peer.poll();
    finish_by_hand(&mut peer, ends, (1001, iss));
    assert_eq!(
        (peer.stack.stats().connections, peer.stack.stats().orphans),
        (1, 0)
    );
    let (again, new_iss) = open_by_hand(&mut peer, ends, listener, 50_000);
    assert!(
        new_iss.wrapping_sub(iss) < 1 << 31,
        "the ISN goes on from the old connection's"
    );
    assert_eq!(peer.stack.stats().connections, 1);
    peer.stack.abort(again).unwrap();
}

#[test]
fn a_socket_whose_name_went_to_a_new_connection_is_closed_without_taking_it_back() {
    let mut peer = RawPeer::new();
    peer.introduce();
    let ends = (SocketAddr::new(Side::A.ipv4(), 4000), local(Side::B));
    let listener = peer.stack.listen(ends.1, 4).unwrap();
    let (old, iss) = open_by_hand(&mut peer, ends, listener, 1000);
    // B ends its half first, and its program keeps the socket.
    peer.stack.shutdown(old, Shutdown::Both).unwrap();
    peer.poll();
    finish_by_hand(&mut peer, ends, (1001, iss));
    assert_eq!(state(&peer.stack, old), StateKind::TimeWait);
    let (new, new_iss) = open_by_hand(&mut peer, ends, listener, 50_000);
    peer.stack.close(old).unwrap();
    // The old connection's TIME-WAIT is over.
    peer.run_for(Duration::from_secs(61));
    peer.forget();
    let data = RawSegment {
        seq: 50_001,
        ack: new_iss + 1,
        payload: b"still here",
        ..RawSegment::default()
    };
    peer.send_tcp(ends.0, ends.1, &data);
    // After a minute B asks where we are first.
    let frames = peer.answer_arp();
    let answer = frames.iter().find_map(|headers| headers.tcp());
    assert_eq!(answer.expect("an ACK").flags, TcpFlags::ACK);
    assert_eq!(common::readable(&peer.stack, new), 10);
    assert_eq!(
        (peer.stack.stats().connections, peer.stack.stats().orphans),
        (1, 0)
    );
    peer.stack.abort(new).unwrap();
}

#[test]
fn a_link_with_the_largest_mtu_takes_connections() {
    let mut peer = RawPeer::with(|nic, _| nic.mtu = u16::MAX);
    peer.introduce();
    let ends = (SocketAddr::new(Side::A.ipv4(), 4000), local(Side::B));
    let listener = peer.stack.listen(ends.1, 4).unwrap();
    let (id, _) = open_by_hand(&mut peer, ends, listener, 1000);
    peer.stack.abort(id).unwrap();
}

#[test]
fn what_waits_for_a_link_that_tells_of_room_is_not_tried_before() {
    let mut peer = RawPeer::new();
    peer.introduce();
    let ends = (SocketAddr::new(Side::A.ipv4(), 4000), local(Side::B));
    let listener = peer.stack.listen(ends.1, 4).unwrap();
    let (id, _) = open_by_hand(&mut peer, ends, listener, 1000);
    peer.fill_link(true);
    // More packets than the NIC's queue takes, so that some wait in the connection, too.
    let rings = nic::Rings {
        tx_packets: 2,
        ..peer.stack.nic().rings()
    };
    peer.stack.nic_mut().set_rings(rings).unwrap();
    let nodelay = SocketOption::NoDelay(true);
    peer.stack.set_option(id, nodelay).unwrap();
    let mut sent = 0;
    for _ in 0..5 {
        let piece = SendMsg::new(&[7; 500]);
        sent += peer.stack.sendmsg(id, &piece, MsgFlags::EOR).unwrap();
    }
    let now = peer.now();
    peer.stack.poll(now);
    assert!(peer.stack.nic().is_told_of_room());
    assert!(!peer.stack.wants_flush());
    let next = peer.stack.next_deadline().expect("a retransmission timer");
    assert!(next > now + Duration::from_millis(100), "{next:?}");
    peer.fill_link(false);
    peer.poll();
    let mut got = 0;
    while let Some((_, payload)) = peer.receive_tcp() {
        got += payload.len();
    }
    assert_eq!(got, sent, "it all leaves as soon as the link takes it");
    peer.stack.abort(id).unwrap();
}

#[test]
fn events_name_each_changed_socket_once() {
    let mut bound = Bound::new(&PairConfig::default());
    bound.pair.b.take_events().for_each(drop);
    bound.send(100);
    bound.send(100);
    let events: Vec<_> = bound.pair.b.take_events().collect();
    assert_eq!(events, [bound.receiver]);
    assert_eq!(bound.pair.b.take_events().count(), 0);
    let received = bound.recv(4096, 8, DEVMEM).unwrap();
    bound.give_back(&received);
    let events: Vec<_> = bound.pair.b.take_events().collect();
    assert_eq!(events, [bound.receiver], "it is not readable any more");
    bound.finish();
}

#[test]
fn events_of_a_connection_begin_when_a_program_accepts_it() {
    let mut pair = Pair::new(&PairConfig::default());
    let listener = pair.b.listen(local(Side::B), 3).unwrap();
    let now = pair.now();
    let opener = pair.a.connect(local(Side::B), now).unwrap();
    pair.run_for(Duration::from_millis(10));
    pair.a
        .sendmsg(opener, &SendMsg::new(b"early"), MsgFlags::empty())
        .unwrap();
    pair.run_for(Duration::from_millis(10));
    assert_eq!(pair.b.take_events().collect::<Vec<_>>(), [listener]);
    let (id, _) = pair.b.accept(listener).unwrap();
    let events: Vec<_> = pair.b.take_events().collect();
    assert!(
        events.contains(&id) && events.contains(&listener),
        "{events:?}"
    );
    assert!(pair.b.readiness(id).unwrap().contains(Readiness::READABLE));
    for (side, id) in [(Side::A, opener), (Side::B, id), (Side::B, listener)] {
        pair.side(side).close(id).unwrap();
    }
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
    assert_eq!(
        pair.b.take_error(receiver),
        Ok(Some(tcp::TcpError::TimedOut))
    );
    pair.cable().plug();
    pair.a.abort(sender).unwrap();
    pair.b.close(receiver).unwrap();
    pair.finish();
}
