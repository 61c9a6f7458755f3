//! A player of packetdrill's script language, as far as the scenarios need it, over the shared object.

mod calls;
mod interface;
pub mod loaded;
mod packet;
mod run;
mod script;

pub use loaded::Loaded;
pub use run::{Ip, play, this_task, wait_until_blocked};

/// A listener, and a connection accepted from it: files 3 and 4. The peer offers what follows its MSS.
pub const ACCEPTED: &str = "
0 socket(..., SOCK_STREAM, IPPROTO_TCP) = 3
+0 setsockopt(3, SOL_SOCKET, SO_REUSEADDR, [1], 4) = 0
+0 bind(3, ..., ...) = 0
+0 listen(3, 1) = 0
+0 < S 0:0(0) win 32792 <mss 1000,sackOK,nop,nop,nop,wscale 7>
+0 > S. 0:0(0) ack 1 <mss 1460,nop,nop,sackOK,nop,wscale 7>
+.1 < . 1:1(0) ack 1 win 257
+0 accept(3, ..., ...) = 4
";

/// Plays a script in every way.
pub fn everywhere(script: &str) {
    for ip in [Ip::V4, Ip::V6, Ip::Mapped] {
        for flags in ["", "devmem=1"] {
            play(script, ip, flags);
        }
    }
}

/// Plays what follows on a connection that a listener, file 3, took: file 4.
pub fn accepted(rest: &str) {
    everywhere(&format!("{ACCEPTED}{rest}"));
}
