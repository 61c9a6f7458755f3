//! The command line of `devmem-tcp lab`, as text and numbers.

#![expect(
    missing_docs,
    reason = "comments are help texts here; fields without one are described by their types"
)]

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::accel::Accel;
use super::group::Group;
use tool::parse::OutputArgs;
use tool::size::Size;

/// Run the kernel's device memory TCP in a stock Linux guest with emulated NICs
///
/// Uses the installed QEMU (10.1 or later) and Linux kernel if they support device memory TCP, else packages of the
/// distribution, unpacked into a cache folder. Starts a guest with two gVNICs, connected by a wire, and our tools. Needs
/// neither root nor KVM, and changes nothing on this machine.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Lab {
    #[command(subcommand)]
    pub command: LabCommand,
}

const EXAMPLES: &str = "\
In the guest: eth0 (10.77.0.1/24, fd77::1/64) in the network namespace `peer`, eth1 (10.77.0.2/24, fd77::2/64) where
commands run; busybox, ip, tc, ss, ethtool and devmem-tcp; DEVMEM_TEST_NIC=eth1.

Examples:
  devmem-tcp lab fetch
      get everything, once; later runs need no network
  devmem-tcp lab run -- ethtool -g eth1
      boot, run, print, exit as the command does
  devmem-tcp lab run --get /tmp/x.json:x.json -- sh -c 'ip -j addr > /tmp/x.json'
      a file back
  tar -c . | devmem-tcp lab run -i -- sh -c 'tar -x; ls'
      what is piped in is the command's standard input
  devmem-tcp lab run --put target/debug/deps/nic-0123 -- /nic-0123
      a test program of your own; the libraries it needs go with it
  devmem-tcp lab run --kernel arch/x86/boot/bzImage --modules . -- devmem-tcp lab --help
      the kernel you have just built
  devmem-tcp lab run --share .:/src --cpus 4 --nics 4 --queues 8 -- sh -c 'cd /src && ./test.sh'
      this folder, read-write, at /src; more processors, NICs and queues
  devmem-tcp lab run --gdb --gdb-wait --kernel arch/x86/boot/bzImage -- true
      the guest waits for: gdb vmlinux -ex 'target remote 127.0.0.1:1234' -ex 'hbreak start_kernel' -ex continue
  devmem-tcp lab run --pair -- sh -c 'ping -c 1 10.77.0.$((2 - DEVMEM_TEST_GUEST))'
      two guests on one wire, each with its own kernel
  devmem-tcp lab exchange --impair loss=1%
      two guests, whose kernels exchange messages through our plugin for NCCL, over a wire that loses packets
  devmem-tcp lab shell
      look around; exit or Ctrl-D ends it";

#[derive(Debug, Subcommand)]
pub enum LabCommand {
    Fetch(Fetch),
    Status(Status),
    Run(Run),
    Shell(Shell),
    Test(Test),
    Exchange(Exchange),
    Selftests(Selftests),
}

/// Fetch QEMU, a kernel and tools
#[derive(Debug, Args)]
pub struct Fetch {
    #[command(flatten)]
    pub kit: KitArgs,
    /// Fetch again even if the cache is complete
    #[arg(long)]
    pub refresh: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Show which QEMU, kernel and tools a guest would use, without fetching anything
///
/// `runs by` is what a run would use. To find out whether KVM works, a guest is started once after each boot of this machine.
#[derive(Debug, Args)]
pub struct Status {
    #[command(flatten)]
    pub kit: KitArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Run a command in a fresh guest
///
/// Ends with the command's exit code, or with 1 if the guest did not boot, a file of --get is missing, or the guest's
/// kernel logged a warning.
#[derive(Debug, Args)]
pub struct Run {
    #[command(flatten)]
    pub guest: GuestArgs,
    #[command(flatten)]
    pub devices: DeviceArgs,
    /// Copy a file or a folder into the guest, to PLACE or to its name in /; programs bring the libraries that they need
    #[arg(long, value_name = "PATH[:PLACE]")]
    pub put: Vec<String>,
    /// Copy the file PLACE from the guest, to FILE or to its name in the current folder
    #[arg(long, value_name = "PLACE[:FILE]")]
    pub get: Vec<String>,
    /// Set an environment variable of the command
    #[arg(long, value_name = "NAME=VALUE")]
    pub env: Vec<String>,
    /// Pass standard input to the command [default: no input]
    #[arg(short = 'i', long)]
    pub stdin: bool,
    /// End the run after this many seconds
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// Print the result of the run as one JSON object to stdout, and the command's output to stderr
    #[arg(long)]
    pub json: bool,
    /// Do not fail on warnings of the guest's kernel
    #[arg(long)]
    pub allow_warnings: bool,
    /// Run the command in two guests at the same time, with one NIC each, at both ends of one wire
    ///
    /// In the guest with DEVMEM_TEST_GUEST=0, eth0 has the addresses of eth0 below; in that with DEVMEM_TEST_GUEST=1, eth0 has those of
    /// eth1. Each guest has half of the processors. The run ends with the first exit code that is not 0.
    #[arg(long, conflicts_with_all = ["nics", "wire", "stdin", "get", "json", "share", "disk", "gdb"])]
    pub pair: bool,
    /// The command, after `--`
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// Start an interactive shell in a guest
#[derive(Debug, Args)]
pub struct Shell {
    #[command(flatten)]
    pub guest: GuestArgs,
    #[command(flatten)]
    pub devices: DeviceArgs,
    /// Copy a file or a folder into the guest, to PLACE or to its name in /
    #[arg(long, value_name = "PATH[:PLACE]")]
    pub put: Vec<String>,
}

/// Run the acceptance tests of a stock kernel with our NICs
///
/// Each row checks every byte; a warning in the kernel log of a guest fails its group. The table is printed to stderr row
/// by row.
#[derive(Debug, Args)]
pub struct Test {
    #[command(flatten)]
    pub guest: GuestArgs,
    /// Bytes of each large stream
    #[arg(long, value_name = "SIZE", default_value = "32M")]
    pub bytes: Size,
    /// Groups to run [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub group: Vec<Group>,
    /// Also run the group `long`, which takes about 15 minutes
    #[arg(long)]
    pub long: bool,
    /// Run only rows with TEXT in their name
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    #[command(flatten)]
    pub plugin: PluginArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Let two guests exchange messages through our plugin for NCCL
///
/// Starts two guests, each with one NIC, on one wire. Each loads the plugin by its symbols, as NCCL does; the plugin binds device
/// memory to the NIC, and the guests send each other messages of 0 bytes to 8 MiB, from dma-bufs, in both directions at the
/// same time. Every byte is checked, and the bytes that the kernel received in device memory are counted. The rate is that of one
/// direction.
#[derive(Debug, Args)]
pub struct Exchange {
    #[command(flatten)]
    pub guest: GuestArgs,
    /// Bytes that are sent in each direction in messages of 1 MiB
    #[arg(long, value_name = "SIZE", default_value = "32M")]
    pub bytes: Size,
    #[command(flatten)]
    pub plugin: PluginArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Argument for guests that exchange.
#[derive(Debug, Args)]
pub struct PluginArgs {
    /// The plugin for NCCL that two guests exchange through [default: libnccl_net_devmem.so beside this program, else
    /// libnccl-net-devmem.so in /usr/local/lib or /usr/lib]
    #[arg(long, value_name = "FILE")]
    pub plugin: Option<PathBuf>,
}

/// Run the Linux kernel's NIC tests on our NIC
///
/// Runs test programs of a Linux source tree (tools/testing/selftests/drivers/net and drivers/net/hw) in a guest, with its
/// second NIC as the remote end, and prints the result of each test case. Programs in C must have been built in the tree:
/// test cases that need them fail otherwise. Python and other programs that the tests need are fetched once.
#[derive(Debug, Args)]
pub struct Selftests {
    #[command(flatten)]
    pub guest: GuestArgs,
    /// Top folder of the source tree
    #[arg(long, value_name = "FOLDER")]
    pub tree: PathBuf,
    /// Maximum seconds for a program
    #[arg(long, value_name = "N", default_value_t = 600)]
    pub limit: u64,
    /// Run this bash command in the guest before each program, such as `ethtool -K $NETIF rx-gro-hw off`
    #[arg(long, value_name = "COMMAND")]
    pub before: Option<String>,
    /// Write the whole output of the programs to this file
    #[arg(long, value_name = "FILE")]
    pub transcript: Option<PathBuf>,
    #[command(flatten)]
    pub output: OutputArgs,
    /// Test programs, as `ping` or drivers/net/ping.py [default: those that a gVNIC can pass]
    pub names: Vec<String>,
}

/// Arguments for a guest: its parts and its machine.
#[derive(Debug, Args)]
pub struct GuestArgs {
    #[command(flatten)]
    pub kit: KitArgs,
    #[command(flatten)]
    pub machine: MachineArgs,
}

/// Arguments for the origin of the guest's parts.
#[derive(Debug, Args)]
#[command(next_help_heading = "Parts of the guest")]
pub struct KitArgs {
    /// Cache folder [default: devmem-tcp/lab in $XDG_CACHE_HOME or ~/.cache]
    #[arg(long, value_name = "FOLDER")]
    pub cache: Option<PathBuf>,
    /// Release to fetch packages from, with its backports if any: NAME[,NAME-backports]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub suite: Option<Vec<String>>,
    /// Release to fetch the kernel from [default: as --suite]
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        conflicts_with = "kernel"
    )]
    pub kernel_suite: Option<Vec<String>>,
    /// Base address of the package archive [default: this machine's]
    #[arg(long, value_name = "URL")]
    pub mirror: Option<String>,
    /// Use packages even if suitable programs are installed
    #[arg(long)]
    pub packaged: bool,
    /// Fetch nothing
    #[arg(long)]
    pub offline: bool,
    /// QEMU to use
    #[arg(long, value_name = "PROGRAM")]
    pub qemu: Option<PathBuf>,
    /// Kernel image to boot
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,
    /// Folder with the modules of that kernel, searched for gve and the modules of the tests
    #[arg(long, value_name = "FOLDER", requires = "kernel")]
    pub modules: Option<PathBuf>,
    /// A statically linked busybox
    #[arg(long, value_name = "PROGRAM")]
    pub busybox: Option<PathBuf>,
}

/// The machine.
#[derive(Debug, Args)]
#[command(next_help_heading = "The guest's machine")]
pub struct MachineArgs {
    /// How instructions are executed
    #[arg(long, value_enum, default_value_t = Accel::Auto)]
    pub accel: Accel,
    /// Virtual processors
    #[arg(long, value_name = "N", alias = "smp", default_value_t = 2)]
    pub cpus: u16,
    /// Memory
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    pub memory: Size,
    /// Number of gVNICs, connected in pairs by wires: the first with the second, the third with the fourth
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub nics: u8,
    /// RX and TX queue pairs of each NIC
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub queues: u16,
    /// Largest IP packet
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    pub mtu: u16,
    /// With --nics 1: the other end of its wire, as in `devmem-tcp nic --wire`
    #[arg(long, value_name = "WIRE")]
    pub wire: Option<String>,
    /// Impairments of the wires; `devmem-tcp wire --help` lists them
    #[arg(long, value_name = "LIST")]
    pub impair: Option<String>,
    /// Write every packet of the first NIC, payload included, to FILE for Wireshark
    #[arg(long, value_name = "FILE.pcapng")]
    pub capture: Option<PathBuf>,
    /// Write the guest's kernel log to this file; that of the second of two guests to FILE.2
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Another devmem-tcp to serve the NICs
    #[arg(long, value_name = "PROGRAM", hide = true)]
    pub nic_program: Option<PathBuf>,
    /// Parameters to append to the guest's kernel command line
    #[arg(long, value_name = "WORDS", default_value = "")]
    pub append: String,
}

/// Devices and debugger of a guest that runs a command or a shell.
#[derive(Debug, Args)]
#[command(next_help_heading = "The guest's machine")]
pub struct DeviceArgs {
    /// Share a folder with the guest, read-write, at PLACE or at its name in /
    ///
    /// Files that belong to your user belong to root in the guest, and files that the guest creates belong to your user. If
    /// root runs the lab, owners and groups are the same on both sides. The guest's kernel needs CONFIG_VIRTIO_FS; virtiofsd is
    /// fetched once if it is not installed.
    #[arg(long, value_name = "DIR[:PLACE]")]
    pub share: Vec<String>,
    /// Add a disk with the contents of FILE: the first is /dev/vda, the second /dev/vdb
    ///
    /// The guest writes to FILE, except with `ro`. The format is raw unless another one is named; it is not detected from the
    /// bytes of the file. A qcow2 image can name other files of this machine: use one only if you trust its origin.
    #[arg(long, value_name = "FILE[,ro][,format=raw|qcow2]")]
    pub disk: Vec<String>,
    /// Let a debugger connect to 127.0.0.1:PORT [default: 1234]; any user of this machine can
    #[arg(long, value_name = "PORT", num_args = 0..=1, require_equals = true, default_missing_value = "1234",
          value_parser = clap::value_parser!(u16).range(1..))]
    pub gdb: Option<u16>,
    /// Do not start the guest's processors before the debugger's command to continue
    #[arg(long, requires = "gdb")]
    pub gdb_wait: bool,
}
