//! Losses, timers and windows.

use super::*;

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
