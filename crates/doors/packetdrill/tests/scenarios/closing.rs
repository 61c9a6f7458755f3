//! How connections end.

use super::*;

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
