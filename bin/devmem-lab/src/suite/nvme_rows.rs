//! Rows for `devmem-tcp load` and `store` with the guest's NVMe/TCP target, nvmet, in the network namespace of the other NIC; and for
//! the guest's NVMe/TCP host with the target of this project.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use devmem_linux::helper::Helper;
use devmem_linux::netns::NetNs;
use lab::job::{PEER_NETNS, TOOL_PATH};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount};

use super::devmem::bound::require_rx;
use super::loading::{COPY, FOLDER, GROWING, Loader, QUEUE, Report, compare_loads};
use super::row::{Context, Seen, Skip};
use super::traffic::{Family, STUCK};
use tool::pattern::PositionPattern;

/// Where the kernel's targets are configured.
const CONFIGFS: &str = "/sys/kernel/config";
const NVMET: &str = "/sys/kernel/config/nvmet";
const NQN: &str = "nqn.2014-08.org.devmem-tcp:lab";
const PORT: &str = "4420";
/// Seed of the pattern in the namespace.
const SEED: u64 = 11;
/// Where the kernel's hosts are connected.
const FABRICS: &str = "/dev/nvme-fabrics";
/// Port of the target of this project, and the name of the kernel's host.
const OUR_PORT: u16 = 4430;
const HOST_NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:01234567-89ab-4def-8123-456789abcdef";
const HOST_ID: &str = "01234567-89ab-4def-8123-456789abcdef";
/// Fewest bytes of a load whose target is restarted.
const RESTART_BYTES: u64 = 64 << 20;
/// Time between two looks.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The device memory is at eth1, the target at eth0.
const LOADER: Loader = Loader::OursAtEth1;

/// Parameters of the URL.
pub const DIGESTS: &str = "&hdr-digest=1&data-digest=1";
pub const FLOW_CONTROL: &str = "&sq-flow=1";

/// A running target with one namespace, which is a file. Dropping it ends the target.
struct Nvmet {
    host: IpAddr,
    bytes: Vec<u8>,
}

impl Nvmet {
    fn start(len: u64) -> anyhow::Result<Self> {
        require_rx(QUEUE)?;
        match mount("none", CONFIGFS, "configfs", MountFlags::empty(), None) {
            Ok(()) | Err(Errno::BUSY) => {}
            Err(_) => return Err(Skip("the kernel has no configfs".to_owned()).into()),
        }
        if !Path::new(NVMET).is_dir() {
            let missing = "the kernel has no nvmet, or its module is not in the guest";
            return Err(Skip(missing.to_owned()).into());
        }
        let bytes = pattern(len)?;
        fs::create_dir_all(FOLDER)?;
        fs::write(disk(), &bytes)?;
        let host = LOADER.host(Family::V4);
        let target = Self { host, bytes };
        target.configure().context("configure nvmet")?;
        Ok(target)
    }

    fn configure(&self) -> io::Result<()> {
        let namespace = namespace();
        fs::create_dir(subsystem())?;
        fs::write(subsystem().join("attr_allow_any_host"), "1")?;
        fs::create_dir(&namespace)?;
        fs::write(
            namespace.join("device_path"),
            disk().as_os_str().as_encoded_bytes(),
        )?;
        fs::write(namespace.join("buffered_io"), "1")?;
        fs::write(namespace.join("enable"), "1")?;
        fs::create_dir(port())?;
        let address = self.host.to_string();
        for (name, value) in [
            ("addr_trtype", "tcp"),
            ("addr_adrfam", "ipv4"),
            ("addr_traddr", &address),
            ("addr_trsvcid", PORT),
        ] {
            fs::write(port().join(name), value)?;
        }
        self.listen()
    }

    /// Makes the port listen.
    fn listen(&self) -> io::Result<()> {
        // The socket belongs to the network namespace of the thread that makes the link.
        let ours = NetNs::current().map_err(io::Error::other)?;
        let peers = NetNs::open(PEER_NETNS).map_err(io::Error::other)?;
        peers.join().map_err(io::Error::other)?;
        let linked = std::os::unix::fs::symlink(subsystem(), link());
        ours.join().map_err(io::Error::other)?;
        linked
    }

    fn url(&self, parameters: &str) -> String {
        format!("nvme://{}:{PORT}/{NQN}?nsid=1{parameters}", self.host)
    }
}

/// Ends the target and its connections when a part of the file has arrived, and lets it listen again.
pub fn restart(context: &Context) -> anyhow::Result<Seen> {
    // Enough that it is not over before.
    let target = Nvmet::start(context.bytes.max(RESTART_BYTES))?;
    let _ = fs::remove_file(COPY);
    let mut command = LOADER.tool("load");
    command.args([&target.url(""), "--to", COPY, "--piece", "256K"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Helper::start(&mut command)?;
    let quarter = target.bytes.len() as u64 / 4;
    until_loaded(&mut running, quarter)?;
    fs::remove_file(link()).context("end the target")?;
    target.listen().context("let the target listen again")?;
    let report = Report::of(&running.wait_with_output()?)?;
    ensure!(report.broken > 0, "no connection broke");
    ensure!(
        fs::read(COPY)? == target.bytes,
        "the bytes of the file differ"
    );
    let broken = report.broken;
    Ok(Seen {
        detail: format!("every byte correct after {broken} broken connections"),
        rate: None,
    })
}

/// The kernel's host reads and writes a namespace of the target of this project, with digests.
pub fn kernels_host(context: &Context) -> anyhow::Result<Seen> {
    if !Path::new(FABRICS).exists() {
        let missing = "the kernel has no NVMe over fabrics, or its module is not in the guest";
        return Err(Skip(missing.to_owned()).into());
    }
    let bytes = pattern(context.bytes)?;
    fs::create_dir_all(FOLDER)?;
    fs::write(disk(), &bytes)?;
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
    command.arg(disk());
    let _target = Helper::start(&mut command)?;
    let connected = KernelsHost::connect(host)?;
    let device = connected.device()?;
    ensure!(fs::read(&device)? == bytes, "the kernel reads other bytes");
    let other: Vec<u8> = bytes.iter().rev().copied().collect();
    let mut writer = File::options().write(true).open(&device)?;
    writer.write_all(&other)?;
    writer.sync_all().context("flush")?;
    drop((writer, connected));
    ensure!(
        fs::read(disk())? == other,
        "the kernel has written other bytes"
    );
    Ok(Seen {
        detail: "every byte correct in both directions".to_owned(),
        rate: None,
    })
}

/// The kernel's host, connected to the target of this project. Dropping it disconnects.
struct KernelsHost(String);

impl KernelsHost {
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

    /// Waits for the block device of the namespace.
    fn device(&self) -> anyhow::Result<PathBuf> {
        let device = Path::new("/dev").join(format!("{}n1", self.0));
        let start = Instant::now();
        while !device.exists() {
            ensure!(start.elapsed() < STUCK, "the kernel finds no namespace");
            thread::sleep(POLL_INTERVAL);
        }
        Ok(device)
    }
}

impl Drop for KernelsHost {
    fn drop(&mut self) {
        let file = Path::new("/sys/class/nvme").join(&self.0);
        let _ = fs::write(file.join("delete_controller"), "1");
    }
}

/// Waits until `bytes` of the loaded file have arrived.
fn until_loaded(running: &mut Helper, bytes: u64) -> anyhow::Result<()> {
    let start = Instant::now();
    // The file is sparse before its bytes arrive.
    while fs::metadata(GROWING).map_or(0, |file| file.blocks() * 512) < bytes {
        ensure!(running.ended()?.is_none(), "it ended before the target did");
        ensure!(
            start.elapsed() < STUCK,
            "a quarter of the file did not arrive"
        );
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}

fn pattern(len: u64) -> anyhow::Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(len)?];
    PositionPattern::new(SEED).fill(0, &mut bytes);
    Ok(bytes)
}

impl Drop for Nvmet {
    fn drop(&mut self) {
        // In reverse; what was not made is not there.
        let _ = fs::remove_file(link());
        let _ = fs::remove_dir(port());
        let _ = fs::write(namespace().join("enable"), "0");
        let _ = fs::remove_dir(namespace());
        let _ = fs::remove_dir(subsystem());
    }
}

fn disk() -> PathBuf {
    Path::new(FOLDER).join("disk")
}

fn subsystem() -> PathBuf {
    Path::new(NVMET).join("subsystems").join(NQN)
}

fn namespace() -> PathBuf {
    subsystem().join("namespaces/1")
}

fn port() -> PathBuf {
    Path::new(NVMET).join("ports/1")
}

fn link() -> PathBuf {
    port().join("subsystems").join(NQN)
}

pub fn load(context: &Context, parameters: &str) -> anyhow::Result<Seen> {
    let target = Nvmet::start(context.bytes)?;
    let run = |to: &str| {
        let mut command = LOADER.tool("load");
        command.args([&target.url(parameters), "--to", to, "--verify"]);
        Report::of(&command.output()?)
    };
    compare_loads(&target.bytes, run)
}

/// Stores from device memory, and compares what the file of the namespace has.
pub fn store(context: &Context, parameters: &str) -> anyhow::Result<Seen> {
    let target = Nvmet::start(context.bytes)?;
    let source: Vec<u8> = target.bytes.iter().rev().copied().collect();
    fs::write(COPY, &source)?;
    let mut command = LOADER.tool("store");
    command.args([COPY, &target.url(parameters), "--verify"]);
    let report = Report::of(&command.output()?)?;
    ensure!(report.crc32c_matches == Some(true), "{report:?}");
    drop(target);
    ensure!(
        fs::read(disk())? == source,
        "the bytes of the namespace differ"
    );
    Ok(report.seen())
}
