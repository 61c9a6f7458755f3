//! One run of a row of `bench exchange`: two processes, and the link between them.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use devmem_linux::netns::NetNs;
use tool::peer::Peer;

use super::link::{Cable, Link, MTU, Side, end_of};
use super::rank::RankReport;
use super::rows::Row;
use crate::network::{NearEnd, Veth};
use crate::processes::{EndArgs, EndProcess, RunSetting, of_peer};

/// Both ranks of one run.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub active: RankReport,
    pub passive: RankReport,
}

/// Runs one row once.
///
/// # Errors
///
/// The link or a rank failed, or a signal arrived.
pub fn run(row: &Row, setting: RunSetting<'_>) -> Result<Sample> {
    let RunSetting { time, cpus, stop } = setting;
    let folder = tempfile::tempdir().context("create a folder for sockets")?;
    let cable = match row.link {
        Link::Unix => Some(Cable::start(folder.path(), cpus.1, stop)?),
        Link::Tap | Link::Veth | Link::Shared | Link::Copied => None,
    };
    let socket = |side| match row.link {
        Link::Unix => Some(end_of(folder.path(), side)),
        Link::Shared | Link::Copied => Some(folder.path().join("wire")),
        Link::Tap | Link::Veth => None,
    };
    let start = |side, cpu| start_rank(row, side, time, cpu, socket(side));
    let mut active = start(Side::Active, cpus.1)?;
    let _veth = match row.link {
        Link::Veth => {
            let namespace = NetNs::open(&format!("pid:{}", active.id()))?;
            Some(Veth::new(&namespace, NearEnd::Kernel, MTU, None)?)
        }
        Link::Tap | Link::Unix | Link::Shared | Link::Copied => None,
    };
    let mut passive = start(Side::Passive, cpus.0)?;
    let contact = passive.hear(stop).map_err(of_peer)?;
    active.tell(contact.trim()).map_err(of_peer)?;
    let hear = |rank: &mut Peer| rank.hear_json::<RankReport>(stop).map_err(of_peer);
    let sample = Sample {
        active: hear(&mut active)?,
        passive: hear(&mut passive)?,
    };
    drop(cable);
    Ok(sample)
}

fn start_rank(
    row: &Row,
    side: Side,
    time: Duration,
    cpu: usize,
    socket: Option<PathBuf>,
) -> Result<Peer> {
    let args = EndArgs {
        bytes: row.bytes,
        seconds: time.as_secs_f64(),
        cpu,
        socket,
    };
    let process = EndProcess::new("rank", "__rank", &args)
        .with("--kind", row.kind)
        .with("--work", row.work)
        .with("--link", row.link)
        .with("--side", side);
    match (row.link, side) {
        (Link::Veth, Side::Active) => process.in_new_namespace().start(),
        _ => process.start(),
    }
}
