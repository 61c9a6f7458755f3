//! The rows of `bench exchange`, and one run of each.

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

use super::link::{Cable, Link, Side, end_of};
use super::rank::RankReport;
use crate::network::{NearEnd, Veth};

/// Length of the messages whose rate is measured.
const LONG: usize = 4 << 20;
/// MTU of all links.
pub const MTU: u16 = 1500;

/// A row.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub name: &'static str,
    pub kind: Kind,
    pub link: Link,
    pub work: Work,
    pub bytes: usize,
}

/// What moves the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// The exchange of devmem-transfer, with host memory
    Ours,
    /// The same with device memory
    Device,
    /// One TCP connection of our stack
    Stream,
    /// Four TCP connections of the kernel
    Sockets,
}

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Work {
    /// Messages in one direction
    Rate,
    /// Each message is returned before the next one
    RoundTrip,
}

const fn rate(name: &'static str, kind: Kind, link: Link) -> Row {
    Row {
        name,
        kind,
        link,
        work: Work::Rate,
        bytes: LONG,
    }
}

const fn round_trip(name: &'static str, kind: Kind, link: Link, bytes: usize) -> Row {
    Row {
        name,
        kind,
        link,
        work: Work::RoundTrip,
        bytes,
    }
}

pub const ROWS: &[Row] = &[
    rate("ours/tap", Kind::Ours, Link::Tap),
    rate("device/tap", Kind::Device, Link::Tap),
    rate("stream/tap", Kind::Stream, Link::Tap),
    rate("ours/veth", Kind::Ours, Link::Veth),
    rate("device/veth", Kind::Device, Link::Veth),
    rate("sockets/veth", Kind::Sockets, Link::Veth),
    rate("ours/shared", Kind::Ours, Link::Shared),
    rate("device/shared", Kind::Device, Link::Shared),
    rate("stream/shared", Kind::Stream, Link::Shared),
    rate("ours/copied", Kind::Ours, Link::Copied),
    rate("device/copied", Kind::Device, Link::Copied),
    rate("stream/copied", Kind::Stream, Link::Copied),
    rate("ours/unix", Kind::Ours, Link::Unix),
    rate("stream/unix", Kind::Stream, Link::Unix),
    round_trip("ours/8", Kind::Ours, Link::Tap, 8),
    round_trip("stream/8", Kind::Stream, Link::Tap, 8),
    round_trip("shared/ours/8", Kind::Ours, Link::Shared, 8),
    round_trip("shared/stream/8", Kind::Stream, Link::Shared, 8),
    round_trip("ours/512", Kind::Ours, Link::Tap, 512),
    round_trip("stream/512", Kind::Stream, Link::Tap, 512),
    round_trip("ours/4096", Kind::Ours, Link::Tap, 4096),
    round_trip("stream/4096", Kind::Stream, Link::Tap, 4096),
];

/// The rows that are compared.
pub const PAIRS: &[(&str, &str)] = &[
    ("ours/tap", "stream/tap"),
    ("ours/unix", "stream/unix"),
    ("ours/tap", "sockets/veth"),
    ("device/tap", "sockets/veth"),
    ("ours/veth", "sockets/veth"),
    ("device/veth", "sockets/veth"),
    ("ours/shared", "stream/shared"),
    ("ours/shared", "sockets/veth"),
    ("ours/shared", "ours/copied"),
    ("device/shared", "device/copied"),
    ("device/shared", "sockets/veth"),
    ("ours/8", "stream/8"),
    ("shared/ours/8", "shared/stream/8"),
    ("ours/512", "stream/512"),
    ("ours/4096", "stream/4096"),
];

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compared_rows_exist() {
        for (ours, other) in PAIRS {
            for name in [ours, other] {
                assert!(ROWS.iter().any(|row| row.name == *name), "{name}");
            }
        }
    }
}
