//! Scripts in packetdrill's language, played over the shared object: IPv4, IPv6 and IPv4 on IPv6 sockets, payload in
//! host memory and in device memory.

#[path = "scenarios/linux.rs"]
mod linux;
#[path = "scenarios/pipes_and_times.rs"]
mod pipes_and_times;
mod player;
#[path = "scenarios/real_program.rs"]
mod real_program;

use player::{ACCEPTED, Ip, accepted, everywhere, play};

/// A connection opened by us: file 3.
const CONNECTED: &str = "
0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
+0 fcntl(3, F_SETFL, O_RDWR|O_NONBLOCK) = 0
+0 connect(3, ..., ...) = -1 EINPROGRESS (Operation now in progress)
+0 > S 0:0(0) <mss 1460,sackOK,TS val 100 ecr 0,nop,wscale 7>
+.1 < S. 0:0(0) ack 1 win 5792 <mss 1000,sackOK,nop,nop,nop,wscale 7>
+0 > . 1:1(0) ack 1
+0 getsockopt(3, SOL_SOCKET, SO_ERROR, [0], [4]) = 0
";

#[test]
fn the_window_of_a_syn_ack_is_what_its_field_can_hold() {
    everywhere(
        "
0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
+0 bind(3, ..., ...) = 0
+0 listen(3, 1) = 0
+0 < S 0:0(0) win 32792 <mss 1000,sackOK,nop,nop,nop,wscale 7>
+0 > S. 0:0(0) ack 1 win 65535 <mss 1460,nop,nop,sackOK,nop,wscale 7>
",
    );
}

#[test]
fn maxseg_of_a_listener_counts_for_the_connections_that_follow() {
    everywhere(
        "
0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
+0 bind(3, ..., ...) = 0
+0 listen(3, 1) = 0
+0 setsockopt(3, SOL_TCP, TCP_MAXSEG, [1100], 4) = 0
+0 < S 0:0(0) win 32792 <mss 1460,sackOK,nop,nop,nop,wscale 7>
+0 > S. 0:0(0) ack 1 <mss 1100,nop,nop,sackOK,nop,wscale 7>
+.1 < . 1:1(0) ack 1 win 257
+0 accept(3, ..., ...) = 4
+0 getsockopt(4, SOL_TCP, TCP_MAXSEG, [1100], [4]) = 0
",
    );
}

fn connected(rest: &str) {
    everywhere(&format!("{CONNECTED}{rest}"));
}

#[test]
fn a_handshake_opens_either_way() {
    accepted("");
    // SO_ERROR tells of errors alone: the outcome is connect's to tell, once (linux `__inet_stream_connect`).
    connected(
        "+0 connect(3, ..., ...) = 0
         +0 connect(3, ..., ...) = -1 EISCONN (connected)",
    );
}

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
fn the_first_flight_is_ten_segments_and_each_ack_lets_out_two() {
    accepted(
        "
+0 write(4, ..., 20000) = 20000
+0 > P. 1:10001(10000) ack 1
+0 cwnd(4) = 10
+.05 < . 1:1(0) ack 1001 win 257
+0 > P. 10001:12001(2000) ack 1
+.01 < . 1:1(0) ack 3001 win 257
+0 > P. 12001:16001(4000) ack 1
+0 cwnd(4) = 13
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
fn what_comes_out_of_order_is_told_by_sack_and_read_in_order() {
    accepted(
        "
+0 < . 1001:2001(1000) ack 1 win 257
+0 > . 1:1(0) ack 1 <nop,nop,sack 1001:2001>
+0 < . 3001:4001(1000) ack 1 win 257
+0 > . 1:1(0) ack 1 <nop,nop,sack 3001:4001 1001:2001>
+0 < . 2001:3001(1000) ack 1 win 257
+0 > . 1:1(0) ack 1 <nop,nop,sack 1001:4001>
+0 recv(4, ..., 1000, MSG_DONTWAIT) = -1 EAGAIN (nothing in order)
+0 < . 1:1001(1000) ack 1 win 257
+0 > . 1:1(0) ack 4001
+0 read(4, ..., 5000) = 4000
",
    );
}

#[test]
fn what_comes_twice_is_told_by_dsack() {
    accepted(
        "
+0 < . 1:1001(1000) ack 1 win 257
+0 > . 1:1(0) ack 1001
+0 < . 1:1001(1000) ack 1 win 257
+0 > . 1:1(0) ack 1001 <nop,nop,sack 1:1001>
+0 read(4, ..., 5000) = 1000
",
    );
}

#[test]
fn sack_leads_to_a_fast_retransmission() {
    accepted(
        "
+0 write(4, ..., 10000) = 10000
+0 > P. 1:10001(10000) ack 1
+.1 < . 1:1(0) ack 1 win 257 <nop,nop,sack 1001:4001>
+0 > . 1:1001(1000) ack 1
+.1 < . 1:1(0) ack 10001 win 257
",
    );
}

#[test]
fn silence_leads_to_a_tail_probe_and_then_to_timeouts_that_double() {
    accepted(
        "
+0 write(4, ..., 1000) = 1000
+0 > P. 1:1001(1000) ack 1
// The round trip took 100 ms: a probe after twice that and 200 ms for a late ACK, but no later than the timeout of
// 300 ms, which starts anew then.
+.3 > P. 1:1001(1000) ack 1
+.3 > P. 1:1001(1000) ack 1
+.6 > P. 1:1001(1000) ack 1
+1.2 > P. 1:1001(1000) ack 1
+.1 < . 1:1(0) ack 1001 win 257
",
    );
}

#[test]
fn a_syn_is_repeated_each_second_at_first_and_at_doubling_intervals_then() {
    everywhere(
        "
0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
+0 fcntl(3, F_SETFL, O_RDWR|O_NONBLOCK) = 0
+0 connect(3, ..., ...) = -1 EINPROGRESS (Operation now in progress)
+0 > S 0:0(0) <mss 1460,sackOK,TS val 100 ecr 0,nop,wscale 7>
+1 > S 0:0(0) <mss 1460,sackOK,TS val 1100 ecr 0,nop,wscale 7>
+1 > S 0:0(0) <mss 1460,sackOK,TS val 2100 ecr 0,nop,wscale 7>
+1 > S 0:0(0) <mss 1460,sackOK,TS val 3100 ecr 0,nop,wscale 7>
+1 > S 0:0(0) <mss 1460,sackOK,TS val 4100 ecr 0,nop,wscale 7>
+1 > S 0:0(0) <mss 1460,sackOK,TS val 5100 ecr 0,nop,wscale 7>
+2 > S 0:0(0) <mss 1460,sackOK,TS val 7100 ecr 0,nop,wscale 7>
+4 > S 0:0(0) <mss 1460,sackOK,TS val 11100 ecr 0,nop,wscale 7>
+0 connect(3, ..., ...) = -1 EALREADY (still)
+.1 < R. 0:0(0) ack 1 win 0
+0 poll([{fd=3, events=POLLOUT, revents=POLLOUT|POLLERR|POLLHUP}], 1, 0) = 1
+0 getsockopt(3, SOL_SOCKET, SO_ERROR, [111], [4]) = 0
",
    );
}

#[test]
fn a_syn_ack_is_repeated_after_1_3_seconds() {
    everywhere(
        "
0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
+0 bind(3, ..., ...) = 0
+0 listen(3, 1) = 0
+0 < S 0:0(0) win 32792 <mss 1000>
+0 > S. 0:0(0) ack 1 <mss 1460>
+1 > S. 0:0(0) ack 1 <mss 1460>
+2 > S. 0:0(0) ack 1 <mss 1460>
+.1 < . 1:1(0) ack 1 win 257
+0 accept(3, ..., ...) = 4
",
    );
}

#[test]
fn a_closed_window_is_probed_and_opens_again() {
    accepted(
        "
+0 write(4, ..., 3000) = 3000
+0 > P. 1:3001(3000) ack 1
+.1 < . 1:1(0) ack 3001 win 0
+0 write(4, ..., 1000) = 1000
+.3 > . 3000:3000(0) ack 1
+.1 < . 1:1(0) ack 3001 win 0
+.5 > . 3000:3000(0) ack 1
+.1 < . 1:1(0) ack 3001 win 257
+0 > P. 3001:4001(1000) ack 1
",
    );
}

#[test]
fn a_full_receive_buffer_closes_the_window_and_reading_opens_it() {
    let script = "
0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
+0 setsockopt(3, SOL_SOCKET, SO_RCVBUF, [8000], 4) = 0
+0 bind(3, ..., ...) = 0
+0 listen(3, 1) = 0
+0 < S 0:0(0) win 32792 <mss 1000>
+0 > S. 0:0(0) ack 1 win 7300 <mss 1460>
+.1 < . 1:1(0) ack 1 win 257
+0 accept(3, ..., ...) = 4
+0 < P. 1:4001(4000) ack 1 win 257
+0 > . 1:1(0) ack 4001 win 3300
+0 < P. 4001:7301(3300) ack 1 win 257
+0 > . 1:1(0) ack 7301 win 0
+.1 read(4, ..., 8000) = 7300
+0 > . 1:1(0) ack 7301 win 8000
";
    everywhere(script);
}

#[test]
fn we_close_first() {
    accepted(
        "
+0 close(4) = 0
+0 > F. 1:1(0) ack 1
+.1 < . 1:1(0) ack 2 win 257
+.1 < F. 1:1(0) ack 2 win 257
+0 > . 2:2(0) ack 2
// TIME-WAIT: a repeated FIN is acknowledged again.
+1 < F. 1:1(0) ack 2 win 257
+0 > . 2:2(0) ack 2
",
    );
}

#[test]
fn the_peer_closes_first_and_its_fin_is_acknowledged_after_what_may_answer_it() {
    accepted(
        "
+0 < P. 1:1001(1000) ack 1 win 257
+0 > . 1:1(0) ack 1001
+0 read(4, ..., 1000) = 1000
+0 < F. 1001:1001(0) ack 1 win 257
+.04 > . 1:1(0) ack 1002
+0 read(4, ..., 1000) = 0
+0 write(4, ..., 1000) = 1000
+0 > P. 1:1001(1000) ack 1002
+.1 < . 1002:1002(0) ack 1001 win 257
+0 close(4) = 0
+0 > F. 1001:1001(0) ack 1002
+.1 < . 1002:1002(0) ack 1002 win 257
// Nothing is left of it.
+.1 < . 1002:1002(0) ack 1002 win 257
+0 > R 1002:1002(0) win 0
",
    );
    // A FIN before any data is acknowledged at once.
    accepted(
        "
+0 < F. 1:1(0) ack 1 win 257
+0 > . 1:1(0) ack 2
+0 close(4) = 0
+0 > F. 1:1(0) ack 2
+.1 < . 2:2(0) ack 2 win 257
",
    );
}

#[test]
fn both_close_at_once() {
    accepted(
        "
+0 close(4) = 0
+0 > F. 1:1(0) ack 1
+0 < F. 1:1(0) ack 1 win 257
+0 > . 2:2(0) ack 2
+.1 < . 2:2(0) ack 2 win 257
",
    );
}

#[test]
fn half_a_connection_can_be_shut() {
    accepted(
        "
+0 shutdown(4, SHUT_WR) = 0
+0 > F. 1:1(0) ack 1
+.1 < . 1:1(0) ack 2 win 257
+0 write(4, ..., 100) = -1 EPIPE (shut)
+0 < P. 1:1001(1000) ack 2 win 257
+0 > . 2:2(0) ack 1001
+0 read(4, ..., 2000) = 1000
+.1 < F. 1001:1001(0) ack 2 win 257
+0 > . 2:2(0) ack 1002
+0 read(4, ..., 2000) = 0
",
    );
}

#[test]
fn unread_data_and_linger_0_end_in_a_reset() {
    accepted(
        "
+0 < P. 1:1001(1000) ack 1 win 257
+0 > . 1:1(0) ack 1001
+0 close(4) = 0
+0 > R. 1:1(0) ack 1001
",
    );
    accepted(
        "
+0 setsockopt(4, SOL_SOCKET, SO_LINGER, {onoff=1, linger=0}, 8) = 0
+0 close(4) = 0
+0 > R. 1:1(0) ack 1
",
    );
}

#[test]
fn a_reset_is_an_error_told_once() {
    accepted(
        "
+0 < R. 1:1(0) ack 1 win 257
+0 poll([{fd=4, events=POLLIN|POLLOUT, revents=POLLIN|POLLOUT|POLLERR|POLLHUP}], 1, 0) = 1
+0 read(4, ..., 1000) = -1 ECONNRESET (reset)
+0 read(4, ..., 1000) = 0
+0 write(4, ..., 1000) = -1 EPIPE (over)
",
    );
    // Nobody listens: a RST, numbered by what it answers.
    everywhere(
        "
0 < S 0:0(0) win 32792 <mss 1000>
+0 > R. 0:0(0) ack 1 win 0
",
    );
}

#[test]
fn two_syns_that_cross_open_a_connection() {
    everywhere(
        "
0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
+0 fcntl(3, F_SETFL, O_RDWR|O_NONBLOCK) = 0
+0 connect(3, ..., ...) = -1 EINPROGRESS (Operation now in progress)
+0 > S 0:0(0) <mss 1460,sackOK,TS val 100 ecr 0,nop,wscale 7>
+0 < S 0:0(0) win 5792 <mss 1000,sackOK,nop,nop,nop,wscale 7>
+0 > S. 0:0(0) ack 1 <mss 1460,nop,nop,sackOK,nop,wscale 7>
+.1 < S. 0:0(0) ack 1 win 5792 <mss 1000,sackOK,nop,nop,nop,wscale 7>
+0 > . 1:1(0) ack 1
+0 write(3, ..., 1000) = 1000
+0 > P. 1:1001(1000) ack 1
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
fn keepalive_asks_and_gives_up() {
    accepted(
        "
+0 setsockopt(4, SOL_SOCKET, SO_KEEPALIVE, [1], 4) = 0
+0 setsockopt(4, SOL_TCP, TCP_KEEPIDLE, [5], 4) = 0
+0 setsockopt(4, SOL_TCP, TCP_KEEPINTVL, [2], 4) = 0
+0 setsockopt(4, SOL_TCP, TCP_KEEPCNT, [2], 4) = 0
+5 > . 0:0(0) ack 1
+2 > . 0:0(0) ack 1
+2 > R. 1:1(0) ack 1
+0 read(4, ..., 1000) = -1 ETIMEDOUT (dead)
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
fn ack_policy_is_that_of_linux_quick_then_delayed() {
    let mut script = String::new();
    // Sixteen segments are acknowledged at once.
    for at in 0..16u32 {
        let (from, to) = (1 + at * 1000, 1001 + at * 1000);
        script += &format!("+0 < . {from}:{to}(1000) ack 1 win 257\n+0 > . 1:1(0) ack {to}\n");
    }
    script += "
+0 < . 16001:17001(1000) ack 1 win 257
+.04 > . 1:1(0) ack 17001
+0 < . 17001:18001(1000) ack 1 win 257
+0 < . 18001:19001(1000) ack 1 win 257
+0 > . 1:1(0) ack 19001
";
    accepted(&script);
}

#[test]
fn a_user_timeout_ends_a_connection_that_hears_nothing() {
    accepted(
        "
+0 setsockopt(4, SOL_TCP, TCP_USER_TIMEOUT, [1000], 4) = 0
+0 write(4, ..., 1000) = 1000
+0 > P. 1:1001(1000) ack 1
+.3 > P. 1:1001(1000) ack 1
+.3 > P. 1:1001(1000) ack 1
+1 write(4, ..., 1000) = -1 ETIMEDOUT (nobody answers)
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

#[test]
fn a_listener_may_wait_for_data_before_it_accepts() {
    let listening = "
0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
+0 fcntl(3, F_SETFL, O_RDWR|O_NONBLOCK) = 0
+0 setsockopt(3, SOL_TCP, TCP_DEFER_ACCEPT, [2], 4) = 0
+0 getsockopt(3, SOL_TCP, TCP_DEFER_ACCEPT, [3], [4]) = 0
+0 bind(3, ..., ...) = 0
+0 listen(3, 1) = 0
+0 < S 0:0(0) win 32792 <mss 1000>
+0 > S. 0:0(0) ack 1 <mss 1460>
+.1 < . 1:1(0) ack 1 win 257
+0 accept(3, ..., ...) = -1 EAGAIN (no data yet)
";
    everywhere(&format!(
        "{listening}
+.1 < P. 1:101(100) ack 1 win 257
+0 > . 1:1(0) ack 101
+0 accept(3, ..., ...) = 4
+0 read(4, ..., 1000) = 100
"
    ));
    // None comes: towards the end of the time each timeout gives a last chance.
    everywhere(&format!(
        "{listening}
+.9 > S. 0:0(0) ack 1 <mss 1460>
+.1 < . 1:1(0) ack 1 win 257
+0 accept(3, ..., ...) = -1 EAGAIN (no data yet)
+1.9 > S. 0:0(0) ack 1 <mss 1460>
+.1 < . 1:1(0) ack 1 win 257
+0 accept(3, ..., ...) = 4
"
    ));
}

/// A connection accepted from a peer that asks for ECN: files 3 and 4.
const ACCEPTED_WITH_ECN: &str = "
0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
+0 setsockopt(3, SOL_SOCKET, SO_REUSEADDR, [1], 4) = 0
+0 bind(3, ..., ...) = 0
+0 listen(3, 1) = 0
+0 < SEW 0:0(0) win 32792 <mss 1000,sackOK,nop,nop,nop,wscale 7>
+0 > [noecn] S.E 0:0(0) ack 1 <mss 1460,nop,nop,sackOK,nop,wscale 7>
+.1 < . 1:1(0) ack 1 win 257
+0 accept(3, ..., ...) = 4
";

#[test]
fn ecn_is_granted_and_marks_are_echoed_until_cwr() {
    everywhere(&format!(
        "{ACCEPTED_WITH_ECN}
+0 < [ect0] P. 1:1001(1000) ack 1 win 257
+0 > [noecn] . 1:1(0) ack 1001
+0 < [ce] P. 1001:2001(1000) ack 1 win 257
+0 > [noecn] .E 1:1(0) ack 2001
+0 read(4, ..., 2000) = 2000
+0 write(4, ..., 100) = 100
+0 > [ect0] P.E 1:101(100) ack 2001
+.05 < [ect0] P.W 2001:3001(1000) ack 101 win 257
+0 > [noecn] . 101:101(0) ack 3001
"
    ));
}

#[test]
fn an_echo_reduces_the_window_once_and_is_answered_with_cwr() {
    everywhere(&format!(
        "{ACCEPTED_WITH_ECN}
+0 write(4, ..., 20000) = 20000
+0 > [ect0] P. 1:10001(10000) ack 1
+0 cwnd(4) = 10
+.05 < .E 1:1(0) ack 1001 win 257
+0 > [ect0] .W 10001:11001(1000) ack 1
+.01 < .E 1:1(0) ack 10001 win 257
+0 > [ect0] P. 11001:17001(6000) ack 1
+0 cwnd(4) = 7
+.05 < . 1:1(0) ack 11001 win 257
+0 > [ect0] . 17001:18001(1000) ack 1
"
    ));
}

#[test]
fn what_is_sent_again_is_not_ecn_capable() {
    everywhere(&format!(
        "{ACCEPTED_WITH_ECN}
+0 write(4, ..., 4000) = 4000
+0 > [ect0] P. 1:4001(4000) ack 1
+.05 < . 1:1(0) ack 1 win 257 <nop,nop,sack 1001:4001>
+0 > [noecn] . 1:1001(1000) ack 1
+.05 < . 1:1(0) ack 4001 win 257
+0 write(4, ..., 1000) = 1000
+0 > [ect0] P.W 4001:5001(1000) ack 1
"
    ));
}

/// A SYN that asks for ECN.
const ASKING: &str = "
0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
+0 fcntl(3, F_SETFL, O_RDWR|O_NONBLOCK) = 0
+0 connect(3, ..., ...) = -1 EINPROGRESS (Operation now in progress)
+0 > [noecn] SEW 0:0(0) <mss 1460,sackOK,TS val 100 ecr 0,nop,wscale 7>
";

#[test]
fn ecn_is_asked_for_where_it_is_switched_on() {
    for ip in [Ip::V4, Ip::V6, Ip::Mapped] {
        for (answer, field) in [("S.E", "[ect0]"), ("S.", "[noecn]"), ("S.EW", "[noecn]")] {
            let script = format!(
                "{ASKING}
+.1 < {answer} 0:0(0) ack 1 win 5792 <mss 1000,sackOK,nop,nop,nop,wscale 7>
+0 > [noecn] . 1:1(0) ack 1
+0 write(3, ..., 100) = 100
+0 > {field} P. 1:101(100) ack 1
"
            );
            play(&script, ip, "tcp_ecn=1");
        }
        let repeated = format!(
            "{ASKING}
+1 > [noecn] S 0:0(0) <mss 1460,sackOK,TS val 1100 ecr 0,nop,wscale 7>
+.1 < S. 0:0(0) ack 1 win 5792 <mss 1000,sackOK,nop,nop,nop,wscale 7>
+0 > [noecn] . 1:1(0) ack 1
"
        );
        play(&repeated, ip, "tcp_ecn=1");
        let accurate = "
0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
+0 bind(3, ..., ...) = 0
+0 listen(3, 1) = 0
+0 < SEWA 0:0(0) win 32792 <mss 1000,sackOK,nop,nop,nop,wscale 7>
+0 > [noecn] S.W 0:0(0) ack 1 <mss 1460,ECN e1b 1 ceb 0 e0b 1,nop,nop,nop,sackOK,nop,wscale 7>
+.1 < [ect0] .W 1:1(0) ack 1 win 257 <ECN e1b 1 ceb 0 e0b 1,nop>
+0 accept(3, ..., ...) = 4
+0 < [ce] P.EA 1:1001(1000) ack 1 win 257 <ECN e1b 1 ceb 0 e0b 1,nop>
+0 > [ect0] .WA 1:1(0) ack 1001 <ECN e1b 1 ceb 1000 e0b 1,nop>
+0 read(4, ..., 1000) = 1000
+0 write(4, ..., 988) = 988
+0 > [ect0] P.WA 1:989(988) ack 1001 <ECN e1b 1 ceb 1000 e0b 1,nop>
";
        play(accurate, ip, "tcp_ecn=3");
        let refused = "
0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
+0 bind(3, ..., ...) = 0
+0 listen(3, 1) = 0
+0 < SEW 0:0(0) win 32792 <mss 1000>
+0 > S. 0:0(0) ack 1 <mss 1460>
";
        play(refused, ip, "tcp_ecn=0");
    }
}

#[test]
fn a_program_cannot_touch_the_ecn_field() {
    let script = format!(
        "{ACCEPTED_WITH_ECN}
+0 setsockopt(4, SOL_IP, IP_TOS, [3], 4) = 0
+0 getsockopt(4, SOL_IP, IP_TOS, [0], [4]) = 0
+0 write(4, ..., 100) = 100
+0 > [ect0] P. 1:101(100) ack 1
+.01 < [ect0] P. 1:1001(1000) ack 101 win 257
+0 > [noecn] . 101:101(0) ack 1001
"
    );
    play(&script, Ip::V4, "");
}
