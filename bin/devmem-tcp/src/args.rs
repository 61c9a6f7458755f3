//! The command line as text and numbers; `plan.rs` validates it.

mod broker;
mod helper;
mod kernel;
mod lease;
mod link;
mod load;
mod nic;
mod store;
mod tcp;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use tool::doctor::DoctorArgs;
use tool::memory::MemoryKind;
use tool::parse::OutputArgs;
use tool::size::Size;
use tool::stock::StockServer;

pub use broker::Broker;
pub use helper::{DemoNvmeTarget, DemoRank, DemoReceiver, DemoSender, HelperCli, HelperCommand};
pub use kernel::{Ncdevmem, Restore};
pub use lease::Lease;
pub use link::{BackendChoice, DEFAULT_LINK, LinkArgs};
pub use load::{ChecksumKind, Load, TlsArgs};
pub use nic::NicArgs;
pub use store::Store;
pub use tcp::{BufferArgs, CongestionChoice, TcpArgs};

/// Device memory TCP: receive TCP payload straight into device memory.
///
/// The payload of TCP connections goes into bound device memory, and only headers go to host memory. This tool runs a
/// user-space TCP/IP stack on a TAP interface, which copies each byte once, or uses the kernel's stack on a NIC that
/// supports device memory TCP, which copies none. The peers are ordinary TCP programs.
#[derive(Debug, Parser)]
#[command(name = "devmem-tcp", version, max_term_width = 100, after_help = TOP_NOTES)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

const TOP_NOTES: &str = "\
`devmem-tcp demo` shows a transfer and needs no set-up; `devmem-tcp doctor` shows what this machine supports.

Exit status: 0 done, 1 failed, 2 wrong usage, 3 not supported on this machine.
SIGINT (Ctrl-C), SIGTERM and SIGHUP end a run with its report, and with status 1 if anything was left to do.
`recv --keep-listening` without an open connection, `nic`, `wire`, `lease` and `broker` end only by a signal: with 0.
Results for programs go to stdout (--json), messages for people to stderr.
Sizes take K, M, G, T (times 1024) or kB, MB, GB, TB (times 1000).";

#[derive(Debug, Subcommand)]
pub enum Command {
    Demo(Demo),
    Recv(Recv),
    Send(Send),
    Load(Load),
    Store(Store),
    Wire(gvnic_server::args::WireArgs),
    Nic(gvnic_server::args::NicArgs),
    Bench(Bench),
    PacketdrillPath(PacketdrillPath),
    Lab(Box<lab::args::Lab>),
    Doctor(DoctorArgs),
    Lease(Lease),
    Broker(Broker),
    Restore(Restore),
    Ncdevmem(Ncdevmem),
}

/// Server of `demo --load`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum DemoServer {
    /// nginx, which serves ranges by HTTP
    Nginx,
    /// Python's http.server, which serves whole files by HTTP
    Python,
    /// qemu-nbd, by NBD
    QemuNbd,
    /// nbdkit, by NBD
    Nbdkit,
    /// A small NVMe/TCP target of ours, which every machine has
    Nvme,
}

impl DemoServer {
    /// Returns the stock server, if it is one.
    pub fn stock(self) -> Option<StockServer> {
        match self {
            Self::Nginx => Some(StockServer::Nginx),
            Self::Python => Some(StockServer::Python),
            Self::QemuNbd => Some(StockServer::QemuNbd),
            Self::Nbdkit => Some(StockServer::Nbdkit),
            Self::Nvme => None,
        }
    }
}

/// Demonstrate device memory TCP between a kernel socket and our stack, and verify every byte
///
/// Creates a network namespace (for an ordinary user inside a user namespace), a TAP interface in it, and a second process
/// that sends a stream through an ordinary kernel TCP socket. Every byte of the stream depends on its position. Our stack
/// receives it into device memory and checks every byte there. Where TUN is not available, the demo prints a note and
/// uses an in-memory wire between two of our stacks instead. With --direction tx, our stack sends the stream from device
/// memory, and the second process receives and checks it.
///
/// With --exchange, four processes form a ring and compute an all-reduce and an all-gather of a vector of floats, by messages
/// between their memories. The result must be the same as that of a serial computation. If there is a working
/// NVIDIA GPU, the vectors are in its memory (cuda:0), and it adds them; otherwise they are in host memory. --memory chooses the
/// memory; vectors in any other than that of an NVIDIA GPU are added by the CPU.
///
/// With --load, a stock server (nginx, qemu-nbd, nbdkit or python3 -m http.server) serves a file, our stack loads it into
/// device memory, and every byte is checked there. --load=nvme needs no stock server: a small NVMe/TCP target of ours serves the file.
#[derive(Debug, Args)]
#[command(after_long_help = DEMO_EXAMPLES)]
pub struct Demo {
    /// All-reduce and all-gather between four processes, each with a stack of ours, over UNIX sockets; needs no privilege
    #[arg(
        long,
        conflicts_with_all = ["direction", "connections", "link", "write_size", "congestion", "capture", "watch", "queues",
            "niov", "mem_size", "send_buffer", "receive_buffer", "pacing"]
    )]
    pub exchange: bool,
    /// Load a file from a stock server, the first one that is installed or the named one, over a TAP or --link packet
    #[arg(
        long,
        value_name = "SERVER",
        value_enum,
        num_args = 0..=1,
        require_equals = true,
        conflicts_with_all = ["exchange", "direction", "write_size", "congestion", "capture", "watch"]
    )]
    pub load: Option<Option<DemoServer>>,
    /// Direction of the transfer
    #[arg(long, value_enum, default_value_t = Direction::Rx)]
    pub direction: Direction,
    /// Bytes to transfer, over all connections; with --exchange: of the vector; with --load: of the file [default: 5G; with
    /// --exchange: 64M; with --load: 256M]
    #[arg(long, value_name = "SIZE")]
    pub bytes: Option<Size>,
    /// Number of simultaneous connections [default: 1; with --load: 4]
    #[arg(long, value_name = "N")]
    pub connections: Option<u16>,
    /// Use IPv6
    #[arg(long)]
    pub ipv6: bool,
    /// Link: tap fails where TUN is not available, packet where veth is not, auto falls back to wire
    #[arg(long, value_enum, default_value_t = DemoLink::Auto)]
    pub link: DemoLink,
    /// Bytes per send call of the sender
    #[arg(long, value_name = "SIZE", default_value = "1M")]
    pub write_size: Size,
    /// Congestion control of the sender: of its kernel socket, or with --direction tx and loopback of our stack (cubic, reno, bbr, dctcp)
    #[arg(long, value_name = "NAME", default_value = "cubic")]
    pub congestion: String,
    /// Write every packet, payload included, to FILE for Wireshark, with comments: queue, split, net_iovs, tokens. If the disk
    /// fills up, the capture stops, the run goes on, and the exit status is 1
    #[arg(long, value_name = "FILE.pcapng")]
    pub capture: Option<PathBuf>,
    /// Show the transfer live on the whole terminal: queues, page pools, net_iovs, tokens, windows, rates. The keys q and Ctrl-C
    /// end the run
    #[arg(long)]
    pub watch: bool,
    #[command(flatten)]
    pub buffers: BufferArgs,
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
      over a bad link; the seed makes it the same in every run
  devmem-tcp demo --load
      a file of a stock server, such as nginx, into device memory
  devmem-tcp demo --load=qemu-nbd --connections 1 --bytes 1G
      an export of an NBD server over one connection
  devmem-tcp demo --load=nvme
      a namespace of an NVMe/TCP target over its I/O queues
  devmem-tcp demo --exchange --bytes 16M
      all-reduce and all-gather of 4 Mi floats between four processes
  devmem-tcp demo --exchange --memory anonymous
      the same on the CPU, also where there is a GPU";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From the peer into our device memory
    #[default]
    Rx,
    /// From our device memory to the peer
    Tx,
    /// First rx, then tx
    Both,
    /// From device memory to device memory, between two sockets of our stack
    Loopback,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DemoLink {
    /// TAP if this machine supports it, else wire
    Auto,
    /// TAP interface, with the kernel's TCP as the peer
    Tap,
    /// Packet socket on one end of a veth pair, with the kernel's TCP at the other end: as between two machines
    Packet,
    /// In-memory wire between two of our stacks
    Wire,
}

/// Receive TCP connections into device memory (like netcat, or the kernel's ncdevmem)
///
/// Our stack listens on an address of a TAP interface, which is created if it does not exist. With --if, the kernel's stack
/// listens on an interface with a NIC that supports device memory; the NIC is set up first, and its previous settings are
/// restored at the end. The command ends with statistics when all connections have ended, or on SIGINT, SIGTERM or SIGHUP: then with
/// exit status 1, unless it keeps listening and no connection is open.
#[derive(Debug, Args)]
#[command(after_long_help = RECV_EXAMPLES)]
pub struct Recv {
    #[command(flatten)]
    pub link: LinkArgs,
    /// Print the changes to the NIC as commands on stdout, and change nothing
    #[arg(long, requires = "interface", conflicts_with_all = ["configured", "broker"])]
    pub dry_run: bool,
    /// With --configured or --broker: first of the --queues queues to bind, unchecked [default: those that the agent has prepared]
    #[arg(long, value_name = "N", requires = "agents")]
    pub first_queue: Option<u32>,
    /// Listen; recv always does, the option exists for compatibility with nc and ncdevmem
    #[arg(short = 'l', long)]
    pub listen: bool,
    /// Port to listen on
    #[arg(short, long, value_name = "PORT", default_value_t = 5201)]
    pub port: u16,
    /// Accept N simultaneous connections, and end when all of them have ended
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub connections: u16,
    /// Keep accepting connections, up to --connections at a time, until a signal arrives; print a line for each
    #[arg(short, long)]
    pub keep_listening: bool,
    /// Print bytes and rate of every interval of this many seconds; time without a connection does not count
    #[arg(short = 'i', long, value_name = "SECONDS")]
    pub interval: Option<f64>,
    /// Check that the stream repeats the bytes 1 to N-1 and one separator, NUL or newline, the same one each time
    #[arg(short = 'v', long, value_name = "N")]
    pub validate: Option<u16>,
    /// Write the payload to FILE, or to stdout for `-`
    #[arg(short, long, value_name = "FILE")]
    pub output_file: Option<PathBuf>,
    /// Keep the last N received frags before returning them; the sender stalls if they take up nearly all of the memory
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub keep_tokens: usize,
    /// Leave the first N payload bytes of every packet in host memory
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub linear: u16,
    /// Write every packet, payload included, to FILE for Wireshark, with comments: queue, split, net_iovs, tokens. If the disk
    /// fills up, the capture stops, the run goes on, and the exit status is 1
    #[arg(long, value_name = "FILE.pcapng", conflicts_with = "shards")]
    pub capture: Option<PathBuf>,
    /// Show the transfer live on the whole terminal: queues, page pools, net_iovs, tokens, windows, rates. The keys q and Ctrl-C
    /// end the run
    #[arg(long)]
    pub watch: bool,
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
      up to 8 connections at a time until interrupted, captured with payload
  devmem-tcp recv --peer-addr 10.77.0.1/24 -k -i 1
      a line for every connection and every second of receiving
  devmem-tcp recv --link packet:eth0 --addr 10.0.0.77/24 -l
      from another machine of the network of eth0, at a free address: nc -N 10.0.0.77 5201 < file
  devmem-tcp recv --link packet:eth0 --addr auto -l
      the same at an address of the network's DHCP server, which is printed
  devmem-tcp recv --backend kernel --if eth1 -l -p 5201 -v 7
      with the kernel's stack, on a NIC that supports device memory (see `devmem-tcp doctor`)
  devmem-tcp recv --backend kernel --if eth1 --dry-run
      the changes that the previous command would make to eth1, as commands";

/// Send a file, stdin or a pattern from device memory (like netcat, or the kernel's ncdevmem)
///
/// Our stack connects from an address of a TAP interface, which is created if it does not exist. With --if, the kernel's
/// stack connects through an interface with a NIC that supports device memory. The bytes are written to a ring of chunks in
/// device memory and sent from there without a copy; a chunk is reused only when its send is complete. The command ends with
/// statistics when the peer has acknowledged everything, or, with exit status 1, on SIGINT, SIGTERM or SIGHUP.
#[derive(Debug, Args)]
#[command(after_long_help = SEND_EXAMPLES)]
pub struct Send {
    /// IP address to connect to, with or without the port: 10.77.0.1, 10.77.0.1:5201, fd77::1 (with a port, in brackets)
    #[arg(value_name = "HOST")]
    pub to: String,
    /// Port to connect to [default: 5201]
    #[arg(value_name = "PORT")]
    pub port: Option<u16>,
    #[command(flatten)]
    pub link: LinkArgs,
    /// Send FILE, or stdin for `-` [default: stdin, unless --bytes is given]
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["bytes", "validate"])]
    pub input_file: Option<PathBuf>,
    /// Send a pattern of SIZE bytes, each of which depends on its position and on our port, as in `demo`
    #[arg(long, value_name = "SIZE")]
    pub bytes: Option<Size>,
    /// With --bytes: repeat the bytes 1 to N-1 and NUL instead, as `recv -v N` expects them
    #[arg(short = 'v', long, value_name = "N", requires = "bytes")]
    pub validate: Option<u16>,
    /// Size of a chunk of the ring, and maximum number of bytes per sendmsg (ncdevmem's -z)
    #[arg(short = 'z', long, value_name = "SIZE", default_value = "256K")]
    pub chunk: Size,
    /// Size of the ring, the device memory to bind
    #[arg(long, value_name = "SIZE", default_value = "16M")]
    pub mem_size: Size,
    /// Kind of that memory: anonymous, udmabuf, cuda:N or hip:N for GPU N, or vulkan:N for Vulkan device N [default: anonymous; with the kernel's stack: udmabuf]
    #[arg(long, value_name = "KIND")]
    pub memory: Option<MemoryKind>,
    /// MTU: largest IP packet [default: 1500; with packet:NAME or macvtap:NAME that of the interface]
    #[arg(long, value_name = "BYTES")]
    pub mtu: Option<u16>,
    /// Impairments of the link, in both directions; `devmem-tcp wire --help` lists them
    #[arg(long, value_name = "LIST", default_value = "none")]
    pub impair: String,
    /// Negotiate ECN: routers then mark packets instead of dropping them
    #[arg(long)]
    pub ecn: bool,
    /// Write every packet, payload included, to FILE for Wireshark, with comments: the place in device memory. If the disk
    /// fills up, the capture stops, the run goes on, and the exit status is 1
    #[arg(long, value_name = "FILE.pcapng", conflicts_with = "shards")]
    pub capture: Option<PathBuf>,
    /// Show the transfer live on the whole terminal: queues, page pools, net_iovs, tokens, windows, rates. The keys q and Ctrl-C
    /// end the run
    #[arg(long)]
    pub watch: bool,
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
      to a host in another network, through the kernel's end of the TAP as router
  devmem-tcp send --backend kernel --if eth1 192.0.2.1 5201 -i file
      with the kernel's stack, on a NIC that supports device memory";

/// Measure receiver, sender and page pool against the kernel and against bare system calls
///
/// Runs the program devmem-bench, which must be in the same directory as this one (`cargo build --release --bin devmem-bench`
/// builds it), with the same arguments: `devmem-tcp bench --help` lists the benchmarks.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct Bench {
    /// Arguments of devmem-bench
    #[arg(
        value_name = "ARGUMENT",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub arguments: Vec<std::ffi::OsString>,
}

/// Print the path of the shared object for packetdrill
///
/// packetdrill, Google's TCP test tool, tests this stack through it: packetdrill --so_filename=PATH script.pkt.
#[derive(Debug, Args)]
pub struct PacketdrillPath {
    #[command(flatten)]
    pub output: OutputArgs,
}
