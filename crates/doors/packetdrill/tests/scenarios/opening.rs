//! Handshakes, listeners and refusals.

use super::*;

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
