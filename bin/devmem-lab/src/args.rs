//! The command lines of this program: on the host, those of `devmem-tcp lab`, which shows and completes them; and in a guest.

use clap::{Args, Parser, Subcommand};
use lab::args::{Exchange, Selftests, Test};
use lab::group::Group;

/// The name that errors and notes begin with.
pub const PROGRAM: &str = "devmem-lab";

/// Test device memory TCP in guests of the lab
///
/// `devmem-tcp lab test`, `lab exchange` and `lab selftests` run this program, which lies beside `devmem-tcp`.
#[derive(Debug, Parser)]
#[command(name = PROGRAM, version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    Test(Test),
    Exchange(Exchange),
    Selftests(Selftests),
}

/// What a guest runs: a program of its own and no hidden commands, which a misspelt one would be told to be similar to.
#[derive(Debug, Parser)]
#[command(name = PROGRAM)]
pub struct GuestCli {
    #[command(subcommand)]
    pub command: GuestCommand,
}

#[derive(Debug, Subcommand)]
pub enum GuestCommand {
    #[command(name = "__rows")]
    Rows(GuestRows),
    #[command(name = "__victim")]
    Victim(Victim),
    #[command(name = "__pod")]
    Pod(Pod),
    #[command(name = "__programs")]
    Programs(GuestPrograms),
}

impl GuestCli {
    /// Returns the command line of this process, if it is that of a guest.
    pub fn of_this_process() -> Option<Self> {
        let first = std::env::args_os().nth(1)?;
        let is_guests = first.to_str().is_some_and(GuestCommand::has_subcommand);
        is_guests.then(Self::parse)
    }
}

/// Rows of the acceptance tests.
#[derive(Debug, Args)]
pub struct GuestRows {
    #[arg(long, value_enum)]
    pub group: Group,
    #[arg(long)]
    pub bytes: u64,
    /// Run only rows with this text in their name
    #[arg(long)]
    pub only: Option<String>,
    /// Number of this guest, if there are two
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=1))]
    pub guest: u8,
}

/// The receiver that gets killed.
#[derive(Debug, Args)]
pub struct Victim {
    #[arg(long)]
    pub bytes: u64,
}

/// The process of a pod, which receives into memory bound to a leased queue.
#[derive(Debug, Args)]
pub struct Pod {
    #[arg(long)]
    pub local: std::net::SocketAddr,
    #[arg(long)]
    pub bytes: u64,
    /// Ask the broker that listens there
    #[arg(long)]
    pub broker: Option<std::path::PathBuf>,
}

/// Test programs of the Linux kernel.
#[derive(Debug, Args)]
pub struct GuestPrograms {
    /// Maximum seconds for a program
    #[arg(long)]
    pub limit: u64,
    /// Command of bash to run before each program
    #[arg(long)]
    pub before: Option<String>,
    pub programs: Vec<String>,
}
