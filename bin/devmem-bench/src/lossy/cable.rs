//! The network of `bench lossy` and `bench fairness`: an impaired cable between the receiver's host and the kernel's sender, ours, or both.
//!
//! ```text
//! kernel sender -- TAP "dmcable" ----\
//! our stack -- UNIX socket ------------ the cable ------ TAP "dmfar" -- kernel receiver
//! kernel sender -- veth "dmbench0" --/
//! our stack -- packet socket -/
//! ```
//!
//! The path is the same for both senders: the cable is a process on the sender's processor, and the receiver runs on the
//! other one, with both senders if there are two. Without the pinning, the scheduler moves the cable to the receiver's processor when the sender's is never
//! idle, and then each packet costs two context switches between cable and receiver.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use clap::Args;
use devmem_linux::cpu;
use devmem_linux::helper::Helper;
use devmem_tcp::{Netdev, NetdevBuilder};
use gvnic_server::plan::{Lateness, WirePlan};
use tempfile::TempDir;
use tool::output::Failure;

use crate::receiver::ReceiverProcess;
use crate::sender::{PREFIX, RECEIVER, SENDER};

/// What sends at the near end of a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NearEnd {
    /// The kernel's TCP, behind a TAP.
    Kernel,
    /// Ours, on a UNIX socket.
    Ours,
    /// Both, on the interface whose peer has this name.
    Both(&'static str),
}

/// Arguments of the cable process.
#[derive(Debug, Args)]
pub struct CableArgs {
    /// Processor to run on
    #[arg(long)]
    cpu: usize,
    /// Keep frames apart in spite of the machine: run before everything else on the processor, when a frame is due and not up to 50
    /// microseconds later, and let no time pass on the cable while something else runs
    #[arg(long)]
    in_time: bool,
    #[command(flatten)]
    wire: gvnic_server::args::WireArgs,
}

/// The cable process: joins two hosts until it is killed.
pub fn run(args: CableArgs) -> Result<(), Failure> {
    let CableArgs { cpu, in_time, wire } = args;
    cpu::pin_current_thread(cpu).with_context(|| format!("pin to processor {cpu}"))?;
    let mut plan = WirePlan::new(wire)?;
    if in_time {
        plan.lateness = Lateness::KeepsApart;
        cpu::set_exact_timers().context("set the slack of timers")?;
        // Without the privilege the cable is late more often.
        let _ = cpu::rank_first();
    }
    gvnic_server::cable::run(&plan)
}

/// A cable between this host and the receiver's: a helper process that works like `devmem-tcp wire`.
#[derive(Debug)]
pub struct Cable {
    child: Helper,
    socket: PathBuf,
    /// Folder of the socket, removed with the cable.
    _folder: TempDir,
}

impl Cable {
    /// Starts the cable process on `processor`; returns when it has joined the two hosts.
    pub fn new(
        near: NearEnd,
        receiver: &ReceiverProcess,
        impairment: &str,
        mtu: u16,
        processor: usize,
    ) -> Result<Self> {
        let folder = tempfile::tempdir().context("create a folder for the cable's socket")?;
        let socket = folder.path().join("cable");
        let end = match near {
            NearEnd::Kernel => format!("tap:dmcable,{SENDER}/{PREFIX}"),
            NearEnd::Ours => format!("unix-listen:{}", socket.display()),
            NearEnd::Both(peer) => format!("packet:{peer}"),
        };
        let mut command = Helper::this_program();
        command.args(["__cable", "--cpu", &processor.to_string()]);
        command.args(["--impair", impairment, "--mtu", &mtu.to_string()]);
        if let NearEnd::Both(_) = near {
            // A cable that has to wait for a processor passes all on at once that has come meanwhile, the kernel's packets first.
            command.arg("--in-time");
        }
        command.args(["--a", &end, "--b"]);
        command.arg(format!("tap:dmfar,{RECEIVER}/{PREFIX}"));
        command.args(["--b-netns", &format!("pid:{}", receiver.id())]);
        command.stdin(Stdio::null()).stderr(Stdio::piped());
        let child = Helper::start(&mut command).context("start the cable")?;
        let mut cable = Self {
            child,
            socket,
            _folder: folder,
        };
        cable.wait_until_joined()?;
        Ok(cable)
    }

    /// Returns the NIC of our stack at the sender's end, to be opened.
    pub fn our_nic(&self, mtu: u16) -> Result<NetdevBuilder> {
        let nic = Netdev::builder(format!("unix:{}", self.socket.display()))?;
        Ok(nic.address(&format!("{SENDER}/{PREFIX}"))?.mtu(mtu))
    }

    fn wait_until_joined(&mut self) -> Result<()> {
        let stderr = self.child.take_stderr().context("it was piped")?;
        let mut says = BufReader::new(stderr);
        let mut line = String::new();
        says.read_line(&mut line)
            .context("read the output of the cable")?;
        if !line.contains("are connected") {
            says.read_to_string(&mut line)
                .context("read the output of the cable")?;
            bail!("the cable failed: {}", line.trim());
        }
        Ok(())
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        self.child.kill();
        // The TAPs are removed with the process, the socket's file with its folder.
    }
}
