//! `devmem-tcp demo --load`: a file of a stock server, or of our NVMe target, into device memory.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::process::Stdio;

use anyhow::Context;
use devmem_linux::helper::Helper;
use tempfile::TempDir;

use super::{TAP, choose_link};
use crate::args::DemoServer;
use crate::client::Client;
use crate::commands::load::transfer;
use crate::plan::{DemoPlan, LoadJob, TapPlan};
use pattern::{Expected, PositionPattern, Verifier};
use tool::output::{Failure, note};
use tool::signals::StopFlag;
use tool::stock::{self, RunningServer, StockServer};

/// A file system in memory, so that the disk does not limit the rate.
const TMPFS: &str = "/dev/shm";
/// Seed of the pattern in the file.
const SEED: u64 = 1;

/// Port and subsystem of the NVMe target.
const NVME_PORT: u16 = 4420;
const NVME_NQN: &str = "nqn.2014-08.org.devmem-tcp:demo";
/// Its blocks.
const NVME_BLOCK: u64 = 4096;

/// What serves the file.
#[derive(Clone, Copy, Debug)]
enum Server {
    Stock(StockServer),
    /// A process of this program.
    Nvme,
}

impl Server {
    /// Chooses the server.
    ///
    /// # Errors
    ///
    /// This machine does not have it, or has none.
    fn choose(wanted: Option<DemoServer>) -> Result<Self, Failure> {
        match wanted.map(DemoServer::stock) {
            Some(None) => Ok(Self::Nvme),
            Some(Some(stock)) => stock.require().map(|()| Self::Stock(stock)),
            None => StockServer::find().map(Self::Stock),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Stock(stock) => stock.program(),
            Self::Nvme => "our NVMe/TCP target",
        }
    }

    fn url(self, host: IpAddr) -> String {
        match self {
            Self::Stock(stock) => stock.url(host),
            Self::Nvme => {
                let at = SocketAddr::new(host, NVME_PORT);
                format!("nvme://{at}/{NVME_NQN}")
            }
        }
    }

    /// Returns how long the file must be to have `bytes`.
    fn file_bytes(self, bytes: u64) -> u64 {
        match self {
            Self::Stock(_) => bytes,
            Self::Nvme => bytes.next_multiple_of(NVME_BLOCK),
        }
    }

    fn start(self, folder: &Path, host: IpAddr, stop: &StopFlag) -> Result<RunningServer, Failure> {
        if let Self::Stock(stock) = self {
            return stock.start(folder, host, stop);
        }
        let at = SocketAddr::new(host, NVME_PORT);
        let mut command = Helper::this_program();
        command.args(["__nvme-target", "--listen", &at.to_string()]);
        command.args(["--nqn", NVME_NQN, "--file"]);
        command.arg(folder.join(stock::FILE));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        RunningServer::start(self.name(), command, at, folder, stop)
    }
}

/// Loads a file from `server`, or from any stock server that this machine has.
///
/// # Errors
///
/// There is no such server; a failed step; wrong bytes.
pub fn run(plan: &DemoPlan, server: Option<DemoServer>) -> Result<(), Failure> {
    let server = Server::choose(server)?;
    let link = choose_link(plan)?;
    let stop = StopFlag::install().context("install signal handlers")?;
    let folder = TempDir::new_in(TMPFS).or_else(|_| TempDir::new());
    let folder = folder.context("make a folder for the server")?;
    let pattern = PositionPattern::new(SEED);
    let bytes = server.file_bytes(plan.bytes);
    stock::write_file(folder.path(), pattern, bytes).context("write the file")?;

    let client = Client::on_link(&tap(plan, link)?, &plan.nic, &stop)?;
    let host = plan.peers.address;
    let _server = server.start(folder.path(), host, &stop)?;
    note(format_args!("{} serves a file", server.name()));
    let job = LoadJob::of_url(&server.url(host), plan.connections)?;
    let mut loaded = transfer(&client, &plan.nic, &job, &stop)?;
    if !loaded.report.interrupted {
        let mut verifier = Verifier::new(Expected::Position(pattern));
        loaded
            .target
            .read_back(0..bytes, |bytes| verifier.check(bytes))?;
        loaded.report.set_verified(&verifier);
    }
    loaded.end(plan.form)
}

/// Returns the link, with the server's address at the kernel's end.
fn tap(plan: &DemoPlan, link: &str) -> Result<TapPlan, Failure> {
    Ok(TapPlan {
        link: link.parse().context("the link of the demo")?,
        ours: plan.ours,
        // The kernel's end of a veth pair has its address already.
        peers: (link == TAP).then_some(plan.peers),
        gateway: None,
        shards: 1,
        tcp: plan.tcp.clone(),
    })
}
