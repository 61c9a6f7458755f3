//! The command lines of the processes that `demo` and the lab start. They are a program of their own and not hidden commands, which the
//! shells would complete, and which a misspelt command would be told to be similar to.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use tool::memory::MemoryKind;

/// A helper process.
#[derive(Debug, Parser)]
#[command(name = "devmem-tcp")]
pub struct HelperCli {
    #[command(subcommand)]
    pub command: HelperCommand,
}

#[derive(Debug, Subcommand)]
pub enum HelperCommand {
    #[command(name = "__sender")]
    Sender(DemoSender),
    #[command(name = "__receiver")]
    Receiver(DemoReceiver),
    #[command(name = "__rank")]
    Rank(DemoRank),
    #[command(name = "__nvme-target")]
    NvmeTarget(DemoNvmeTarget),
    #[command(name = "__guest")]
    Guest(LabGuest),
}

impl HelperCli {
    /// Returns the command line of this process, if it is that of a helper.
    pub fn of_this_process() -> Option<Self> {
        let first = std::env::args_os().nth(1)?;
        let is_helper = first.to_str().is_some_and(HelperCommand::has_subcommand);
        is_helper.then(Self::parse)
    }
}

/// The demo's receiver: listens, reports that it listens, checks the pattern, and reports the result.
#[derive(Debug, Args)]
pub struct DemoReceiver {
    #[arg(long)]
    pub listen: std::net::SocketAddr,
    #[arg(long)]
    pub connections: u16,
    #[arg(long)]
    pub cpu: Option<usize>,
}

/// The demo's sender: connects and sends the pattern.
#[derive(Debug, Args)]
pub struct DemoSender {
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

/// The demo's NVMe target: serves a file until it is ended.
#[derive(Debug, Args)]
pub struct DemoNvmeTarget {
    #[arg(long)]
    pub listen: std::net::SocketAddr,
    #[arg(long)]
    pub nqn: String,
    #[arg(long)]
    pub file: PathBuf,
}

/// A rank of the demo's exchange: connects to its neighbours in the ring, runs the collectives and reports the times.
#[derive(Debug, Args)]
pub struct DemoRank {
    #[arg(long)]
    pub rank: u16,
    #[arg(long)]
    pub ranks: u16,
    /// Number of floats of the vector
    #[arg(long)]
    pub floats: usize,
    #[arg(long)]
    pub rounds: usize,
    /// Kind of memory of the vector
    #[arg(long)]
    pub memory: MemoryKind,
    /// Socket of the wire from the previous rank, to connect to
    #[arg(long)]
    pub left: PathBuf,
    /// Socket of the wire to the next rank, to connect to
    #[arg(long)]
    pub right: PathBuf,
    /// Listen on the socket of the wire to the next rank: there is no cable
    #[arg(long)]
    pub listen: bool,
    #[arg(long)]
    pub ipv6: bool,
    #[arg(long)]
    pub mtu: u16,
}

/// Process 1 of a guest of the lab.
#[derive(Debug, Args)]
pub struct LabGuest {
    /// The script that started it, and words of the kernel's command line that the kernel does not know
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<std::ffi::OsString>,
}
