//! One run of a row of `bench latency`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use devmem_linux::cpu;
use devmem_linux::netns::NetNs;
use devmem_tcp::Netdev;
use tool::peer::Peer;

use super::far::{FarReport, Task};
use super::line::Host;
use super::rows::{Near, Row, SHORT, Work};
use super::work::{connect_repeatedly, round_trips, take_connections};
use crate::network::{NearEnd, TAP, VETH, Veth};
use crate::processes::{EndArgs, EndProcess, RunSetting, of_peer};
use crate::processors::pinned;
use crate::sender::{PORT, PREFIX, RECEIVER, SENDER};

/// MTU of all links.
pub const MTU: u16 = 1500;

/// The figures of one run.
#[derive(Clone, Debug)]
pub struct Sample {
    /// Nanoseconds, sorted.
    pub times: Vec<u64>,
    /// CPU time of this process and of the other end.
    pub near_cpu: f64,
    pub far_cpu: f64,
}

/// Runs one row once.
///
/// # Errors
///
/// The link or a connection failed, or a signal arrived.
pub fn run(row: &Row, setting: RunSetting<'_>) -> Result<Sample> {
    let RunSetting { time, cpus, stop } = setting;
    let folder = tempfile::tempdir().context("create a folder for a socket")?;
    let socket = (row.near == Near::Shared).then(|| folder.path().join("wire"));
    let mut far = start_far(row, time, cpus.1, socket.clone())?;
    let said = far.hear(stop).map_err(of_peer)?;
    anyhow::ensure!(said.trim() == "ready", "the other end says {said:?}");
    let veth = match row.near.has_veth() {
        true => Some(veth_to(&far, row.near)?),
        false => None,
    };
    let measured = pinned(cpus.0, || {
        let host = host(row.near, socket.as_ref())?;
        let clock = cpu::process_cpu_time();
        let times = measure(row, &host, time, &mut far)?;
        let cpu = cpu::process_cpu_time().saturating_sub(clock);
        Ok((times, cpu.as_secs_f64(), host))
    });
    let (mut times, near_cpu, host) = measured?;
    let report: FarReport = far.hear_json(stop).map_err(of_peer)?;
    drop((host, veth));
    times.sort_unstable();
    Ok(Sample {
        times,
        near_cpu,
        far_cpu: report.cpu_seconds,
    })
}

fn measure(row: &Row, host: &Host, time: Duration, far: &mut Peer) -> Result<Vec<u64>> {
    let there = SocketAddr::from((SENDER, PORT));
    match row.work {
        Work::RoundTrips(bytes) => {
            let mut line = host.connect(there, row.wait)?;
            let times = round_trips(line.as_mut(), bytes, time)?;
            line.finish()?;
            // The stack ends with the row: the end must arrive before.
            super::line::receive(line.as_mut(), &mut [0])?;
            Ok(times)
        }
        Work::Connects => connect_repeatedly(host, there, time),
        Work::Accepts => {
            let listening = host.listen(SocketAddr::from((RECEIVER, PORT)))?;
            far.tell("go").map_err(of_peer)?;
            take_connections(&listening, &mut [0; SHORT])
        }
    }
}

/// Returns what is at this end.
fn host(near: Near, socket: Option<&PathBuf>) -> Result<Host> {
    let address = format!("{RECEIVER}/{PREFIX}");
    let link = match near {
        Near::Kernel => return Ok(Host::Kernel),
        Near::KernelNic => return Ok(Host::Ours(Netdev::kernel(VETH)?)),
        Near::Tap => format!("tap:{TAP}"),
        Near::Packet => format!("packet:{VETH}"),
        Near::Macvtap => format!("macvtap:{VETH}"),
        Near::Shared => {
            let socket = socket.context("the wire has no socket")?;
            format!("unix:{}", socket.display())
        }
    };
    let nic = Netdev::builder(&link)?.address(&address)?.mtu(MTU);
    let nic = match near {
        Near::Tap => nic.peer_address(&format!("{SENDER}/{PREFIX}"))?,
        _ => nic,
    };
    Ok(Host::Ours(nic.open()?))
}

fn veth_to(far: &Peer, near: Near) -> Result<Veth> {
    let namespace = NetNs::open(&format!("pid:{}", far.id()))?;
    let end = match near {
        Near::Kernel | Near::KernelNic => NearEnd::Kernel,
        _ => NearEnd::Bare,
    };
    Veth::new(&namespace, end, MTU, None)
}

fn start_far(row: &Row, time: Duration, cpu: usize, socket: Option<PathBuf>) -> Result<Peer> {
    let (task, bytes) = match row.work {
        Work::RoundTrips(bytes) => (Task::Echo, bytes),
        Work::Connects => (Task::Accept, SHORT),
        Work::Accepts => (Task::Connect, SHORT),
    };
    let args = EndArgs {
        bytes,
        seconds: time.as_secs_f64(),
        cpu,
        socket,
    };
    let process = EndProcess::new("other end", "__far", &args)
        .with("--task", task)
        .with("--wait", row.wait);
    match row.near.has_veth() {
        true => process.in_new_namespace().start(),
        false => process.start(),
    }
}
