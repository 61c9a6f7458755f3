//! The command lines of `nic` and `wire`, as text and numbers; `plan.rs` validates them.

use std::path::PathBuf;

use clap::Args;
use tool::parse::OutputArgs;

/// Connect two hosts with an impaired cable
///
/// Each end is a TAP interface or an Ethernet interface, usually in separate network namespaces, or a UNIX socket of a user-space
/// stack (`--link unix:PATH`) or an emulated NIC. Frames from one end go to the other; --impair delays, drops, corrupts,
/// duplicates or reorders them. For machines without netem in the kernel.
#[derive(Debug, Args)]
#[command(after_long_help = WIRE_EXAMPLES)]
pub struct WireArgs {
    /// One end: tap:NAME, created if it does not exist; packet:NAME, all frames of an Ethernet interface, without those of VLANs;
    /// unix-listen:PATH, to listen for the host; unix:PATH, to connect to it
    #[arg(long, value_name = "LINK")]
    pub a: String,
    /// The other end
    #[arg(long, value_name = "LINK")]
    pub b: String,
    /// Network namespace of the interface --a: a name under /run/netns, a path, or pid:N
    #[arg(long, value_name = "NETNS")]
    pub a_netns: Option<String>,
    /// Network namespace of the interface --b
    #[arg(long, value_name = "NETNS")]
    pub b_netns: Option<String>,
    /// Address of the TAP interface --a, which is then set up
    #[arg(long, value_name = "ADDR/LEN")]
    pub a_addr: Option<String>,
    /// Address of the TAP interface --b, which is then set up
    #[arg(long, value_name = "ADDR/LEN")]
    pub b_addr: Option<String>,
    /// Largest IP packet (MTU), set on each TAP interface that is given an address
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    pub mtu: u16,
    /// Impairments of the cable, in both directions; see below
    #[arg(long, value_name = "LIST", default_value = "none")]
    pub impair: String,
    /// End after this many seconds; a signal before that is exit status 1 [default: run until SIGINT, SIGTERM or SIGHUP]
    #[arg(long, value_name = "N")]
    pub seconds: Option<u64>,
    /// Format of the result.
    #[command(flatten)]
    pub output: OutputArgs,
}

const WIRE_EXAMPLES: &str = "\
Impairments, separated by commas; every one may be left out:
  loss=1%  ce=1% (marked as by a router, or lost if not ECN-capable)  reorder=1%  gap=4  dup=1%
  corrupt=1%  delay=20ms  jitter=2ms  ordered  mtu=1200  rate=1gbit  limit=1000 (frames)  seed=7
  ce_threshold=1ms (ECN-capable packets that wait longer for the rate are marked)

Examples:
  devmem-tcp wire --a tap:x --a-netns left --a-addr 10.0.0.1/24 \\
                  --b tap:y --b-netns right --b-addr 10.0.0.2/24 --impair loss=5%,delay=10ms
  devmem-tcp wire --a unix-listen:/tmp/wire --b tap:y --b-netns right --b-addr 10.0.0.2/24 --impair loss=5%
      between our stack, `devmem-tcp send --link unix:/tmp/wire --addr 10.0.0.1/24 10.0.0.2`, and the kernel's
  devmem-tcp wire --a packet:eth1 --b packet:eth2 --impair loss=1%,delay=20ms
      between the networks of two interfaces of this machine, or two veth pairs";

/// Serve an emulated gVNIC to a virtual machine (vfio-user)
///
/// The NIC has header split, RSS, flow rules and coalescing, and works with Linux's gve driver: all that a guest needs
/// for the kernel's device memory TCP. QEMU 10.1 or later connects to --socket. The cable leads to the kernel of this
/// machine (a TAP), to another such NIC, or to `devmem-tcp recv --link unix:PATH`. Virtual machines may connect one after
/// the other. Ends on SIGINT, SIGTERM or SIGHUP, and prints statistics; SIGUSR1 prints them at any time.
#[derive(Debug, Args)]
#[command(after_long_help = NIC_EXAMPLES)]
pub struct NicArgs {
    /// UNIX socket to create for the virtual machine
    #[arg(long, value_name = "PATH")]
    pub socket: PathBuf,
    /// Other end of the cable: tap:NAME, tap:NAME,ADDR/LEN (sets the address of the interface), unix-listen:PATH (listens
    /// for the other end) or unix:PATH (connects to the other end)
    #[arg(long, value_name = "WIRE")]
    pub wire: String,
    /// Queue pairs
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub queues: u16,
    /// Hardware address of the guest [default: random]
    #[arg(long, value_name = "ADDRESS")]
    pub mac: Option<String>,
    /// Default MTU that the device announces
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    pub mtu: u16,
    /// Largest MTU that the guest may set; Linux guests start with it [default: --mtu]
    #[arg(long, value_name = "BYTES")]
    pub max_mtu: Option<u16>,
    /// Impairments of the cable, in both directions; `devmem-tcp wire --help` has the list
    #[arg(long, value_name = "LIST", default_value = "none")]
    pub impair: String,
    /// Write every frame, payload included, to FILE for Wireshark. If the disk is full, the run continues without a capture
    /// and ends with exit code 1
    #[arg(long, value_name = "FILE.pcapng")]
    pub capture: Option<PathBuf>,
    /// For tests: leave the first N payload bytes of split packets in the header buffer
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub linear: u16,
    /// For tests: deliver every Nth packet of a queue unsplit, which a queue with device memory drops; 0 for none
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub unsplit_every: u32,
    /// For tests: request a reset from the driver after every N delivered frames; 0 for none
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub reset_every: u32,
    /// End when the first virtual machine has disconnected; a signal before that is exit status 1
    #[arg(long)]
    pub once: bool,
    /// For tests: read commands from standard input, one per line: reset, link up, link down, stats (JSON on stdout),
    /// linear N, unsplit-every N, keep-buffers N, quit
    #[arg(long)]
    pub control: bool,
    /// Format of the result.
    #[command(flatten)]
    pub output: OutputArgs,
}

const NIC_EXAMPLES: &str = "\
Examples:
  devmem-tcp nic --socket /tmp/nic0.sock --wire tap:dm0,10.77.0.1/24
      a NIC between a virtual machine and this kernel; then start the machine:
      qemu-system-x86_64 -machine q35,memory-backend=ram0 -m 2048 \\
          -object memory-backend-memfd,id=ram0,size=2048M,share=on \\
          -device '{\"driver\":\"vfio-user-pci\",\"socket\":{\"type\":\"unix\",\"path\":\"/tmp/nic0.sock\"}}' ...
  devmem-tcp nic --socket /tmp/nic0.sock --wire unix-listen:/tmp/wire --impair loss=1%,delay=2ms
      no privilege, a bad cable; at its other end another NIC with --wire unix:/tmp/wire, or our own stack:
      devmem-tcp recv --link unix:/tmp/wire -l -p 5201 -v 7";
