//! Scripts in packetdrill's language, played over the shared object: IPv4, IPv6 and IPv4 on IPv6 sockets, payload in
//! host memory and in device memory.

#[path = "scenarios/closing.rs"]
mod closing;
#[path = "scenarios/ecn.rs"]
mod ecn;
#[path = "scenarios/linux.rs"]
mod linux;
#[path = "scenarios/opening.rs"]
mod opening;
#[path = "scenarios/pipes_and_times.rs"]
mod pipes_and_times;
mod player;
#[path = "scenarios/real_program.rs"]
mod real_program;
#[path = "scenarios/recovery.rs"]
mod recovery;
#[path = "scenarios/sending.rs"]
mod sending;

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

fn connected(rest: &str) {
    everywhere(&format!("{CONNECTED}{rest}"));
}
