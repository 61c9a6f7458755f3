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
//! packetdrill calls libc's `getsockopt`, `close` and `sendfile`, past its interface: `getsockopt` (TCP_INFO, TCP_CC_INFO,
//! SO_MEMINFO) for `%{ }%` assertions, `close` for what a script leaves open. A preloaded library answers them. Files have numbers that
//! are descriptors of the process (from 512 on), so that scripts without assertions run without LD_PRELOAD, too.
//!
//! packetdrill's options `--mss` and `--mtu` are not passed to a shared object, and it cannot see those in a script: give
//! `mtu` in the flags, also for scripts that set the MTU of `tun0` (syncookies_ip4_9k, syncookies_ip6_9k: `mtu=9000`). Give
//! `tso=0` for scripts that switch segmentation of `tun0` off (nagle_https_client), and for those in which data carries
//! AccECN's option (accecn_2nd_data_as_first_connect, accecn_client_accecn_options_lost): they expect packets of one segment.
//! Give `pacing=1` for those that install the queueing discipline `fq` (slow-start-fq-ack-per-2pkt).
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
//! names one; Google's with the arguments of their runner (`run_all.py`: addresses, `-D CODE=host_unreachable` and others). A run
//! counts if it passes on a Linux kernel, which has several tries, as it runs in real time: Linux's scripts of 7.3 on 7.3.4 (479
//! of 483 runs pass), Google's on 6.18 (404 of 481). Of these, 456 of 479 (Linux's) and 377 of 404 (Google's) pass on
//! this stack; the second table has the others. With `devmem=1` each of Google's 481 runs ends as without it, and Linux's
//! did when they were last counted so. On 7.3.4, in the lab's guest, packetdrill
//! had `--tolerance_usecs=14000`, as Linux's runner gives slow machines; on this stack it needs none.
//!
//! | Scripts | Runs that pass on Linux | Of these, on this stack |
//! |---|---|---|
//! | Linux 7.3, without ECN and Fast Open | 241 | 222 |
//! | Linux 7.3, Fast Open (`*fastopen*`) | 61 | 60 |
//! | Linux 7.3, ECN and AccECN | 177 | 174, 6 of them with `tso=0` |
//! | Google's (gtests/net/tcp), without Fast Open | 256 | 236 |
//! | Google's, Fast Open (`fastopen/`) | 148 | 141 |
//!
//! | Script, runs | Difference |
//! |---|---|
//! | ooo_rcv_mss (3), rcv_big_endseq (3), rcv_wnd_shrink_allowed (3), rcv_wnd_shrink_nomem (3) | windows follow the memory that is there and count payload, where Linux counts the `truesize` of buffers; all but the first read the host's counters, too |
//! | urg_ptr_retransmit (1) | sends urgent data (MSG_OOB), which is refused with EOPNOTSUPP |
//! | cubic-hystart-delay-rtt-jumps-upward (3) | slow start is left by HyStart++ (RFC 9406), in Linux by HyStart |
//! | cubic-rto-ss-ca-cwnd-bump (3) | the window grows by the formula of RFC 9438, one ACK before Linux's integer arithmetic |
//! | fr-4pkt-fack-last-mss (3) | a reordering timer of 28 ms, in Linux longer by its timer ticks |
//! | fallback-exp-opt (3) | flushes the cookies that the host has cached |
//! | accecn_delivered_falseoverflow_detect (3) | a sysctl changes while the connection is open |
//! | mtu_probe basic-v4 (2) | sets MTU, MSS and first window of a route of the host |
//! | cubic-rack-reo-timeout-retrans-failed-incoming-data (3), user-timeout-probe (6) | install a queueing discipline on the host (`pfifo limit 0`) that is to drop what the stack sends |
//! | icmp-before-accept (5), md5-only-on-client-ack (6) | read the host's counters (`nstat`) and `/proc/net/tcp` |
//!
//! # Pipes
//!
//! Scripts may call pipe and splice ([`devmem_posix::Table::pipe`], [`devmem_posix::Posix::splice`]). Differences from
//! Linux: splice copies, and a pipe is full by bytes, not by pages. Missing: tee, vmsplice, F_SETPIPE_SZ, packet mode.
//!
//! # What it does not do
//!
//! - `open` is not in packetdrill's interface, and opens a file of the host; what a script asks of the host's kernel
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
