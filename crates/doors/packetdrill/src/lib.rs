//! A shared object through which [packetdrill](https://github.com/google/packetdrill) tests the user-space stack.
//!
//! packetdrill loads it (`--so_filename`), calls `packetdrill_interface_init` with the text of `--so_flags`, and gets
//! a structure of functions: the socket calls, and `netdev_send` and `netdev_receive`, which stand for the wire. Key
//! types: [`Instance`] (a stack on a link that the script holds, in virtual time), [`Flags`] (what `--so_flags` may
//! say) and [`Interface`] (the structure).
//!
//! Time is virtual: it moves when the script sleeps, by 1 us at each reading of the clock, and when the script waits for
//! a packet and none is there; then it jumps to the stack's next timer. A script takes no longer than its computing (and
//! the tenth of a second that packetdrill waits at its start), and runs the same each time. While a blocking call of
//! packetdrill's second thread returns, time stands still until its result is noted.
//!
//! The stack's address is whatever the script uses; there is no neighbour discovery. With `devmem=1` payload is
//! received into bound device memory that the CPU must not read, and copied out when the script reads.
//!
//! # How to run it
//!
//! ```sh
//! lib="$(target/release/devmem-tcp packetdrill-path)"
//! LD_PRELOAD=$lib packetdrill --so_filename=$lib --so_flags=devmem=1 script.pkt
//! ```
//!
//! packetdrill calls libc's `getsockopt` and `close`, past its interface: `getsockopt` (TCP_INFO, TCP_CC_INFO, SO_MEMINFO)
//! for `%{ }%` assertions, `close` for what a script leaves open. A preloaded library answers them. Files have numbers that
//! are descriptors of the process (from 512 on), so that scripts without assertions run without LD_PRELOAD, too.
//!
//! packetdrill's options `--mss` and `--mtu` are not passed to a shared object, and it cannot see those in a script: give
//! `mtu` in the flags. Give `tso=0` for scripts in which data carries AccECN's option (accecn_2nd_data_as_first_connect,
//! accecn_client_accecn_options_lost): they expect packets of one segment.
//!
//! # Scripts that set sysctls
//!
//! A script's shell commands act on the host. With `sysctls=host` the stack reads the kernel's settings from
//! `/proc/sys/net/ipv4` before each call that may begin a connection, after the script's first command has run. In a
//! separate network namespace (`unshare -n`), with a device `tun0` for the commands that want one, Linux's scripts
//! (tools/testing/selftests/net/packetdrill) run as they are. Settings in the flags are not read from the host. What a
//! script sets while a connection is open counts for later connections only; Linux applies some settings at once.
//!
//! A kernel that lacks a value (Linux 6.18: `tcp_ecn` of 3 to 5) makes the `sysctl` of a script fail, which ends the
//! script. Put a program `sysctl` that always returns 0 first in PATH, and give the value in the flags:
//! `--so_flags=sysctls=host,tcp_ecn=3`.
//!
//! # What the scripts say
//!
//! Run with packetdrill itself (google/packetdrill 2c4001c), each script over IPv4, IPv6 and IPv4 on IPv6 sockets unless it
//! names one. A run counts if it passes on a Linux 6.18 kernel, which has up to four tries, as it runs in real time. Scripts
//! with TCP Fast Open have rows of their own. With `devmem=1` the same runs pass.
//!
//! | Scripts | Runs that pass on Linux | Of these, on this stack | Those that do not |
//! |---|---|---|---|
//! | Linux 7.3, without ECN | 224 | 188 | 12 scripts, below |
//! | Linux 7.3, ECN and AccECN (not in Linux 6.18, so without a control; 177 runs) | | 174, 6 of them with `tso=0` | 1 script, below |
//! | Google's (gtests/net/tcp) | 237 | 204 | 12 scripts, below |
//! | Linux 7.3, Fast Open (`*fastopen*`) | 52 | 45 | fin-close-socket, icmp-before-accept, trigger-rst-reconnect |
//! | Google's, Fast Open (`fastopen/`), over IPv4 | 43 | 36 | 7 scripts, below |
//!
//! | Script | Difference |
//! |---|---|
//! | fin-close-socket, opt34/fin-close-socket | a FIN right after a SYN with payload is acknowledged 40 ms later, in Linux at once |
//! | trigger-rst-reconnect | the window of a SYN-ACK that acknowledges payload is smaller by that payload |
//! | icmp-before-accept, opt34/icmp-before-accept | read the host's counters (`nstat`) |
//! | syn-data-only-syn-acked, syn-data-partial-or-over-ack | payload of a SYN that was not acknowledged is sent as new data, not as a retransmission |
//! | synack-data, nonblocking-connect-bypass-errno | a FIN in a SYN-ACK is not taken; a write that times out says EAGAIN |
//! | timestamping partial | no PSH within a write; Linux sets one for each half of the largest window of the peer (`forced_push`) |
//! | ooo_rcv_mss, rcv_big_endseq, rcv_neg_window, ooo-before-and-after-accept | windows and receive buffers follow the memory that is there, and count payload |
//! | rcv_zero_wnd_fin | data in order beyond the window is cut, so that a peer never occupies more memory than the window promised; Linux takes it while nothing is queued |
//! | cubic-hystart-delay-rtt-jumps-upward | slow start is left by HyStart++ (RFC 9406), in Linux by HyStart |
//! | cubic-rto-ss-ca-cwnd-bump, fr-4pkt-fack-last-mss | PSH within a write, as above; a retransmission 15 ms earlier |
//! | mtu_probe basic-v4 | sets MTU, MSS and first window of a route of the host |
//! | cubic-rack-reo-timeout-retrans-failed-incoming-data, user-timeout-probe | install a queueing discipline on the host (`pfifo limit 0`) that is to drop what the stack sends |
//! | eor no-coalesce-retrans | a loss is repaired at once, in Linux by a timer 4 ms later |
//! | sack-route-refresh-ip-tos, splice_loop_test | IP_MTU_DISCOVER with DONT is EINVAL, because every packet has DF; IP_FREEBIND is ENOPROTOOPT, and the script goes on with urgent data |
//! | md5-only-on-client-ack | reads the host's `/proc/net/tcp` |
//! | sendfile-simple | sendfile is not in packetdrill's interface |
//! | accecn_delivered_falseoverflow_detect | a sysctl changes while the connection is open |
//!
//! # Pipes
//!
//! Scripts may call pipe and splice ([`devmem_posix::Table::pipe`], [`devmem_posix::Posix::splice`]). Differences from
//! Linux: splice copies, and a pipe is full by bytes, not by pages. Missing: tee, vmsplice, F_SETPIPE_SZ, packet mode.
//!
//! # What it does not do
//!
//! - `open` and `sendfile` are not in packetdrill's interface; what a script asks of the host's kernel
//!   (`nstat`, `/proc/net/tcp`, queueing disciplines) says nothing of this stack.

mod ffi;
mod flags;
mod instance;
mod interpose;
mod link;
mod numbers;
mod sysctls;

pub use ffi::{Interface, packetdrill_interface_init};
pub use flags::{Flags, FlagsError};
pub use instance::Instance;
