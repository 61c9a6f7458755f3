//! `devmem-tcp load` and `store` in the guest: their command lines and their reports.

use std::fs;
use std::net::IpAddr;
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use lab::job::{PEER_NETNS, TOOL_PATH};
use serde::Deserialize;

use super::row::Seen;
use super::traffic::{self, Family, Rate};

/// The queue of eth1 that is bound to find out whether the kernel can.
pub const QUEUE: u32 = 2;
/// Where the server's files are.
pub const FOLDER: &str = "/served";
/// Where loaded files are put.
pub const COPY: &str = "/loaded";
/// Where they grow until they are complete.
pub const GROWING: &str = "/loaded.part";

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
}

/// The report of a load or a store, as far as it is looked at.
#[derive(Debug, Deserialize)]
pub struct Report {
    pub backend: String,
    pub bytes: u64,
    pub seconds: f64,
    pub broken: u64,
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

    pub fn seen(&self) -> Seen {
        Seen::from(Rate {
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
) -> anyhow::Result<Seen> {
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
