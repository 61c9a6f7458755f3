//! One run of a row of `bench exchange`: two processes, and the link between them.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use clap::ValueEnum;
use devmem_linux::helper::Helper;
use devmem_linux::netns;
use devmem_linux::netns::NetNs;
use tool::peer::Peer;
use tool::signals::StopFlag;

use super::link::{Cable, Link, MTU, Side, end_of};
use super::rank::RankReport;
use super::rows::Row;
use crate::network::{NearEnd, Veth};

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
pub fn run(row: &Row, time: Duration, cpus: (usize, usize), stop: &StopFlag) -> Result<Sample> {
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
    let contact = passive.hear(stop).map_err(|failure| anyhow!("{failure}"))?;
    let told = active.tell(contact.trim());
    told.map_err(|failure| anyhow!("{failure}"))?;
    let hear = |rank: &mut Peer| {
        let heard = rank.hear_json::<RankReport>(stop);
        heard.map_err(|failure| anyhow!("{failure}"))
    };
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
    let name = |value: &dyn Fn() -> Option<clap::builder::PossibleValue>| {
        value().map_or_else(String::new, |value| value.get_name().to_owned())
    };
    let mut command = Helper::this_program();
    command.arg("__rank");
    command.args(["--kind", &name(&|| row.kind.to_possible_value())]);
    command.args(["--work", &name(&|| row.work.to_possible_value())]);
    command.args(["--link", &name(&|| row.link.to_possible_value())]);
    command.args(["--side", &name(&|| side.to_possible_value())]);
    command.args(["--bytes", &row.bytes.to_string()]);
    command.args(["--seconds", &time.as_secs_f64().to_string()]);
    command.args(["--cpu", &cpu.to_string()]);
    if let Some(socket) = socket {
        command.arg("--socket").arg(socket);
    }
    if row.link == Link::Veth && side == Side::Active {
        netns::start_in_new(&mut command);
    }
    command.stdin(Stdio::piped());
    Peer::start("rank", &mut command).map_err(|failure| anyhow!("{failure}"))
}
