//! Rows for `devmem-tcp load` and `store` with the guest's NVMe/TCP target, nvmet, in the network namespace of the other NIC; and for
//! the guest's NVMe/TCP host with the target of this project.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::net::{IpAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use devmem_linux::helper::Helper;
use lab::job::{PEER_NETNS, TOOL_PATH};
use serde_json::Value;

use super::devmem::bound::require_rx;
use super::loading::{COPY, FOLDER, Loader, QUEUE, Report, compare_loads, start_until};
use super::nvmet::{HOST_NQN, NQN, NetworkSide, Nvmet};
use super::report::{FarEndRequest, ask_for};
use super::row::{Context, PassedRow, Skip};
use super::traffic::{self, Family, STUCK};
use pattern::PositionPattern;

/// Seed of the pattern in the first namespace.
const SEED: u64 = 11;
/// A block device in memory, of blocks of 512 bytes.
const RAM_DISK: &str = "/dev/ram0";
/// Where the kernel's hosts are connected.
const FABRICS: &str = "/dev/nvme-fabrics";
/// Port of the target of this project, and identifier of the kernel's host.
const OUR_PORT: u16 = 4430;
const HOST_ID: &str = "01234567-89ab-4def-8123-456789abcdef";
/// Fewest bytes of a load during which something happens to the target.
const LONG_BYTES: u64 = 64 << 20;
/// Time between two looks.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The device memory is at eth1, the target at eth0.
const LOADER: Loader = Loader::OursAtEth1;

/// Parameters of the URL.
pub const DIGESTS: &str = "&hdr-digest=1&data-digest=1";
pub const FLOW_CONTROL: &str = "&sq-flow=1";

/// Starts the target with these files or block devices.
fn start(disks: &[&Path]) -> anyhow::Result<Nvmet> {
    require_rx(QUEUE)?;
    Nvmet::start(LOADER.host(Family::V4), NetworkSide::Peer, disks)
}

/// Starts the target with a namespace of `len` bytes, which is a file.
fn start_one(len: u64) -> anyhow::Result<(Nvmet, Vec<u8>)> {
    let bytes = write_disk(1, len)?;
    Ok((start(&[&disk(1)])?, bytes))
}

/// Writes the file of a namespace; returns its bytes.
fn write_disk(nsid: u64, len: u64) -> anyhow::Result<Vec<u8>> {
    let bytes = pattern(SEED + nsid, len)?;
    fs::create_dir_all(FOLDER)?;
    fs::write(disk(nsid), &bytes)?;
    Ok(bytes)
}

fn disk(nsid: u64) -> PathBuf {
    Path::new(FOLDER).join(format!("disk{nsid}"))
}

fn pattern(seed: u64, len: u64) -> anyhow::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(len)?];
    PositionPattern::new(seed).fill(0, &mut bytes);
    Ok(bytes)
}

fn reversed(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().rev().copied().collect()
}

fn run_load(url: &str, to: &str) -> anyhow::Result<Output> {
    let mut command = LOADER.tool("load");
    command.args([url, "--to", to, "--verify"]);
    Ok(command.output()?)
}

fn run_store(bytes: &[u8], url: &str) -> anyhow::Result<Output> {
    fs::write(COPY, bytes)?;
    let mut command = LOADER.tool("store");
    command.args([COPY, url, "--verify"]);
    Ok(command.output()?)
}

/// Checks that a run has failed with this text.
fn ensure_refused(output: &Output, expected: &str) -> anyhow::Result<()> {
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(1), "{}: {said}", output.status);
    ensure!(said.contains(expected), "it says: {}", said.trim());
    Ok(())
}

pub fn load(context: &Context, parameters: &str) -> anyhow::Result<PassedRow> {
    let (target, bytes) = start_one(context.bytes)?;
    let url = target.url(1, parameters);
    compare_loads(&bytes, |to| Report::of(&run_load(&url, to)?))
}

/// Stores from device memory, and compares what the file of the namespace has.
pub fn store(context: &Context, parameters: &str) -> anyhow::Result<PassedRow> {
    let (target, bytes) = start_one(context.bytes)?;
    let source = reversed(&bytes);
    let report = Report::of(&run_store(&source, &target.url(1, parameters))?)?;
    ensure!(report.crc32c_matches == Some(true), "{report:?}");
    drop(target);
    ensure!(
        fs::read(disk(1))? == source,
        "the bytes of the namespace differ"
    );
    Ok(report.seen())
}

/// Loads from a target and stores in one whose commands transfer 32 pages at most (MDTS 5).
pub fn short_commands(context: &Context) -> anyhow::Result<PassedRow> {
    let bytes = write_disk(1, context.bytes)?;
    require_rx(QUEUE)?;
    let target = Nvmet::prepare(LOADER.host(Family::V4), NetworkSide::Peer, &[&disk(1)])?;
    target.limit_transfers(5)?;
    target.listen()?;
    let url = target.url(1, "");
    let commands = bytes.len() as u64 / (32 * 4096);
    let run = |to: &str| {
        let report = Report::of(&run_load(&url, to)?)?;
        let pieces = report.pieces;
        ensure!(pieces == commands, "{pieces} commands and not {commands}");
        Ok(report)
    };
    let seen = compare_loads(&bytes, run)?;
    let source = reversed(&bytes);
    let stored = Report::of(&run_store(&source, &url)?)?;
    ensure!(stored.pieces == commands, "{stored:?}");
    drop(target);
    ensure!(fs::read(disk(1))? == source, "the namespace differs");
    Ok(seen)
}

/// Loads from a block device of blocks of 512 bytes, and stores there what starts and ends at such blocks.
pub fn blocks_of_512(_: &Context) -> anyhow::Result<PassedRow> {
    let Ok(mut device) = File::options().write(true).open(RAM_DISK) else {
        return Err(Skip(format!("there is no {RAM_DISK}")).into());
    };
    let len = device.seek(SeekFrom::End(0))?;
    let mut bytes = pattern(SEED, len)?;
    device.rewind()?;
    device.write_all(&bytes)?;
    device.sync_all()?;
    // The last handle: its pages in memory end with it.
    drop(device);
    let target = start(&[Path::new(RAM_DISK)])?;
    let url = target.url(1, "");
    let seen = compare_loads(&bytes, |to| Report::of(&run_load(&url, to)?))?;
    let block = listed(&target.host_url())?["namespaces"][0]["block_bytes"].clone();
    ensure!(block == 512, "blocks of {block} bytes");
    let part = bytes.len() / 2;
    let source = pattern(SEED + 1, part as u64)?;
    fs::write(COPY, &source)?;
    let mut command = LOADER.tool("store");
    command.args([COPY, &url, "--at", "512", "--verify"]);
    let report = Report::of(&command.output()?)?;
    ensure!(report.crc32c_matches == Some(true), "{report:?}");
    drop(target);
    bytes[512..512 + part].copy_from_slice(&source);
    ensure!(
        fs::read(RAM_DISK)? == bytes,
        "the bytes of the device differ"
    );
    Ok(seen)
}

/// Lists the only subsystem of a host.
fn listed(url: &str) -> anyhow::Result<Value> {
    let mut command = LOADER.tool("load");
    let output = command.arg(url).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {said}", output.status);
    let report: Value = serde_json::from_slice(&output.stdout).context("parse the list")?;
    match report["subsystems"].as_array().map(Vec::as_slice) {
        Some([only]) => Ok(only.clone()),
        _ => bail!("the list is {report}"),
    }
}

/// Lists two namespaces, loads the second one, and stores in it.
pub fn two_namespaces(context: &Context) -> anyhow::Result<PassedRow> {
    let first = write_disk(1, context.few())?;
    let second = write_disk(2, context.bytes)?;
    let target = start(&[&disk(1), &disk(2)])?;
    let list = listed(&target.host_url())?;
    let sizes = |index: usize| list["namespaces"][index]["bytes"].as_u64();
    let expected = [first.len(), second.len()].map(|len| Some(len as u64));
    ensure!([sizes(0), sizes(1)] == expected, "the list is {list}");
    let url = target.url(2, "");
    compare_loads(&second, |to| Report::of(&run_load(&url, to)?))?;
    let source = reversed(&second);
    let report = Report::of(&run_store(&source, &url)?)?;
    drop(target);
    ensure!(
        fs::read(disk(2))? == source,
        "the second one has other bytes"
    );
    ensure!(fs::read(disk(1))? == first, "the first one has changed");
    Ok(report.seen())
}

/// A namespace that a host has made read-only is loaded, and refuses a store.
pub fn read_only(context: &Context) -> anyhow::Result<PassedRow> {
    let (target, bytes) = start_one(context.few())?;
    target.protect(1)?;
    let url = target.url(1, "");
    let seen = compare_loads(&bytes, |to| Report::of(&run_load(&url, to)?))?;
    ensure_refused(&run_store(&reversed(&bytes), &url)?, "is read-only")?;
    drop(target);
    ensure!(fs::read(disk(1))? == bytes, "the namespace has changed");
    Ok(seen)
}

/// What happens to the target in the middle of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    /// It ends, and listens again.
    Restart,
    /// Its namespace gets shorter.
    Shrink,
    /// Its namespace is taken away.
    Vanish,
}

/// Starts a long load, and has `event` happen when a quarter has arrived.
fn disturbed(context: &Context, event: Event) -> anyhow::Result<(Output, Vec<u8>)> {
    // Enough that it is not over before.
    let (target, bytes) = start_one(context.bytes.max(LONG_BYTES))?;
    let url = target.url(1, "");
    let running = LOADER.start_long_load(&url, "256K", bytes.len() as u64 / 4)?;
    match event {
        Event::Restart => listen_again(&target)?,
        Event::Shrink => {
            let file = File::options().write(true).open(disk(1))?;
            file.set_len(1 << 20)?;
            target.revalidate(1).context("revalidate the size")?;
        }
        Event::Vanish => target.disable(1).context("disable the namespace")?,
    }
    Ok((running.wait_with_output()?, bytes))
}

/// Ends the target and its connections when a part of the file has arrived, and lets it listen again.
pub fn restart(context: &Context) -> anyhow::Result<PassedRow> {
    let (output, bytes) = disturbed(context, Event::Restart)?;
    let report = Report::of(&output)?;
    ensure!(report.broken > 0, "no connection broke");
    ensure!(fs::read(COPY)? == bytes, "the bytes of the file differ");
    let broken = report.broken;
    Ok(PassedRow::from(format!(
        "every byte correct after {broken} broken connections"
    )))
}

/// Ends the target and its connections, and lets it listen again.
fn listen_again(target: &Nvmet) -> anyhow::Result<()> {
    target.end().context("end the target")?;
    target.listen().context("let the target listen again")
}

/// The same when a part of the bytes has been stored.
pub fn restart_in_store(context: &Context) -> anyhow::Result<PassedRow> {
    let len = context.bytes.max(LONG_BYTES);
    let source = pattern(SEED, len)?;
    fs::create_dir_all(FOLDER)?;
    fs::write(COPY, &source)?;
    File::create(disk(1))?.set_len(len)?;
    let target = start(&[&disk(1)])?;
    let mut command = LOADER.tool("store");
    command.args([COPY, &target.url(1, ""), "--piece", "256K"]);
    let running = start_until(&mut command, &disk(1), len / 4)?;
    listen_again(&target)?;
    let report = Report::of(&running.wait_with_output()?)?;
    ensure!(report.broken > 0, "no connection broke");
    drop(target);
    ensure!(fs::read(disk(1))? == source, "the namespace differs");
    let broken = report.broken;
    Ok(PassedRow::from(format!(
        "every byte stored after {broken} broken connections"
    )))
}

pub fn shrinks(context: &Context) -> anyhow::Result<PassedRow> {
    let (output, _) = disturbed(context, Event::Shrink)?;
    // A read that was under way has another status than those behind it, which say that the namespace has shrunk.
    ensure_refused(&output, "cannot read its namespace at byte")?;
    ensure!(!Path::new(COPY).exists(), "a part of the file has its name");
    Ok(PassedRow::default())
}

pub fn vanishes(context: &Context) -> anyhow::Result<PassedRow> {
    let (output, _) = disturbed(context, Event::Vanish)?;
    ensure_refused(&output, "has vanished since it was opened")?;
    ensure!(!Path::new(COPY).exists(), "a part of the file has its name");
    Ok(PassedRow::default())
}

/// Our stack, at the other end of the wire, loads one namespace and stores its bytes in another one.
pub fn our_stack(context: &Context) -> anyhow::Result<PassedRow> {
    let bytes = write_disk(1, context.bytes)?;
    fs::write(disk(2), vec![0; bytes.len()])?;
    let host = traffic::address(0, Family::V4);
    let _target = Nvmet::start(host, NetworkSide::Here, &[&disk(1), &disk(2)])?;
    for request in [FarEndRequest::LoadNamespace, FarEndRequest::StoreNamespace] {
        ask_for(request)?;
    }
    // It is started when the one before it has verified what it stored: until then the target is needed.
    let listener = TcpListener::bind((host, 0))?;
    let mut sender = traffic::ask_for_sender(&listener)?;
    io::copy(&mut sender, &mut io::sink()).context("receive")?;
    ensure!(
        fs::read(disk(2))? == bytes,
        "the second namespace has other bytes than the first"
    );
    Ok(PassedRow::from("every byte loaded and stored".to_owned()))
}

/// The kernel's host reads and writes a namespace of the target of this project, with digests.
pub fn kernels_host(context: &Context) -> anyhow::Result<PassedRow> {
    if !Path::new(FABRICS).exists() {
        let missing = "the kernel has no NVMe over fabrics, or its module is not in the guest";
        return Err(Skip(missing.to_owned()).into());
    }
    let bytes = write_disk(1, context.bytes)?;
    let host = LOADER.host(Family::V4);
    let mut command = Command::new("ip");
    command.args(["netns", "exec", PEER_NETNS, TOOL_PATH, "__nvme-target"]);
    command.args([
        "--listen",
        &format!("{host}:{OUR_PORT}"),
        "--nqn",
        NQN,
        "--file",
    ]);
    command.arg(disk(1));
    let _target = Helper::start(&mut command)?;
    let connected = KernelHost::connect(host)?;
    let mut device = connected.device()?;
    let mut read = Vec::new();
    device
        .read_to_end(&mut read)
        .context("read by the kernel")?;
    ensure!(read == bytes, "the kernel reads other bytes");
    let other = reversed(&bytes);
    device.rewind()?;
    device.write_all(&other).context("write by the kernel")?;
    device.sync_all().context("flush")?;
    drop((device, connected));
    ensure!(
        fs::read(disk(1))? == other,
        "the kernel has written other bytes"
    );
    Ok(PassedRow {
        detail: "every byte correct in both directions".to_owned(),
        rate: None,
    })
}

/// The kernel's host, connected to the target of this project. Dropping it disconnects.
struct KernelHost(String);

impl KernelHost {
    fn connect(host: IpAddr) -> anyhow::Result<Self> {
        let line = format!(
            "transport=tcp,traddr={host},trsvcid={OUR_PORT},nqn={NQN},hostnqn={HOST_NQN},hostid={HOST_ID},hdr_digest,data_digest"
        );
        let start = Instant::now();
        loop {
            let mut fabrics = File::options().read(true).write(true).open(FABRICS)?;
            match fabrics.write_all(line.as_bytes()) {
                Ok(()) => {
                    let mut said = String::new();
                    fabrics.read_to_string(&mut said)?;
                    let words = said.trim().split([',', '=']).collect::<Vec<_>>();
                    let ["instance", instance, ..] = words[..] else {
                        bail!("the kernel says {said:?}");
                    };
                    return Ok(Self(format!("nvme{instance}")));
                }
                // The target is not there yet.
                Err(error) if start.elapsed() > STUCK => return Err(error).context("connect"),
                Err(_) => thread::sleep(POLL_INTERVAL),
            }
        }
    }

    /// Waits for the block device of the namespace. Its file is there before the device can be opened: until then ENXIO is the answer
    /// (linux block/genhd.c `__add_disk`).
    fn device(&self) -> anyhow::Result<File> {
        let device = Path::new("/dev").join(format!("{}n1", self.0));
        let start = Instant::now();
        loop {
            match File::options().read(true).write(true).open(&device) {
                Ok(opened) => return Ok(opened),
                Err(error) if start.elapsed() > STUCK => {
                    return Err(error).context("the kernel finds no namespace");
                }
                Err(_) => thread::sleep(POLL_INTERVAL),
            }
        }
    }
}

impl Drop for KernelHost {
    fn drop(&mut self) {
        let file = Path::new("/sys/class/nvme").join(&self.0);
        let _ = fs::write(file.join("delete_controller"), "1");
    }
}
