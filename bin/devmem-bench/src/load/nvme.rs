//! Our NVMe target as a server of `bench load`: the file in its memory, in a process of its own.

use std::fs;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use nvme_target::{Disk, Subsystem, Target};

/// Its subsystem.
const NQN: &str = "nqn.2014-08.org.devmem-tcp:bench";
/// The registered port.
const PORT: u16 = 4420;
/// Size of a block, as a power of two.
const BLOCK_LOG2: u8 = 12;
/// Entries of a queue: one more than the commands of the deepest row.
const ENTRIES: u32 = 129;

/// The digest of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Digest {
    None,
    /// Of headers.
    Header,
    /// Of data.
    Data,
}

/// The process of the target.
#[derive(Debug, Args)]
pub struct NvmeTargetArgs {
    #[arg(long)]
    listen: SocketAddr,
    #[arg(long)]
    file: PathBuf,
}

pub fn address(host: IpAddr) -> SocketAddr {
    SocketAddr::new(host, PORT)
}

pub fn url(host: IpAddr, digest: Digest) -> String {
    let parameter = match digest {
        Digest::None => "",
        Digest::Header => "?hdr-digest=1",
        Digest::Data => "?data-digest=1",
    };
    format!("nvme://{}/{NQN}{parameter}", address(host))
}

pub fn command(listen: SocketAddr, file: &Path) -> Command {
    let any = match listen {
        SocketAddr::V4(_) => SocketAddr::from(([0; 4], listen.port())),
        SocketAddr::V6(_) => SocketAddr::from(([0; 16], listen.port())),
    };
    // A shell starts it, whose /proc/self/exe is another program.
    let mut command = Command::new(format!("/proc/{}/exe", process::id()));
    command.args(["__nvme-target", "--listen", &any.to_string(), "--file"]);
    command.arg(file);
    command
}

/// Serves the file until a signal.
///
/// # Errors
///
/// The file cannot be read, or the address is in use.
pub fn run_target(args: &NvmeTargetArgs) -> Result<()> {
    let NvmeTargetArgs { listen, file } = args;
    let bytes = fs::read(file).with_context(|| format!("read {}", file.display()))?;
    let disk = Arc::new(Disk::in_memory(bytes, BLOCK_LOG2));
    let listener = TcpListener::bind(listen).with_context(|| format!("listen on {listen}"))?;
    let subsystem = Subsystem {
        queue_entries: ENTRIES,
        ..Subsystem::new(NQN, vec![disk])
    };
    let _target = Target::start(listener, subsystem)?;
    loop {
        std::thread::park();
    }
}
