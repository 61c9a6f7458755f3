//! `devmem-tcp load` and `store` in the guest: their command lines and their reports.

use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use devmem_linux::helper::Helper;
use lab::job::{PEER_NETNS, TOOL_PATH};
use serde::Deserialize;

use super::row::PassedRow;
use super::traffic::{self, Family, Rate, STUCK};

/// The queue of eth1 that is bound to find out whether the kernel can.
pub const QUEUE: u32 = 2;
/// Where the server's files are.
pub const FOLDER: &str = "/served";
/// Where loaded files are put.
pub const COPY: &str = "/loaded";
/// Where they grow until they are complete.
const GROWING: &str = "/loaded.part";
/// Time between two looks at a running load.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Which NIC has the device memory. The server is at the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loader {
    OursAtEth1,
    PeersAtEth0,
}

impl Loader {
    pub fn interface(self) -> &'static str {
        match self {
            Self::OursAtEth1 => "eth1",
            Self::PeersAtEth0 => "eth0",
        }
    }

    /// Returns the server's address.
    pub fn host(self, family: Family) -> IpAddr {
        match self {
            Self::OursAtEth1 => traffic::address(0, family),
            Self::PeersAtEth0 => traffic::address(1, family),
        }
    }

    /// Returns the command that runs our program with the loader's NIC.
    pub fn tool(self, subcommand: &str) -> Command {
        let mut command = match self {
            Self::OursAtEth1 => Command::new(TOOL_PATH),
            Self::PeersAtEth0 => {
                let mut inside = Command::new("ip");
                inside.args(["netns", "exec", PEER_NETNS, TOOL_PATH]);
                inside
            }
        };
        command.args([subcommand, "--backend", "kernel", "--json"]);
        command.args(["--if", self.interface()]);
        command
    }

    /// Starts a load into [`COPY`] in pieces of this size, and waits until the first `bytes` have arrived.
    pub fn start_long_load(self, url: &str, piece: &str, bytes: u64) -> anyhow::Result<Helper> {
        // A load that failed leaves what it has loaded, and the next one goes on with that.
        for left in [COPY, GROWING] {
            let _ = fs::remove_file(left);
        }
        let mut command = self.tool("load");
        command.args([url, "--to", COPY, "--piece", piece]);
        start_until(&mut command, Path::new(GROWING), bytes)
    }
}

/// Starts a program, and waits until it has written the first `bytes` of a sparse file.
pub fn start_until(command: &mut Command, growing: &Path, bytes: u64) -> anyhow::Result<Helper> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Helper::start(command)?;
    let start = Instant::now();
    while fs::metadata(growing).map_or(0, |file| file.blocks() * 512) < bytes {
        ensure!(
            running.ended()?.is_none(),
            "it ended before enough had arrived"
        );
        ensure!(
            start.elapsed() < STUCK,
            "{bytes} bytes of the file did not arrive"
        );
        thread::sleep(POLL_INTERVAL);
    }
    Ok(running)
}

/// The report of a load or a store, as far as it is looked at.
#[derive(Debug, Deserialize)]
pub struct Report {
    pub backend: String,
    pub bytes: u64,
    pub seconds: f64,
    pub broken: u64,
    pub pieces: u64,
    pub crc32c: Option<String>,
    pub crc32c_matches: Option<bool>,
    /// Received bytes in host memory; a store has none of these figures.
    pub linear_bytes: Option<u64>,
}

impl Report {
    /// Returns the report of a run that has succeeded.
    pub fn of(output: &Output) -> anyhow::Result<Self> {
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(
            output.status.success(),
            "{}: {}",
            output.status,
            said.trim()
        );
        let report: Self = serde_json::from_slice(&output.stdout).context("parse the report")?;
        ensure!(
            report.backend == "kernel",
            "the backend was {}",
            report.backend
        );
        Ok(report)
    }

    pub fn seen(&self) -> PassedRow {
        PassedRow::from(Rate {
            bytes: self.bytes,
            elapsed: Duration::from_secs_f64(self.seconds),
        })
    }
}

/// Loads into a file, which is compared with what is `expected`, and into device memory, whose checksum is compared with that of the
/// file.
pub fn compare_loads(
    expected: &[u8],
    run: impl Fn(&str) -> anyhow::Result<Report>,
) -> anyhow::Result<PassedRow> {
    let to_file = run(COPY).context("to a file")?;
    ensure!(fs::read(COPY)? == expected, "the bytes of the file differ");
    let to_memory = run("memory").context("to memory")?;
    ensure!(
        to_memory.crc32c.is_some() && to_memory.crc32c == to_file.crc32c,
        "{:?} in memory and {:?} in the file",
        to_memory.crc32c,
        to_file.crc32c
    );
    let linear = to_memory.linear_bytes;
    ensure!(linear == Some(0), "{linear:?} bytes in host memory");
    Ok(to_memory.seen())
}
