//! Scripts of pipes and of the times of sends and receives, played over the shared object as those of `scenarios`.

use crate::player::accepted;

#[test]
fn splice_moves_bytes_from_a_socket_through_a_pipe_to_another_reader() {
    accepted(
        "
+0 pipe([5, 6]) = 0
+0 fcntl(4, F_SETFL, O_RDWR|O_NONBLOCK) = 0
+0 splice(4, NULL, 6, NULL, 1000, 0) = -1 EAGAIN (nothing received)
+0 < P. 1:1001(1000) ack 1 win 257
+0 > . 1:1(0) ack 1001
+0 splice(4, NULL, 6, NULL, 400, SPLICE_F_MOVE) = 400
+0 ioctl(5, SIOCINQ, [400]) = 0
+0 splice(4, NULL, 6, NULL, 5000, 0) = 600
+0 poll([{fd=5, events=POLLIN, revents=POLLIN}, {fd=6, events=POLLOUT, revents=POLLOUT}], 2, 0) = 2
+0 read(5, ..., 2000) = 1000
+0 < F. 1001:1001(0) ack 1 win 257
* > . 1:1(0) ack 1002
+0 splice(4, NULL, 6, NULL, 1000, 0) = 0
",
    );
}

#[test]
fn splice_stops_before_the_urgent_byte_which_stays_in_the_stream() {
    accepted(
        "
+0 pipe([5, 6]) = 0
+0 < U. 1:101(100) ack 1 win 257
+0 > . 1:1(0) ack 101
+0 splice(4, NULL, 6, NULL, 1000, 0) = 99
+0 splice(4, NULL, 6, NULL, 1, 0) = 0
+0 ioctl(4, SIOCINQ, [1]) = 0
",
    );
}

#[test]
fn splice_sends_what_a_pipe_holds_and_more_holds_the_last_segment_back() {
    accepted(
        "
+0 pipe([5, 6]) = 0
+0 write(6, ..., 2500) = 2500
+0 splice(5, NULL, 4, NULL, 1500, SPLICE_F_MORE) = 1500
+0 > . 1:1001(1000) ack 1
+0 splice(5, NULL, 4, NULL, 9000, 0) = 1000
+0 > P. 1001:2501(1500) ack 1
+.1 < . 1:1(0) ack 2501 win 257
+0 close(6) = 0
+0 splice(5, NULL, 4, NULL, 9000, 0) = 0
+0 read(5, ..., 10) = 0
",
    );
}

#[test]
fn a_splice_waits_for_the_socket_and_for_the_pipe() {
    accepted(
        "
+0 pipe([5, 6]) = 0
+0...0.200 splice(4, NULL, 6, NULL, 1000, 0) = 500
+.2 < P. 1:501(500) ack 1 win 257
+0 > . 1:1(0) ack 501
+0 read(5, ..., 500) = 500
+0 splice(5, NULL, 4, NULL, 500, SPLICE_F_NONBLOCK) = -1 EAGAIN (an empty pipe)
+0 write(6, ..., 500) = 500
+0 splice(5, NULL, 4, NULL, 500, SPLICE_F_NONBLOCK) = 500
+0 > P. 1:501(500) ack 501
",
    );
}

#[test]
fn a_splice_that_cannot_be_is_refused_as_linux_does() {
    accepted(
        "
+0 pipe([5, 6]) = 0
+0 pipe([7, 8]) = 0
+0 splice(4, NULL, 4, NULL, 10, 0) = -1 EINVAL (no pipe)
+0 splice(5, NULL, 6, NULL, 10, 0) = -1 EINVAL (one pipe)
+0 splice(6, NULL, 4, NULL, 10, 0) = -1 EBADF (the other end)
+0 splice(4, NULL, 5, NULL, 10, 0) = -1 EBADF (the other end)
+0 splice(4, NULL, 6, 1, 10, 0) = -1 ESPIPE (an offset)
+0 splice(4, 1, 6, NULL, 10, 0) = -1 EINVAL (an offset)
+0 splice(4, NULL, 6, NULL, 10, 16) = -1 EINVAL (a flag)
+0 splice(4, NULL, 6, NULL, 0, 16) = 0
+0 close(5) = 0
+0 splice(4, NULL, 6, NULL, 10, 0) = -1 EPIPE (nobody reads)
+0 write(6, ..., 10) = -1 EPIPE (nobody reads)
+0 poll([{fd=6, events=POLLOUT, revents=POLLOUT|POLLERR}], 1, 0) = 1
+0 write(8, ..., 10) = 10
+0 recv(7, ..., 10, 0) = -1 ENOTSOCK (read is for pipes)
+0 close(8) = 0
+0 poll([{fd=7, events=POLLIN, revents=POLLIN|POLLHUP}], 1, 0) = 1
",
    );
}

/// A message of the error queue with a time of a send.
fn stamp(flags: &str, nanos: u64, what: &str, id: u32) -> String {
    format!(
        "recvmsg(4, {{msg_name(...)=..., msg_iov(1)=[{{..., 0}}], msg_flags=MSG_ERRQUEUE{flags}, \
         msg_control=[{{cmsg_level=SOL_SOCKET, cmsg_type=SCM_TIMESTAMPING, \
         cmsg_data={{scm_sec=0, scm_nsec={nanos}}}}}, {{cmsg_level=CMSG_LEVEL_IP, cmsg_type=CMSG_TYPE_RECVERR, \
         cmsg_data={{ee_errno=ENOMSG, ee_origin=SO_EE_ORIGIN_TIMESTAMPING, ee_type=0, ee_code=0, \
         ee_info={what}, ee_data={id}}}}}]}}, MSG_ERRQUEUE) = 0"
    )
}

#[test]
fn sends_have_times_of_leaving_and_of_their_acknowledgement() {
    let told = |nanos, what, id| stamp("|MSG_TRUNC", nanos, what, id);
    accepted(&format!(
        "
+0 setsockopt(4, SOL_SOCKET, SO_TIMESTAMPING, [SOF_TIMESTAMPING_TX_SCHED|SOF_TIMESTAMPING_TX_SOFTWARE|SOF_TIMESTAMPING_TX_ACK|SOF_TIMESTAMPING_SOFTWARE|SOF_TIMESTAMPING_OPT_ID], 4) = 0
+0 write(4, ..., 11000) = 11000
+0 > P. 1:10001(10000) ack 1
+0 recv(4, ..., 10, MSG_ERRQUEUE) = -1 EAGAIN (the last byte waits)
+.02 < . 1:1(0) ack 10001 win 257
+0 > P. 10001:11001(1000) ack 1
+0 poll([{{fd=4, events=POLLIN, revents=POLLERR}}], 1, 0) = 1
+.01 < . 1:1(0) ack 11001 win 257
+0 {}
+0 {}
+0 {}
+0 recv(4, ..., 10, MSG_ERRQUEUE) = -1 EAGAIN (all told)
+0 poll([{{fd=4, events=POLLIN, revents=0}}], 1, 0) = 0
",
        told(120_000_000, "SCM_TSTAMP_SCHED", 10_999),
        told(120_000_000, "SCM_TSTAMP_SND", 10_999),
        told(130_000_000, "SCM_TSTAMP_ACK", 10_999),
    ));
}

#[test]
fn times_alone_are_not_cut_and_numbers_may_begin_with_what_is_queued() {
    let told = |nanos, what, id| stamp("", nanos, what, id);
    accepted(&format!(
        "
+0 write(4, ..., 500) = 500
+0 > P. 1:501(500) ack 1
+0 setsockopt(4, SOL_SOCKET, SO_TIMESTAMPING, [SOF_TIMESTAMPING_TX_ACK|SOF_TIMESTAMPING_SOFTWARE|SOF_TIMESTAMPING_OPT_ID|SOF_TIMESTAMPING_OPT_ID_TCP|SOF_TIMESTAMPING_OPT_TSONLY], 4) = 0
+0 write(4, ..., 1000) = 1000
+0 > P. 501:1501(1000) ack 1
+.1 < . 1:1(0) ack 501 win 257
+0 recv(4, ..., 10, MSG_ERRQUEUE) = -1 EAGAIN (nothing asked for)
+.1 < F. 1:1(0) ack 1501 win 257
* > . 1501:1501(0) ack 2
+0 {}
",
        told(300_000_000, "SCM_TSTAMP_ACK", 999),
    ));
}

/// A recvmsg of `len` bytes that returns `got`, with these control messages.
fn received(len: u32, got: u32, messages: &[String]) -> String {
    format!(
        "recvmsg(4, {{msg_name(...)=..., msg_iov(1)=[{{..., {len}}}], msg_flags=0, msg_control=[{}]}}, 0) = {got}",
        messages.join(", ")
    )
}

fn message(level: &str, ty: &str, data: &str) -> String {
    format!("{{cmsg_level={level}, cmsg_type={ty}, cmsg_data={data}}}")
}

fn at_nanos(ty: &str, nanos: u64) -> String {
    message(
        "SOL_SOCKET",
        ty,
        &format!("{{scm_sec=0, scm_nsec={nanos}}}"),
    )
}

#[test]
fn a_receive_is_told_when_its_last_segment_arrived_not_when_it_was_read() {
    for (set, ty) in [
        ("SO_TIMESTAMP", "SO_TIMESTAMP"),
        ("SO_TIMESTAMP_NEW", "SO_TIMESTAMP_NEW"),
        ("SO_TIMESTAMPNS", "SO_TIMESTAMPNS"),
        ("SO_TIMESTAMPNS_NEW", "SO_TIMESTAMPNS_NEW"),
    ] {
        accepted(&format!(
            "
+0 < P. 1:101(100) ack 1 win 257
+0 > . 1:1(0) ack 101
+0 setsockopt(4, SOL_SOCKET, {set}, [1], 4) = 0
+0 getsockopt(4, SOL_SOCKET, {set}, [1], [4]) = 0
+.1 < P. 101:201(100) ack 1 win 257
+0 > . 1:1(0) ack 201
+.1 < P. 201:301(100) ack 1 win 257
+0 > . 1:1(0) ack 301
+.2 {}
+0 {}
+0 {}
+0 setsockopt(4, SOL_SOCKET, {set}, [0], 4) = 0
+0 < P. 301:401(100) ack 1 win 257
* > . 1:1(0) ack 401
+0 {}
",
            received(100, 100, &[]),
            received(50, 50, &[at_nanos(ty, 200_000_000)]),
            received(500, 150, &[at_nanos(ty, 300_000_000)]),
            received(500, 100, &[]),
        ));
    }
}

#[test]
fn segments_that_fill_a_gap_keep_the_times_at_which_they_came() {
    let told = |nanos| at_nanos("SCM_TIMESTAMPING", nanos);
    accepted(&format!(
        "
+0 setsockopt(4, SOL_SOCKET, SO_TIMESTAMPING, [SOF_TIMESTAMPING_RX_SOFTWARE|SOF_TIMESTAMPING_SOFTWARE], 4) = 0
+.1 < . 1001:2001(1000) ack 1 win 257
+0 > . 1:1(0) ack 1 <nop,nop,sack 1001:2001>
+.1 < . 1:1001(1000) ack 1 win 257
+0 > . 1:1(0) ack 2001
+.2 {}
+0 {}
",
        received(1000, 1000, &[told(300_000_000)]),
        received(1000, 1000, &[told(200_000_000)]),
    ));
}

#[test]
fn times_come_before_what_is_left_and_the_end_of_the_stream_counts_as_one() {
    let left = |number| message("SOL_TCP", "TCP_CM_INQ", number);
    let (stamp, stamping) = (
        at_nanos("SO_TIMESTAMPNS_NEW", 200_000_000),
        at_nanos("SO_TIMESTAMPING_NEW", 200_000_000),
    );
    accepted(&format!(
        "
+0 setsockopt(4, SOL_TCP, TCP_INQ, [1], 4) = 0
+0 setsockopt(4, SOL_SOCKET, SO_TIMESTAMPNS_NEW, [1], 4) = 0
+0 setsockopt(4, SOL_SOCKET, SO_TIMESTAMPING_NEW, [SOF_TIMESTAMPING_RX_SOFTWARE|SOF_TIMESTAMPING_SOFTWARE], 4) = 0
+.1 < P. 1:1001(1000) ack 1 win 257
+0 > . 1:1(0) ack 1001
+0 {}
+0 < F. 1001:1001(0) ack 1 win 257
* > . 1:1(0) ack 1002
+0 {}
+0 {}
",
        received(600, 600, &[stamp.clone(), stamping.clone(), left("400")]),
        received(400, 400, &[stamp, stamping, left("1")]),
        received(400, 0, &[left("1")]),
    ));
}
