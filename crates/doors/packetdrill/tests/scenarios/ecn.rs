//! Explicit congestion notification.

use super::*;

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
