//! Rows for `devmem-tcp load` and `store` with the guest's kernel: a stock server at one NIC, device memory at the other.

use std::fs::{self, File};
use std::io::Write;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::ensure;
use devmem_linux::netns::NetNs;
use lab::job::PEER_NETNS;

use super::devmem::bound::require_rx;
use super::loading::{COPY, FOLDER, Loader, QUEUE, Report, compare_loads};
use super::nvme_rows;
use super::row::{Context, PassedRow, Row, Skip};
use super::traffic::Family;
use pattern::PositionPattern;
use tool::signals::StopFlag;
use tool::stock::{self, RunningServer, StockServer};

/// The servers that the host copies into the guest.
pub const SERVERS: [StockServer; 2] = [StockServer::Nginx, StockServer::QemuNbd];
/// Seed of the pattern in the served file.
const SEED: u64 = 7;
/// Fewest bytes of a load whose server is restarted.
const RESTART_BYTES: u64 = 64 << 20;

pub const ROWS: &[Row] = &[
    ("load from nginx, IPv4", |context| {
        load(context, StockServer::Nginx, Family::V4, Loader::OursAtEth1)
    }),
    ("load from nginx, IPv6", |context| {
        load(context, StockServer::Nginx, Family::V6, Loader::OursAtEth1)
    }),
    ("load from qemu-nbd", |context| {
        load(
            context,
            StockServer::QemuNbd,
            Family::V4,
            Loader::OursAtEth1,
        )
    }),
    ("load by the other NIC", |context| {
        load(context, StockServer::Nginx, Family::V4, Loader::PeersAtEth0)
    }),
    ("store in qemu-nbd, and load back", store),
    ("load from nvmet", |context| nvme_rows::load(context, "")),
    ("load from nvmet, digests", |context| {
        nvme_rows::load(context, nvme_rows::DIGESTS)
    }),
    ("load from nvmet, flow control of queues", |context| {
        nvme_rows::load(context, nvme_rows::FLOW_CONTROL)
    }),
    ("store in nvmet, and load back", |context| {
        nvme_rows::store(context, "")
    }),
    ("store in nvmet, and load back, digests", |context| {
        nvme_rows::store(context, nvme_rows::DIGESTS)
    }),
    (
        "load from nvmet that is ended and restarted",
        nvme_rows::restart,
    ),
    (
        "store in nvmet that is ended and restarted",
        nvme_rows::restart_in_store,
    ),
    ("nvmet with commands of 128 KiB", nvme_rows::short_commands),
    ("nvmet with blocks of 512 bytes", nvme_rows::blocks_of_512),
    ("nvmet with two namespaces", nvme_rows::two_namespaces),
    ("nvmet with a read-only namespace", nvme_rows::read_only),
    ("nvmet whose namespace shrinks", nvme_rows::shrinks),
    ("nvmet whose namespace vanishes", nvme_rows::vanishes),
    (
        "the kernel's NVMe host and our target",
        nvme_rows::kernels_host,
    ),
    ("load from a server that is killed and restarted", restart),
];

pub const LOSS_ROWS: &[Row] = &[
    ("bad wire: load from nginx", |context| {
        load(context, StockServer::Nginx, Family::V4, Loader::OursAtEth1)
    }),
    ("bad wire: store in qemu-nbd, and load back", store),
];

/// A running server, and the file that it serves.
struct Served {
    server: StockServer,
    loader: Loader,
    host: IpAddr,
    running: Option<RunningServer>,
    file: Vec<u8>,
}

impl Served {
    fn start(
        bytes: u64,
        server: StockServer,
        family: Family,
        loader: Loader,
    ) -> anyhow::Result<Self> {
        if server.path().is_none() {
            let program = server.program();
            return Err(Skip(format!("this machine has no {program} for the guest")).into());
        }
        require_rx(QUEUE)?;
        let mut file = vec![0; usize::try_from(bytes)?];
        PositionPattern::new(SEED).fill(0, &mut file);
        fs::create_dir_all(FOLDER)?;
        File::create(path())?.write_all(&file)?;
        let host = loader.host(family);
        let mut served = Self {
            server,
            loader,
            host,
            running: None,
            file,
        };
        served.restart()?;
        Ok(served)
    }

    /// Starts the server again, in the network namespace that the loader is not in.
    fn restart(&mut self) -> anyhow::Result<()> {
        let stop = StopFlag::install()?;
        let start = || {
            let started = self.server.start(Path::new(FOLDER), self.host, &stop);
            started.map_err(|failure| anyhow::anyhow!("{failure}"))
        };
        let running = match self.loader {
            Loader::PeersAtEth0 => start()?,
            Loader::OursAtEth1 => {
                // In this thread: the server ends with the thread that starts it.
                let ours = NetNs::current()?;
                NetNs::open(PEER_NETNS)?.join()?;
                let started = start();
                ours.join()?;
                started?
            }
        };
        self.running = Some(running);
        Ok(())
    }

    fn kill(&mut self) {
        if let Some(running) = self.running.take() {
            running.kill();
        }
    }

    fn url(&self) -> String {
        self.server.url(self.host)
    }
}

fn path() -> PathBuf {
    Path::new(FOLDER).join(stock::FILE)
}

fn load(
    context: &Context,
    server: StockServer,
    family: Family,
    loader: Loader,
) -> anyhow::Result<PassedRow> {
    let served = Served::start(context.bytes, server, family, loader)?;
    let run = |to: &str| {
        let mut command = loader.tool("load");
        command.args([&served.url(), "--to", to, "--verify"]);
        Report::of(&command.output()?)
    };
    compare_loads(&served.file, run)
}

/// Stores from device memory, and compares what the server's file has.
fn store(context: &Context) -> anyhow::Result<PassedRow> {
    let loader = Loader::OursAtEth1;
    let served = Served::start(context.bytes, StockServer::QemuNbd, Family::V4, loader)?;
    let source = served.file.iter().rev().copied().collect::<Vec<_>>();
    fs::write(COPY, &source)?;
    let mut command = loader.tool("store");
    command.args([COPY, &served.url(), "--verify"]);
    let report = Report::of(&command.output()?)?;
    ensure!(report.crc32c_matches == Some(true), "{report:?}");
    drop(served);
    ensure!(
        fs::read(path())? == source,
        "the bytes of the export differ"
    );
    Ok(report.seen())
}

/// Kills the server when a part of the file has arrived, and starts it again.
fn restart(context: &Context) -> anyhow::Result<PassedRow> {
    let (server, loader) = (StockServer::Nginx, Loader::OursAtEth1);
    // Enough that it is not over before the server is killed.
    let bytes = context.bytes.max(RESTART_BYTES);
    let mut served = Served::start(bytes, server, Family::V4, loader)?;
    let running = loader.start_long_load(&served.url(), "1M", bytes / 4)?;
    served.kill();
    served.restart()?;
    let report = Report::of(&running.wait_with_output()?)?;
    ensure!(report.broken > 0, "no connection broke");
    ensure!(
        fs::read(COPY)? == served.file,
        "the bytes of the file differ"
    );
    Ok(PassedRow {
        detail: format!(
            "every byte correct after {} broken connections",
            report.broken
        ),
        rate: None,
    })
}
