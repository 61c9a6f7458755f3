//! What leaves in which packets, and zero-copy sends.

use super::*;

#[test]
fn data_goes_both_ways() {
    accepted(
        "
+0 recv(4, ..., 1000, MSG_DONTWAIT) = -1 EAGAIN (nothing there)
+0 < P. 1:1001(1000) ack 1 win 257
+0 > . 1:1(0) ack 1001
+0 ioctl(4, SIOCINQ, [1000]) = 0
+0 recv(4, ..., 100, MSG_PEEK) = 100
+0 read(4, ..., 2000) = 1000
+0 write(4, ..., 2500) = 2500
+0 > P. 1:2501(2500) ack 1001
+0 ioctl(4, SIOCOUTQ, [2500]) = 0
+.1 < . 1001:1001(0) ack 2501 win 257
+0 ioctl(4, SIOCOUTQ, [0]) = 0
",
    );
    connected(
        "
+0 write(3, ..., 1000) = 1000
+0 > P. 1:1001(1000) ack 1
+.1 < P. 1:501(500) ack 1001 win 257
+0 > . 1001:1001(0) ack 501
+0 read(3, ..., 1000) = 500
",
    );
}

#[test]
fn a_blocking_read_waits_for_data() {
    accepted(
        "
+0...0.200 read(4, ..., 1000) = 500
+.2 < P. 1:501(500) ack 1 win 257
+0 > . 1:1(0) ack 501
+0...0.300 recv(4, ..., 1000, MSG_WAITALL) = 1000
+.1 < P. 501:1001(500) ack 1 win 257
+0 > . 1:1(0) ack 1001
+.2 < P. 1001:1501(500) ack 1 win 257
+0 > . 1:1(0) ack 1501
",
    );
}

#[test]
fn zero_copy_sends_are_reported_in_ranges() {
    for (ip, level) in [(Ip::V4, "CMSG_LEVEL_IP"), (Ip::V6, "CMSG_LEVEL_IPV6")] {
        let completion = |first: u32, last: u32| {
            format!(
                "recvmsg(4, {{msg_name(...)=..., msg_iov(1)=[{{..., 0}}], msg_flags=MSG_ERRQUEUE, \
                 msg_control=[{{cmsg_level={level}, cmsg_type=CMSG_TYPE_RECVERR, cmsg_data={{ee_errno=0, \
                 ee_origin=SO_EE_ORIGIN_ZEROCOPY, ee_type=0, ee_code=SO_EE_CODE_ZEROCOPY_COPIED, ee_info={first}, \
                 ee_data={last}}}}}]}}, MSG_ERRQUEUE) = 0"
            )
        };
        let script = format!(
            "{ACCEPTED}
+0 setsockopt(4, SOL_SOCKET, SO_ZEROCOPY, [1], 4) = 0
+0 sendmsg(4, {{msg_name(...)=..., msg_iov(1)=[{{..., 4000}}], msg_flags=0}}, MSG_ZEROCOPY) = 4000
+0 > P. 1:4001(4000) ack 1
+.1 < . 1:1(0) ack 4000 win 257
+0 poll([{{fd=4, events=POLLERR, revents=0}}], 1, 0) = 0
+0 < . 1:1(0) ack 4001 win 257
+0 poll([{{fd=4, events=POLLERR, revents=POLLERR}}], 1, 0) = 1
+0 {}
+0 sendmsg(4, {{msg_name(...)=..., msg_iov(1)=[{{..., 1000}}], msg_flags=0}}, MSG_ZEROCOPY) = 1000
+0 > P. 4001:5001(1000) ack 1
+0 sendmsg(4, {{msg_name(...)=..., msg_iov(1)=[{{..., 1000}}], msg_flags=0}}, MSG_ZEROCOPY) = 1000
+0 > P. 5001:6001(1000) ack 1
+.1 < . 1:1(0) ack 6001 win 257
+0 {}
+0 recv(4, ..., 10, MSG_ERRQUEUE) = -1 EAGAIN (all told)
",
            completion(0, 0),
            completion(1, 2)
        );
        for flags in ["", "devmem=1"] {
            play(&script, ip, flags);
        }
    }
}

#[test]
fn each_completion_is_an_edge_and_room_is_one_only_after_there_was_none() {
    let accepted_zerocopy = "
+0 setsockopt(4, SOL_SOCKET, SO_ZEROCOPY, [1], 4) = 0
+0 fcntl(4, F_SETFL, O_RDWR|O_NONBLOCK) = 0
+0 epoll_create(1) = 5
+0 epoll_ctl(5, EPOLL_CTL_ADD, 4, {events=EPOLLOUT|EPOLLET, fd=4}) = 0
+0 epoll_wait(5, {events=EPOLLOUT, fd=4}, 1, 0) = 1
+0 < P. 1:101(100) ack 1 win 257
+0 > . 1:1(0) ack 101
+0 epoll_wait(5, {events=0, fd=4}, 1, 0) = 0
+0 sendmsg(4, {msg_name(...)=..., msg_iov(1)=[{..., 4000}], msg_flags=0}, MSG_ZEROCOPY) = 4000
+0 > P. 1:4001(4000) ack 101
+0 < . 101:101(0) ack 4001 win 257
+0 sendmsg(4, {msg_name(...)=..., msg_iov(1)=[{..., 4000}], msg_flags=0}, MSG_ZEROCOPY) = 4000
+0 > P. 4001:8001(4000) ack 101
+0 < . 101:101(0) ack 8001 win 257
+0 epoll_wait(5, {events=EPOLLERR|EPOLLOUT, fd=4}, 1, 0) = 1
+0 epoll_wait(5, {events=0, fd=4}, 1, 0) = 0
+0 sendmsg(4, {msg_name(...)=..., msg_iov(1)=[{..., 4000}], msg_flags=0}, MSG_ZEROCOPY) = 4000
+0 > P. 8001:12001(4000) ack 101
+0 < . 101:101(0) ack 12001 win 257
+0 epoll_wait(5, {events=EPOLLERR|EPOLLOUT, fd=4}, 1, 0) = 1
+0 epoll_wait(5, {events=0, fd=4}, 1, 0) = 0
";
    accepted(accepted_zerocopy);
    accepted(
        "
+0 setsockopt(4, SOL_SOCKET, SO_SNDBUF, [8000], 4) = 0
+0 fcntl(4, F_SETFL, O_RDWR|O_NONBLOCK) = 0
+0 epoll_create(1) = 5
+0 epoll_ctl(5, EPOLL_CTL_ADD, 4, {events=EPOLLOUT|EPOLLET, fd=4}) = 0
+0 epoll_wait(5, {events=EPOLLOUT, fd=4}, 1, 0) = 1
+0 write(4, ..., 16000) = 16000
+0 > P. 1:10001(10000) ack 1
+0 < . 1:1(0) ack 10001 win 257
+0 > P. 10001:16001(6000) ack 1
+0 < . 1:1(0) ack 16001 win 257
+0 epoll_wait(5, {events=0, fd=4}, 1, 0) = 0
+0 write(4, ..., 17000) = 17000
+0 > P. 16001:33001(17000) ack 1
+0 write(4, ..., 1) = -1 EAGAIN (full)
+0 < . 1:1(0) ack 17001 win 257
+0 epoll_wait(5, {events=0, fd=4}, 1, 0) = 0
+0 < . 1:1(0) ack 33001 win 257
+0 epoll_wait(5, {events=EPOLLOUT, fd=4}, 1, 0) = 1
+0 epoll_wait(5, {events=0, fd=4}, 1, 0) = 0
",
    );
}

#[test]
fn a_zero_copy_packet_has_17_pieces_at_most() {
    let sendmsg = |flags: &str| {
        let pieces = ["{..., 1}"; 18].join(", ");
        format!(
            "sendmsg(4, {{msg_name(...)=..., msg_iov(18)=[{pieces}], msg_flags=0}}, {flags}) = 18"
        )
    };
    accepted(&format!(
        "
+0 setsockopt(4, SOL_SOCKET, SO_ZEROCOPY, [1], 4) = 0
+0 {}
+0 > P. 1:19(18) ack 1
+0 < . 1:1(0) ack 19 win 257
+0 {}
+0 > P. 19:36(17) ack 1
+0 < . 1:1(0) ack 36 win 257
+0 > P. 36:37(1) ack 1
+0 < . 1:1(0) ack 37 win 257
",
        sendmsg("0"),
        sendmsg("MSG_ZEROCOPY")
    ));
}

#[test]
fn nagle_holds_small_segments_back_and_cork_holds_all_of_them() {
    accepted(
        "
+0 write(4, ..., 400) = 400
+0 > P. 1:401(400) ack 1
+0 write(4, ..., 400) = 400
+.05 < . 1:1(0) ack 401 win 257
+0 > P. 401:801(400) ack 1
+.05 < . 1:1(0) ack 801 win 257
+0 setsockopt(4, SOL_TCP, TCP_CORK, [1], 4) = 0
+0 write(4, ..., 400) = 400
+.1 write(4, ..., 400) = 400
+0 setsockopt(4, SOL_TCP, TCP_CORK, [0], 4) = 0
+0 > P. 801:1601(800) ack 1
+.05 < . 1:1(0) ack 1601 win 257
+0 send(4, ..., 400, MSG_MORE) = 400
+.283 > P. 1601:2001(400) ack 1
",
    );
    accepted(
        "
+0 setsockopt(4, SOL_TCP, TCP_NODELAY, [1], 4) = 0
+0 write(4, ..., 400) = 400
+0 > P. 1:401(400) ack 1
+0 write(4, ..., 400) = 400
+0 > P. 401:801(400) ack 1
",
    );
}

#[test]
fn epoll_tells_levels_edges_and_single_shots() {
    accepted(
        "
+0 epoll_create(1) = 5
+0 epoll_ctl(5, EPOLL_CTL_ADD, 4, {events=EPOLLIN|EPOLLET, fd=4}) = 0
+0 epoll_wait(5, {events=EPOLLIN, fd=4}, 1, 0) = 0
+0 < P. 1:501(500) ack 1 win 257
+0 > . 1:1(0) ack 501
+0 epoll_wait(5, {events=EPOLLIN, fd=4}, 1, 0) = 1
+0 epoll_wait(5, {events=EPOLLIN, fd=4}, 1, 0) = 0
+0 < P. 501:1001(500) ack 1 win 257
+0 > . 1:1(0) ack 1001
+0 epoll_wait(5, {events=EPOLLIN, fd=4}, 1, 0) = 1
+0 epoll_ctl(5, EPOLL_CTL_MOD, 4, {events=EPOLLIN, fd=4}) = 0
+0 epoll_wait(5, {events=EPOLLIN, fd=4}, 1, 0) = 1
+0 epoll_wait(5, {events=EPOLLIN, fd=4}, 1, 0) = 1
+0 epoll_ctl(5, EPOLL_CTL_MOD, 4, {events=EPOLLIN|EPOLLONESHOT, fd=4}) = 0
+0 epoll_wait(5, {events=EPOLLIN, fd=4}, 1, 0) = 1
+0 epoll_wait(5, {events=EPOLLIN, fd=4}, 1, 0) = 0
+0 read(4, ..., 1000) = 1000
+0 epoll_ctl(5, EPOLL_CTL_MOD, 4, {events=EPOLLIN, fd=4}) = 0
+0...0.100 epoll_wait(5, {events=EPOLLIN|EPOLLRDHUP, fd=4}, 1, 1000) = 1
+.1 < P. 1001:1501(500) ack 1 win 257
"
        .replace("EPOLLIN|EPOLLRDHUP", "EPOLLIN")
        .as_str(),
    );
}

#[test]
fn options_that_are_not_done_are_refused() {
    accepted(
        "
+0 setsockopt(4, SOL_TCP, TCP_FASTOPEN, [1], 4) = -1 EINVAL (not of a connection)
+0 setsockopt(4, SOL_SOCKET, SO_TIMESTAMPING, [4096], 4) = -1 EINVAL (no statistics)
+0 setsockopt(4, SOL_SOCKET, SO_TIMESTAMPING, [SOF_TIMESTAMPING_OPT_ID_TCP], 4) = -1 EINVAL (of what numbers)
+0 setsockopt(3, SOL_SOCKET, SO_TIMESTAMPING, [SOF_TIMESTAMPING_OPT_ID], 4) = -1 EINVAL (no stream)
+0 setsockopt(4, SOL_TCP, 9999, [1], 4) = -1 ENOPROTOOPT (no)
+0 getsockopt(4, SOL_TCP, 9999, [1], [4]) = -1 ENOPROTOOPT (no)
+0 setsockopt(4, SOL_TCP, TCP_MAXSEG, [40], 4) = -1 EINVAL (too small)
+0 read(3, ..., 1000) = -1 ENOTCONN (a listener)
+0 write(3, ..., 1000) = -1 EPIPE (a listener)
+0 shutdown(4, 7) = -1 EINVAL (how)
",
    );
}

#[test]
fn maxseg_bounds_what_is_announced_and_sent() {
    everywhere(
        "
0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
+0 setsockopt(3, SOL_TCP, TCP_MAXSEG, [500], 4) = 0
+0 bind(3, ..., ...) = 0
+0 listen(3, 1) = 0
+0 < S 0:0(0) win 32792 <mss 1000>
+0 > S. 0:0(0) ack 1 <mss 500>
+.1 < . 1:1(0) ack 1 win 32792
+0 accept(3, ..., ...) = 4
+0 getsockopt(4, SOL_TCP, TCP_MAXSEG, [500], [4]) = 0
",
    );
}

#[test]
fn flags_change_the_stack_and_bad_ones_are_refused() {
    let script = "
0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
+0 bind(3, ..., ...) = 0
+0 listen(3, 1) = 0
+0 < S 0:0(0) win 32792 <mss 1000,sackOK,nop,nop,nop,wscale 7>
+0 > S. 0:0(0) ack 1 <mss 1460,nop,wscale 8>
+.1 < . 1:1(0) ack 1 win 257
+0 accept(3, ..., ...) = 4
+0 write(4, ..., 2500) = 2500
+0 > . 1:1001(1000) ack 1
+0 > P. 1001:2001(1000) ack 1
+0 > P. 2001:2501(500) ack 1
";
    play(script, Ip::V4, "sack=0,tso=0,rmem=15728640");
    let refused = player::Loaded::new("speed=9");
    assert_eq!(refused.socket(2, 1, 0), Err(devmem_uapi::Errno::EINVAL.0));
}

#[test]
fn a_record_that_ends_shares_no_packet_with_the_next() {
    accepted(
        "
+0 write(4, ..., 10000) = 10000
+0 > P. 1:10001(10000) ack 1
+0 send(4, ..., 400, MSG_EOR) = 400
+0 send(4, ..., 400, MSG_EOR) = 400
+0 send(4, ..., 400, 0) = 400
+.05 < . 1:1(0) ack 10001 win 257
+0 > P. 10001:10401(400) ack 1
+0 > P. 10401:10801(400) ack 1
+.05 < . 1:1(0) ack 10801 win 257
+0 > P. 10801:11201(400) ack 1
",
    );
}
