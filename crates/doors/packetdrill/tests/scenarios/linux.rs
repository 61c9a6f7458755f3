//! What Linux does where an RFC leaves a choice or says otherwise, as its own scripts made us notice.

use super::player::{Ip, play};
use super::{ACCEPTED, CONNECTED, accepted, connected, everywhere};

/// A connection with timestamps, accepted: files 3 and 4.
const WITH_TIMESTAMPS: &str = "
0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
+0 bind(3, ..., ...) = 0
+0 listen(3, 1) = 0
+0 < S 0:0(0) win 30000 <mss 1000,sackOK,TS val 500 ecr 0>
+0 > S. 0:0(0) ack 1 <mss 1460,sackOK,TS val 70 ecr 500>
+.05 < . 1:1(0) ack 1 win 30000 <nop,nop,TS val 550 ecr 70>
+0 accept(3, ..., ...) = 4
";

#[test]
fn a_segment_without_its_timestamp_is_taken() {
    everywhere(&format!(
        "{WITH_TIMESTAMPS}
+0 < P. 1:301(300) ack 1 win 30000
+0 > . 1:1(0) ack 301 <nop,nop,TS val 120 ecr 550>
+0 read(4, ..., 500) = 300
"
    ));
}

#[test]
fn a_reset_that_we_decide_on_has_a_timestamp_and_continues_our_numbers() {
    everywhere(&format!(
        "{WITH_TIMESTAMPS}
+0 < P. 1:301(300) ack 1 win 30000 <nop,nop,TS val 551 ecr 70>
+0 > . 1:1(0) ack 301 <nop,nop,TS val 120 ecr 551>
+0 close(4) = 0
+0 > R. 1:1(0) ack 301 <nop,nop,TS val 120 ecr 551>
"
    ));
}

#[test]
fn data_for_a_reader_who_closed_draws_a_reset_that_answers_its_ack() {
    accepted(
        "
+0 close(4) = 0
+0 > F. 1:1(0) ack 1
+.02 < P. 1:101(100) ack 1 win 257
+0 > R 1:1(0)
",
    );
}

#[test]
fn a_reset_of_a_half_open_connection_that_is_not_exact_draws_an_ack() {
    everywhere(
        "
0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
+0 bind(3, ..., ...) = 0
+0 listen(3, 1) = 0
+0 < S 0:0(0) win 2000 <mss 1000,sackOK,nop,nop>
+0 > S. 0:0(0) ack 1 <mss 1460,nop,nop,sackOK>
+0 < R 30:30(0) win 2000
+0 > . 1:1(0) ack 1
+0 < S 0:0(0) win 2000 <mss 1000,sackOK,nop,nop>
+0 > S. 0:0(0) ack 1 <mss 1460,nop,nop,sackOK>
+0 < . 1:1(0) ack 1 win 2000
+0 accept(3, ..., ...) = 4
",
    );
}

#[test]
fn the_ack_of_a_fin_reports_no_duplicates() {
    accepted(
        "
+0 < P. 1:501(500) ack 1 win 257
+0 > . 1:1(0) ack 501
+0 read(4, ..., 500) = 500
+0 < FP. 1:501(500) ack 1 win 257
+0 > . 1:1(0) ack 502
",
    );
}

#[test]
fn announced_bytes_wait_for_the_next_ack_at_most() {
    accepted(
        "
+0 setsockopt(4, SOL_TCP, TCP_NODELAY, [1], 4) = 0
+0 write(4, ..., 300) = 300
+0 > P. 1:301(300) ack 1
+0 send(4, ..., 50, MSG_MORE) = 50
+.02 < . 1:1(0) ack 301 win 257
+0 > . 301:351(50) ack 1
",
    );
}

#[test]
fn nodelay_lets_out_what_a_cork_holds() {
    accepted(
        "
+0 setsockopt(4, SOL_TCP, TCP_CORK, [1], 4) = 0
+0 write(4, ..., 70) = 70
+.01 setsockopt(4, SOL_TCP, TCP_NODELAY, [1], 4) = 0
+0 > P. 1:71(70) ack 1
+.02 < . 1:1(0) ack 71 win 257
+0 write(4, ..., 70) = 70
+.01 setsockopt(4, SOL_TCP, TCP_NODELAY, [1], 4) = 0
+0 > P. 71:141(70) ack 1
",
    );
}

#[test]
fn no_burst_is_longer_than_half_of_the_window() {
    let flags = "tcp_min_tso_segs=20";
    let script = format!(
        "{ACCEPTED}
+0 write(4, ..., 14000) = 14000
+0 > P. 1:5001(5000) ack 1
+0 > P. 5001:10001(5000) ack 1
"
    );
    play(&script, Ip::V4, flags);
    play(&script, Ip::V6, flags);
}

#[test]
fn a_pause_at_a_closed_window_takes_nothing_off_ours_before_it_opens() {
    let script = format!(
        "{CONNECTED}
+0 write(3, ..., 4000) = 4000
+0 > P. 1:4001(4000) ack 1
+.1 < . 1:1(0) ack 4001 win 0
+0 write(3, ..., 4000) = 4000
+.3 > . 4000:4000(0) ack 1
+.1 < . 1:1(0) ack 4001 win 100
+0 > P. 4001:8001(4000) ack 1
"
    );
    play(&script, Ip::V4, "tcp_slow_start_after_idle=0");
}

#[test]
fn every_completion_is_an_edge() {
    accepted(
        "
+0 setsockopt(4, SOL_SOCKET, SO_ZEROCOPY, [1], 4) = 0
+0 epoll_create(1) = 5
+0 epoll_ctl(5, EPOLL_CTL_ADD, 4, {events=EPOLLOUT|EPOLLET, fd=4}) = 0
+0 epoll_wait(5, {events=EPOLLOUT, fd=4}, 1, 0) = 1
+0 send(4, ..., 200, MSG_ZEROCOPY) = 200
+0 > P. 1:201(200) ack 1
+.01 < . 1:1(0) ack 201 win 257
+0 epoll_wait(5, {events=EPOLLERR|EPOLLOUT, fd=4}, 1, 0) = 1
+0 epoll_wait(5, {events=0, fd=0}, 1, 0) = 0
+0 send(4, ..., 200, MSG_ZEROCOPY) = 200
+0 > P. 201:401(200) ack 1
+.01 < . 1:1(0) ack 401 win 257
+0 epoll_wait(5, {events=EPOLLERR|EPOLLOUT, fd=4}, 1, 0) = 1
",
    );
}

#[test]
fn a_mark_is_kept_and_told() {
    connected(
        "
+0 setsockopt(3, SOL_SOCKET, SO_MARK, [17], 4) = 0
+0 getsockopt(3, SOL_SOCKET, SO_MARK, [17], [4]) = 0
",
    );
}

#[test]
fn settings_that_lie_in_files_are_read_before_each_socket() {
    let scratch = tempfile::tempdir().unwrap();
    let folder = scratch.path();
    std::fs::write(folder.join("tcp_sack"), "0\n").unwrap();
    std::fs::write(folder.join("tcp_rmem"), "4096 131072 33554432\n").unwrap();
    let script = "
0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
+0 bind(3, ..., ...) = 0
+0 listen(3, 1) = 0
+0 < S 0:0(0) win 30000 <mss 1000,sackOK,nop,nop,nop,wscale 7>
+0 > S. 0:0(0) ack 1 <mss 1460,nop,wscale 10>
";
    play(script, Ip::V4, &format!("sysctls={}", folder.display()));
}

#[test]
fn notsent_lowat_bounds_one_large_write() {
    let lowat = "+0 setsockopt(4, SOL_TCP, TCP_NOTSENT_LOWAT, [4000], 4) = 0\n";
    let write = "+0 fcntl(4, F_SETFL, O_RDWR|O_NONBLOCK) = 0
+0 write(4, ..., 59000) = 26000
";
    accepted(&format!("{lowat}{write}"));
    let script = format!("{ACCEPTED}{write}");
    play(&script, Ip::V4, "tcp_notsent_lowat=4000");
}

#[test]
fn a_write_fills_the_super_segment_that_exceeds_the_send_buffer() {
    accepted(
        "
+0 setsockopt(4, SOL_SOCKET, SO_SNDBUF, [21000], 4) = 0
+0 fcntl(4, F_SETFL, O_RDWR|O_NONBLOCK) = 0
+0 write(4, ..., 100000) = 42000
",
    );
}

/// A connection whose program reads from a small buffer: files 3 and 4.
const SMALL_BUFFER: &str = "
0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
+0 setsockopt(3, SOL_SOCKET, SO_RCVBUF, [20000], 4) = 0
+0 bind(3, ..., ...) = 0
+0 listen(3, 1) = 0
+0 < S 0:0(0) win 32792 <mss 1000,nop,wscale 7>
+0 > S. 0:0(0) ack 1 win 18980 <mss 1460,nop,wscale 0>
+.1 < . 1:1(0) ack 1 win 257
+0 accept(3, ..., ...) = 4
";

#[test]
fn the_first_window_is_whole_segments_and_a_segment_beyond_it_is_taken_if_nothing_is_unread() {
    everywhere(&format!(
        "{SMALL_BUFFER}
+0 < P. 1:20001(20000) ack 1 win 257
+.04 > . 1:1(0) ack 20001 win 0
+0 < P. 20001:21001(1000) ack 1 win 257
+0 > . 1:1(0) ack 20001 win 0
+0 < F. 20001:20001(0) ack 1 win 257
+0 > . 1:1(0) ack 20002 win 0
+0 read(4, ..., 30000) = 20000
"
    ));
}

#[test]
fn a_write_larger_than_half_of_the_window_is_pushed_on_its_way() {
    everywhere(
        "
0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
+0 bind(3, ..., ...) = 0
+0 listen(3, 1) = 0
+0 < S 0:0(0) win 2000 <mss 1000>
+0 > S. 0:0(0) ack 1 <mss 1460>
+.1 < . 1:1(0) ack 1 win 2000
+0 accept(3, ..., ...) = 4
+0 write(4, ..., 3000) = 3000
+0 > . 1:1001(1000) ack 1
+0 > P. 1001:2001(1000) ack 1
+.01 < . 1:1(0) ack 2001 win 2000
+0 > P. 2001:3001(1000) ack 1
",
    );
}

#[test]
fn the_data_of_a_write_that_waits_for_the_handshake_carries_its_ack() {
    everywhere(
        "
0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
+0...0.02 sendto(3, ..., 1000, MSG_FASTOPEN, ..., ...) = 1000
+0 > S 0:0(0) <mss 1460,sackOK,TS val 100 ecr 0,nop,wscale 7,FO,nop,nop>
+.02 < S. 0:0(0) ack 1 win 5840 <mss 1460,nop,nop,sackOK,nop,wscale 6>
+0 > P. 1:1001(1000) ack 1
+.02 < P. 1:501(500) ack 1001 win 257
+0 read(3, ..., 4096) = 500
+0 close(3) = 0
+0 > F. 1001:1001(0) ack 501
",
    );
}

#[test]
fn the_data_of_a_write_after_a_connect_in_progress_carries_the_ack_of_the_handshake() {
    everywhere(
        "
0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
+0 fcntl(3, F_SETFL, O_RDWR|O_NONBLOCK) = 0
+0 connect(3, ..., ...) = -1 EINPROGRESS (Operation now in progress)
+0 > S 0:0(0) <mss 1460,sackOK,TS val 100 ecr 0,nop,wscale 7>
+0 fcntl(3, F_SETFL, O_RDWR) = 0
+0...0.02 write(3, ..., 1000) = 1000
+.02 < S. 0:0(0) ack 1 win 5840 <mss 1460,nop,nop,sackOK,nop,wscale 6>
+0 > P. 1:1001(1000) ack 1
",
    );
}

#[test]
fn a_send_that_opens_a_connection_fails_after_the_time_of_syncnt() {
    everywhere(
        "
0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
+0 setsockopt(3, SOL_TCP, TCP_SYNCNT, [1], 4) = 0
+0...3.003 sendto(3, ..., 2000, MSG_FASTOPEN, ..., ...) = -1 ETIMEDOUT (timed out)
+0 > S 0:0(0) <mss 1460,sackOK,TS val 100 ecr 0,nop,wscale 7,FO,nop,nop>
+1 > S 0:0(0) <mss 1460,sackOK,TS val 1100 ecr 0,nop,wscale 7>
+1 > S 0:0(0) <mss 1460,sackOK,TS val 2100 ecr 0,nop,wscale 7>
+1 close(3) = 0
",
    );
}

#[test]
fn the_syn_ack_of_a_simultaneous_open_is_reported_as_a_duplicate() {
    everywhere(
        "
0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
+0 fcntl(3, F_SETFL, O_RDWR|O_NONBLOCK) = 0
+0 connect(3, ..., ...) = -1 EINPROGRESS (Operation now in progress)
+0 > S 0:0(0) <mss 1460,sackOK,TS val 100 ecr 0,nop,wscale 7>
+.01 < S 0:0(0) win 5792 <mss 1000,sackOK,nop,nop,nop,wscale 7>
+0 > S. 0:0(0) ack 1 <mss 1460,nop,nop,sackOK,nop,wscale 7>
+.01 < S. 0:0(0) ack 1 win 5792 <mss 1000,sackOK,nop,nop,nop,wscale 7>
+0 > . 1:1(0) ack 1 <nop,nop,sack 0:1>
+0 connect(3, ..., ...) = 0
",
    );
}
