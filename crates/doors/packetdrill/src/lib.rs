//! A shared object through which [packetdrill](https://github.com/google/packetdrill) judges the user-space stack.
//!
//! packetdrill loads it (`--so_filename`), calls `packetdrill_interface_init` with the text of `--so_flags`, and gets
//! a structure of functions: the socket calls, and `netdev_send` and `netdev_receive`, which stand for the wire. Key
//! types: [`Instance`] (a stack on a link that the script holds, in virtual time), [`Flags`] (what `--so_flags` may
//! say) and [`Interface`] (the structure).
//!
//! Time is virtual: it moves when the script sleeps, and when it waits for a packet and none is there; then it jumps
//! to the stack's next timer. A script takes no longer than its computing, and runs the same each time.
//!
//! The stack's address is whatever the script uses; there is no neighbour discovery. With `devmem=1` payload is
//! received into bound device memory that the CPU must not read, and copied out when the script reads.
//!
//! # Scripts that set sysctls
//!
//! A script's shell commands act on the host. With `sysctls=host` the stack reads the kernel's settings from
//! `/proc/sys/net/ipv4` before each call that may begin a connection, after the script's first command has run; in a
//! network namespace of its own (`unshare -n`), with a device `tun0` for the commands that want one, Linux's own scripts
//! (tools/testing/selftests/net/packetdrill) run as they are.
//!
//! # What Linux's scripts say
//!
//! The 165 scripts of Linux 7.3, each over IPv4, IPv6 and IPv4 on IPv6 sockets unless it says otherwise, with
//! `sysctls=host`; `mtu=1520` for IPv6, `tso=0` and `pacing=1` where a script sets the device so. Played by an interpreter
//! of packetdrill's language that checks what packetdrill checks; packetdrill itself was not at hand. With `devmem=1` the
//! same runs pass.
//!
//! | Scripts | Runs that pass | Those that do not |
//! |---|---|---|
//! | advmss, basic, close, disorder, dsack, eor, limited transmit | 44 of 44 | |
//! | fast recovery, slow start, rfc5961, old ACK | 54 of 54 | |
//! | inq, nagle, syncookies, timestamps, validate | 29 of 29 | |
//! | zerocopy | 27 of 33 | Fast Open (6) |
//! | blocking, tcp_info, timestamping | 21 of 33 | four scripts that count how many skbs a send buffer of Linux holds (`truesize`) |
//! | sack, syscall, user timeout | 18 of 27 | IP_MTU_DISCOVER with DONT, Fast Open, a queueing discipline that drops (3 each) |
//! | rcv, ooo | 0 of 21 | windows that follow `truesize`, `tcp_shrink_window`, SO_MEMINFO, `nstat` of the host |
//! | md5, sendfile, splice, urgent pointer | 0 of 10 | the host's `/proc/net/tcp`; calls that are not in the interface; urgent data |
//! | Fast Open, SYN-ACK timeouts with it | 3 of 55 | no Fast Open |
//!
//! ECN and AccECN have 59 scripts of their own: over IPv4 and IPv6, with the `tcp_ecn` settings of each script in
//! `--so_flags` (the kernel of the machine they were played on does not take the numbers 3 to 5), 112 of 118 runs pass.
//! In the others a super-segment is not cut where Linux cuts it (2), and a sysctl changes while the connection is open (1).
//!
//! # Pipes
//!
//! Scripts have pipe and splice as well ([`pipe()`], [`splice()`]): a pipe's ends are files of the socket table
//! ([`devmem_posix::OtherFile`]) that poll and epoll watch. 64 KiB, whole writes of 4 KiB and less, EOF and EPIPE,
//! SPLICE_F_NONBLOCK and SPLICE_F_MORE, each file's own O_NONBLOCK. Not so in Linux: splice copies, and a pipe is full by
//! bytes, not by pages. Not there: tee, vmsplice, F_SETPIPE_SZ, packet mode.
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
mod pipe;
mod splice;
mod sysctls;

pub use ffi::{Interface, packetdrill_interface_init};
pub use flags::{Flags, FlagsError};
pub use instance::Instance;
pub use pipe::pipe;
pub use splice::{SpliceArgs, flag as splice_flag, splice};
