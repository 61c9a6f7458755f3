//! `devmem-tcp demo --load`: a file of a stock server into device memory.

use anyhow::Context;
use tempfile::TempDir;

use super::{TAP, choose_link};
use crate::client::Client;
use crate::commands::load::transfer;
use crate::plan::{DemoPlan, LoadJob, TapPlan};
use tool::output::{Failure, note};
use tool::pattern::{Expected, PositionPattern, Verifier};
use tool::signals::StopFlag;
use tool::stock::{self, StockServer};

/// A file system in memory, so that the disk does not limit the rate.
const TMPFS: &str = "/dev/shm";
/// Seed of the pattern in the file.
const SEED: u64 = 1;

/// Loads a file from `server`, or from any stock server that this machine has.
///
/// # Errors
///
/// There is no such server; a failed step; wrong bytes.
pub fn run(plan: &DemoPlan, server: Option<StockServer>) -> Result<(), Failure> {
    let server = match server {
        Some(server) => {
            server.require()?;
            server
        }
        None => StockServer::find()?,
    };
    let link = choose_link(plan)?;
    let stop = StopFlag::install().context("install signal handlers")?;
    let folder = TempDir::new_in(TMPFS).or_else(|_| TempDir::new());
    let folder = folder.context("make a folder for the server")?;
    let pattern = PositionPattern::new(SEED);
    stock::write_file(folder.path(), pattern, plan.bytes).context("write the file")?;

    let client = Client::on_link(&tap(plan, link)?, &plan.nic, &stop)?;
    let host = plan.peers.address;
    let _server = server.start(folder.path(), host, &stop)?;
    note(format_args!("{} serves a file", server.program()));
    let job = LoadJob::of_url(&server.url(host), plan.connections)?;
    let mut loaded = transfer(&client, &plan.nic, &job, &stop)?;
    if !loaded.report.interrupted {
        let mut verifier = Verifier::new(Expected::Position(pattern));
        loaded
            .target
            .read_back(plan.bytes, |bytes| verifier.check(bytes))?;
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
