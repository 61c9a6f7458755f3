//! The command line of `devmem-tcp lab`, as text and numbers.

#![expect(
    missing_docs,
    reason = "comments are help texts here: what has none is shown by its own type"
)]

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::accel::Accel;
use super::suite::Group;
use tool::parse::OutputArgs;
use tool::size::Size;

/// A stock Linux guest whose kernel runs devmem TCP on emulated NICs
///
/// Gets QEMU (10.1 or later) and a Linux kernel with device memory TCP: what is installed here if it serves, else the
/// distribution's packages, unpacked into a cache folder. Starts a guest with two gVNICs joined by a wire, our tools
/// inside. Needs neither root nor KVM, and changes nothing on this machine.
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
  devmem-tcp lab shell
      look around; exit or Ctrl-D ends it";

#[derive(Debug, Subcommand)]
pub enum LabCommand {
    Fetch(Fetch),
    Status(Status),
    Run(Run),
    Shell(Shell),
    Test(Test),
}

/// Get what a guest is made of
#[derive(Debug, Args)]
pub struct Fetch {
    #[command(flatten)]
    pub kit: KitArgs,
    /// Fetch anew even what is there
    #[arg(long)]
    pub refresh: bool,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Show what a guest would be made of, without fetching anything
#[derive(Debug, Args)]
pub struct Status {
    #[command(flatten)]
    pub kit: KitArgs,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Run a command in a fresh guest
///
/// Ends with the command's exit code; with 1 if the guest did not come up, a file did not come back, or the guest's
/// kernel warned of anything.
#[derive(Debug, Args)]
pub struct Run {
    #[command(flatten)]
    pub guest: GuestArgs,
    /// Take a file or a folder into the guest, as PLACE or under its name in /; libraries that programs need go with them
    #[arg(long, value_name = "PATH[:PLACE]")]
    pub put: Vec<String>,
    /// Bring PLACE back from the guest, as FILE or under its name here
    #[arg(long, value_name = "PLACE[:FILE]")]
    pub get: Vec<String>,
    /// Set a variable for the command
    #[arg(long, value_name = "NAME=VALUE")]
    pub env: Vec<String>,
    /// Pass standard input on to the command; without this it gets none
    #[arg(short = 'i', long)]
    pub stdin: bool,
    /// End the run after this many seconds
    #[arg(long, value_name = "N")]
    pub limit: Option<u64>,
    /// Print how the run went as one JSON object to stdout, and the command's output to stderr
    #[arg(long)]
    pub json: bool,
    /// Do not fail for what the guest's kernel warned of
    #[arg(long)]
    pub allow_warnings: bool,
    /// The command, after `--`
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// Look around in a guest
#[derive(Debug, Args)]
pub struct Shell {
    #[command(flatten)]
    pub guest: GuestArgs,
    /// Take a file or a folder into the guest, as PLACE or under its name in /
    #[arg(long, value_name = "PATH[:PLACE]")]
    pub put: Vec<String>,
}

/// Run the acceptance tests: what a stock kernel does with our NICs
///
/// Each row is byte-exact; a warning in a guest's kernel log fails its group. The table goes to stderr as it grows.
#[derive(Debug, Args)]
pub struct Test {
    #[command(flatten)]
    pub guest: GuestArgs,
    /// Bytes of a large stream
    #[arg(long, value_name = "SIZE", default_value = "32M")]
    pub bytes: Size,
    /// Groups to run [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub group: Vec<Group>,
    /// Only rows whose name has TEXT in it
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    #[command(flatten)]
    pub output: OutputArgs,
}

/// A guest: its parts and its machine.
#[derive(Debug, Args)]
pub struct GuestArgs {
    #[command(flatten)]
    pub kit: KitArgs,
    #[command(flatten)]
    pub machine: MachineArgs,
}

/// Where the guest's parts come from.
#[derive(Debug, Args)]
#[command(next_help_heading = "Parts of the guest")]
pub struct KitArgs {
    /// Cache folder [default: devmem-tcp/lab in $XDG_CACHE_HOME or ~/.cache]
    #[arg(long, value_name = "FOLDER")]
    pub cache: Option<PathBuf>,
    /// Release to get packages from, with its backports if it has them: NAME[,NAME-backports]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub suite: Option<Vec<String>>,
    /// Base address of the package archive [default: this machine's]
    #[arg(long, value_name = "URL")]
    pub mirror: Option<String>,
    /// Use packages even where something that serves is installed
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
    /// Folder with that kernel's modules, searched for gve and what tests use
    #[arg(long, value_name = "FOLDER", requires = "kernel")]
    pub modules: Option<PathBuf>,
    /// A busybox that needs no libraries
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
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub smp: u16,
    /// Memory
    #[arg(long, value_name = "SIZE", default_value = "1G")]
    pub memory: Size,
    /// gVNICs; the first and the second are joined by a wire, and so on
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub nics: u8,
    /// RX and TX queue pairs of each NIC
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub queues: u16,
    /// Largest IP packet
    #[arg(long, value_name = "BYTES", default_value_t = 1500)]
    pub mtu: u16,
    /// With --nics 1: where its wire leads, as in `devmem-tcp nic --wire`
    #[arg(long, value_name = "WIRE")]
    pub wire: Option<String>,
    /// What is wrong with the wires; `devmem-tcp wire --help` has the list
    #[arg(long, value_name = "LIST")]
    pub impair: Option<String>,
    /// Write every packet of the first NIC, payload included, to FILE for Wireshark
    #[arg(long, value_name = "FILE.pcapng")]
    pub capture: Option<PathBuf>,
    /// Keep the guest's kernel log
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Another devmem-tcp to serve the NICs
    #[arg(long, value_name = "PROGRAM", hide = true)]
    pub nic_program: Option<PathBuf>,
    /// Words for the guest's kernel command line
    #[arg(long, value_name = "WORDS", default_value = "")]
    pub append: String,
}
