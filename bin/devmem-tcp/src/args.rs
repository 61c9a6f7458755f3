//! What the command line may say, as text and numbers; `plan.rs` judges it.

mod kernel;
mod link;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use tool::parse::OutputArgs;
use tool::size::Size;

pub use kernel::{Doctor, Ncdevmem, Restore};
pub use link::{BackendChoice, DEFAULT_LINK, LinkArgs};

/// Device memory TCP: receive TCP payload straight into device memory.
///
/// Payload of TCP connections lands in bound device memory with one copy in all; only headers touch host memory.
/// This tool runs a user-space TCP/IP stack on a TAP interface, against stock TCP peers, or uses the kernel's own stack on a
/// NIC that supports device memory.
#[derive(Debug, Parser)]
#[command(name = "devmem-tcp", version, max_term_width = 100, after_help = TOP_NOTES)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

const TOP_NOTES: &str = "\
`devmem-tcp demo` shows it at work, with nothing to set up; `devmem-tcp doctor` says what this machine can do.

Exit status: 0 done, 1 failed, 2 wrong usage, 3 not supported on this machine.
Results for programs go to stdout (--json), everything for people to stderr.
Sizes take K, M, G, T (times 1024) or kB, MB, GB, TB (times 1000).";

#[derive(Debug, Subcommand)]
pub enum Command {
    Demo(Demo),
    Recv(Recv),
    Send(Send),
    Wire(gvnic_server::args::Wire),
    Nic(gvnic_server::args::Nic),
    Bench(Bench),
    PacketdrillPath(PacketdrillPath),
    Lab(Box<lab::args::Lab>),
    Doctor(Doctor),
    Restore(Restore),
    Ncdevmem(Ncdevmem),
    #[command(name = "__sender", hide = true)]
    Sender(Sender),
    #[command(name = "__receiver", hide = true)]
    Receiver(Receiver),
}

/// Show device memory TCP at work: a kernel peer, our stack, every byte verified
///
/// Makes a network of its own (as an ordinary user inside a user namespace), a TAP interface in it, and a second
/// process with an ordinary kernel TCP socket that sends a stream in which every byte depends on its position.
/// The receiver takes it into device memory and checks every byte where it lies. Where TUN is not available it says so
/// and runs over an in-memory wire between two stacks of ours instead. With --direction tx the stream leaves from our
/// device memory and the second process, a kernel receiver, checks it.
#[derive(Debug, Args)]
#[command(after_long_help = DEMO_EXAMPLES)]
pub struct Demo {
    /// Which way the bytes go
    #[arg(long, value_enum, default_value_t = Direction::Rx)]
    pub direction: Direction,
    /// Bytes to transfer, over all connections
    #[arg(long, value_name = "SIZE", default_value = "5G")]
    pub bytes: Size,
    /// Connections at once
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub connections: u16,
    /// Use IPv6
    #[arg(long)]
    pub ipv6: bool,
    /// What to run over: tap fails where it is not available, auto falls back to wire
    #[arg(long, value_enum, default_value_t = DemoLink::Auto)]
    pub link: DemoLink,
    /// Bytes of each send call of the sender
    #[arg(long, value_name = "SIZE", default_value = "1M")]
    pub write_size: Size,
    /// Congestion control of the sender's kernel socket
    #[arg(long, value_name = "NAME", default_value = "cubic")]
    pub congestion: String,
    #[command(flatten)]
    pub nic: NicArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

const DEMO_EXAMPLES: &str = "\
Examples:
  devmem-tcp demo
      5 GiB over one connection, with a table at the end
  devmem-tcp demo --bytes 1G --connections 64 --ipv6 --mtu 9000 --json
      64 connections over IPv6, one JSON object on stdout
  devmem-tcp demo --bytes 64M --impair loss=1%,reorder=1%,delay=1ms,seed=7
      through a bad link, the same one each time";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From the peer into our device memory
    #[default]
    Rx,
    /// From our device memory to the peer
    Tx,
    /// rx, then tx
    Both,
    /// From device memory to device memory, between two sockets of our stack
    Loopback,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DemoLink {
    /// TAP if this machine has it, else wire
    Auto,
    /// A TAP interface and the kernel's TCP
    Tap,
    /// An in-memory wire between two stacks of ours
    Wire,
}

/// Receive TCP connections into device memory (like netcat, or the kernel's ncdevmem)
///
/// Listens on an address of its own, on a TAP interface that is made if it does not exist; or, with --if, on an interface
/// of the kernel whose NIC supports device memory: that is set up for it, and put back as it was. Ends when the
/// connections have ended, or on SIGINT, SIGTERM or SIGHUP, with statistics.
#[derive(Debug, Args)]
#[command(after_long_help = RECV_EXAMPLES)]
pub struct Recv {
    #[command(flatten)]
    pub link: LinkArgs,
    /// Say what would be changed about the NIC, as commands on stdout, and change nothing
    #[arg(long, requires = "interface")]
    pub dry_run: bool,
    /// The NIC is set up already: bind its queues, change nothing
    #[arg(long, requires = "interface", conflicts_with = "dry_run")]
    pub no_setup: bool,
    /// With --no-setup: the first queue to bind; without it, the last --queues of the NIC are bound
    #[arg(long, value_name = "N", requires = "no_setup")]
    pub first_queue: Option<u32>,
    /// Listen; the only direction there is, accepted for the fingers' sake
    #[arg(short = 'l', long)]
    pub listen: bool,
    /// Port to listen on
    #[arg(short, long, value_name = "PORT", default_value_t = 5201)]
    pub port: u16,
    /// Take N connections at once, and end when all have ended
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub connections: u16,
    /// Go on taking connections, up to --connections at once, until a signal comes
    #[arg(short, long)]
    pub keep_listening: bool,
    /// Check that the stream repeats the bytes 1 to N-1 and, in the zero position, NUL or newline (the first seen must
    /// stay)
    #[arg(short = 'v', long, value_name = "N")]
    pub validate: Option<u16>,
    /// Write the payload to FILE, or to stdout for `-`
    #[arg(short, long, value_name = "FILE")]
    pub output_file: Option<PathBuf>,
    /// Hold on to the last N received frags before giving them back: starves the sender when N nears the memory's size
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub keep_tokens: usize,
    /// Leave the first N payload bytes of every packet in host memory
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub linear: u16,
    /// Write every packet, payload included, to FILE for Wireshark. Where the disk is full the run goes on without, and
    /// ends with exit code 1
    #[arg(long, value_name = "FILE.pcapng")]
    pub capture: Option<PathBuf>,
    #[command(flatten)]
    pub nic: NicArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

const RECV_EXAMPLES: &str = "\
Examples:
  devmem-tcp recv --peer-addr 10.77.0.1/24 -l -p 5201 -v 7
      the kernel selftest's receiver; the matching sender:
      yes $(echo -e \\\\x01\\\\x02\\\\x03\\\\x04\\\\x05\\\\x06) | tr \\\\n \\\\0 | head -c 5G | nc -N 10.77.0.2 5201
  devmem-tcp recv --addr fd77::2/64 --peer-addr fd77::1/64 -o - > file
      over IPv6, payload to stdout
  devmem-tcp recv --peer-addr 10.77.0.1/24 -k --connections 8 --capture all.pcapng
      until interrupted, up to 8 connections at once, captured with payload
  devmem-tcp recv --backend kernel --if eth1 -l -p 5201 -v 7
      the kernel's own device memory, on a NIC that supports it (`devmem-tcp doctor` tells)
  devmem-tcp recv --backend kernel --if eth1 --dry-run
      what that would change about eth1, as commands";

/// Send a file, stdin or a pattern from device memory (like netcat, or the kernel's ncdevmem)
///
/// Connects from an address of its own, on a TAP interface that is made if it does not exist; or, with --if, through an
/// interface of the kernel whose NIC supports device memory. The bytes go into a ring
/// of chunks in device memory and are sent from there without a copy; a chunk is written again only when its send is
/// complete. Ends when the peer has acknowledged everything, or on SIGINT, SIGTERM or SIGHUP, with
/// statistics.
#[derive(Debug, Args)]
#[command(after_long_help = SEND_EXAMPLES)]
pub struct Send {
    /// Address to connect to
    #[arg(value_name = "HOST")]
    pub to: std::net::IpAddr,
    /// Port to connect to
    #[arg(value_name = "PORT", default_value_t = 5201)]
    pub port: u16,
    #[command(flatten)]
    pub link: LinkArgs,
    /// Send FILE, or stdin for `-`, which is also what is sent without --bytes
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["bytes", "validate"])]
    pub input_file: Option<PathBuf>,
    /// Send a pattern of this length: every byte depends on its position and on our port, as in `demo`
    #[arg(long, value_name = "SIZE")]
    pub bytes: Option<Size>,
    /// With --bytes, repeat the bytes 1 to N-1 and NUL instead, as `recv -v N` expects them
    #[arg(short = 'v', long, value_name = "N", requires = "bytes")]
    pub validate: Option<u16>,
    /// Most bytes of one sendmsg (ncdevmem's -z), and of one chunk of the ring
    #[arg(short = 'z', long, value_name = "SIZE", default_value = "256K")]
    pub chunk: Size,
    /// Device memory to bind: the ring
    #[arg(long, value_name = "SIZE", default_value = "16M")]
    pub mem_size: Size,
    /// Largest IP packet
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    pub mtu: u16,
    /// What is wrong with the link, in both directions; `devmem-tcp wire --help` has the list
    #[arg(long, value_name = "LIST", default_value = "none")]
    pub impair: String,
    /// Ask the peer for ECN: routers mark packets instead of dropping them
    #[arg(long)]
    pub ecn: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

const SEND_EXAMPLES: &str = "\
Examples:
  devmem-tcp send --peer-addr 10.77.0.1/24 10.77.0.1 5201 -i file
      a file to `nc -l 5201 > copy` in the same network namespace
  devmem-tcp send --peer-addr 10.77.0.1/24 10.77.0.1 --bytes 5G -v 7 --chunk 4095 --json
      the kernel selftest's pattern in sends of 4095 bytes, one JSON object on stdout
  devmem-tcp send --peer-addr 10.77.0.1/24 --gateway 10.77.0.1 192.0.2.9 < file
      to a host beyond the kernel's end of the TAP, which forwards it
  devmem-tcp send --backend kernel --if eth1 192.0.2.1 5201 -i file
      from the kernel's own device memory, on a NIC that supports it";

/// Measure receiver, sender and page pool, next to what they must beat
///
/// Runs the program devmem-bench, which lies beside this one (`cargo build --release --bin devmem-bench` builds it), with
/// the same arguments: `devmem-tcp bench --help` lists the benchmarks.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct Bench {
    /// What devmem-bench is called with
    #[arg(
        value_name = "ARGUMENT",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub arguments: Vec<std::ffi::OsString>,
}

/// The NIC and its memory.
#[derive(Debug, Args)]
pub struct NicArgs {
    /// Largest IP packet
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    pub mtu: u16,
    /// RX queues bound to device memory; connections are spread over them
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub queues: u16,
    /// Size of one net_iov: a power of two from 4K to 2M [default: 64K; the kernel's: a page]
    #[arg(long, value_name = "SIZE")]
    pub niov: Option<Size>,
    /// Device memory to bind [default: 256M; for the kernel's: 64M, the usual limit of udmabuf]
    #[arg(long, value_name = "SIZE")]
    pub mem_size: Option<Size>,
    /// What is wrong with the link, in both directions; `devmem-tcp wire --help` has the list
    #[arg(long, value_name = "LIST", default_value = "none")]
    pub impair: String,
}

/// Print where the shared object for packetdrill is
///
/// packetdrill, Google's TCP test tool, drives this stack through it: packetdrill --so_filename=PATH script.pkt.
#[derive(Debug, Args)]
pub struct PacketdrillPath {
    #[command(flatten)]
    pub output: OutputArgs,
}

/// The demo's receiver: listens, says so, checks the pattern, and says what it got.
#[derive(Debug, Args)]
pub struct Receiver {
    #[arg(long)]
    pub listen: std::net::SocketAddr,
    #[arg(long)]
    pub connections: u16,
    #[arg(long)]
    pub cpu: Option<usize>,
}

/// The demo's sender: connects and sends the pattern.
#[derive(Debug, Args)]
pub struct Sender {
    #[arg(long)]
    pub to: std::net::SocketAddr,
    #[arg(long)]
    pub bytes: u64,
    #[arg(long)]
    pub connections: u16,
    #[arg(long)]
    pub write_size: usize,
    #[arg(long)]
    pub congestion: String,
    #[arg(long)]
    pub cpu: Option<usize>,
}
