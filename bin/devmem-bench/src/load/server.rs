//! Stock servers and our NVMe target, and the file that they serve.

use std::fs::File;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use devmem_linux::cpu;
use devmem_linux::helper::Helper;
use devmem_linux::netns::{self, NetNs};
use tempfile::TempDir;

use super::{https, nvme, tensors};
use crate::sender::SENDER;
use pattern::PositionPattern;
use tool::stock::{self, StockServer};

/// Far longer than a server needs to start.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Seed of the pattern in the file.
const SEED: u64 = 1;
/// The tmpfs that every Linux machine has.
const TMPFS: &str = "/dev/shm";

/// A folder in memory with the served file and the files of the servers.
pub struct Files {
    folder: TempDir,
    bytes: u64,
}

impl Files {
    /// Writes a file of `bytes` bytes: a checkpoint.
    ///
    /// # Errors
    ///
    /// There is no room.
    pub fn new(bytes: u64) -> Result<Self> {
        let folder = TempDir::new_in(TMPFS).with_context(|| format!("make a folder in {TMPFS}"))?;
        let pattern = PositionPattern::new(SEED);
        stock::write_file(folder.path(), pattern, bytes).context("write the file")?;
        let file = File::options()
            .write(true)
            .open(folder.path().join(stock::FILE));
        let head = tensors::head(bytes);
        file.and_then(|file| file.write_all_at(&head, 0))
            .context("write its head")?;
        Ok(Self { folder, bytes })
    }

    /// Returns the file of the certificate of the server with TLS.
    pub fn certificate(&self) -> PathBuf {
        https::certificate(self.path())
    }

    /// Returns the path of the file that curl or nbdcopy makes.
    pub fn copy(&self) -> PathBuf {
        self.folder.path().join("copy")
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Network namespace of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// That of this process.
    Here,
    /// Its own.
    Apart,
}

/// Congestion control of the servers. Like cubic it does not pace, and it is the one that every network namespace may make
/// its default, whatever the machine allows (linux net/ipv4/tcp_cong.c: `TCP_CONG_NON_RESTRICTED`). Nothing is lost on the
/// links of this benchmark, so that the two send alike.
const CONGESTION: &str = "reno";

/// Returns a command that does the same after it has made [`CONGESTION`] the default of its network namespace: servers have
/// no option for it, and the machine may have chosen another.
fn with_congestion(command: &Command) -> Command {
    let mut shell = Command::new("sh");
    let script = format!(
        "echo {CONGESTION} > /proc/sys/net/ipv4/tcp_congestion_control && exec \"$0\" \"$@\""
    );
    shell.arg("-c").arg(script);
    shell.arg(command.get_program()).args(command.get_args());
    shell.stdin(Stdio::null()).stdout(Stdio::null());
    shell
}

/// What serves the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serving {
    /// A server of the file in tmpfs.
    File(StockServer),
    /// nginx with TLS, of the file in tmpfs.
    Https,
    /// nbdkit with its plugin `memory`, to which the file is written after the start.
    Memory,
    /// Our NVMe target with the file in memory.
    Nvme(nvme::Digest),
}

impl Serving {
    /// Returns its programs.
    pub fn programs(self) -> Vec<&'static str> {
        match self {
            Self::File(server) => vec![server.program()],
            Self::Https => vec![StockServer::Nginx.program(), https::OPENSSL],
            Self::Memory => vec![StockServer::Nbdkit.program(), FILL],
            Self::Nvme(_) => Vec::new(),
        }
    }

    /// Returns the URL of the file.
    pub fn url(self) -> String {
        match self {
            Self::File(server) => server.url(HOST),
            Self::Https => https::url(HOST),
            Self::Memory => StockServer::Nbdkit.url(HOST),
            Self::Nvme(digest) => nvme::url(HOST, digest),
        }
    }

    fn address(self) -> SocketAddr {
        match self {
            Self::File(server) => server.address(HOST),
            Self::Https => https::address(HOST),
            Self::Memory => StockServer::Nbdkit.address(HOST),
            Self::Nvme(_) => nvme::address(HOST),
        }
    }

    fn command(self, files: &Files) -> Result<Command> {
        match self {
            Self::File(server) => {
                let command = server.command(files.path(), HOST);
                command.with_context(|| format!("prepare {}", server.program()))
            }
            Self::Https => https::command(files.path(), HOST),
            Self::Memory => Ok(nbdkit_memory(files.bytes, self.address().port())),
            Self::Nvme(_) => Ok(nvme::command(
                self.address(),
                &files.path().join(stock::FILE),
            )),
        }
    }
}

/// Where all servers are.
const HOST: IpAddr = IpAddr::V4(SENDER);

fn nbdkit_memory(bytes: u64, port: u16) -> Command {
    let server = StockServer::Nbdkit;
    let mut command = Command::new(server.path().unwrap_or_else(|| server.program().into()));
    command.args(["--foreground", "--ipaddr", "0.0.0.0"]);
    command.args(["--port", &port.to_string()]);
    command.args(["memory", &format!("size={bytes}")]);
    command
}

/// The program that writes the file to a server of memory.
const FILL: &str = "nbdcopy";

/// A running server. At its end nbdkit removes its folder in /tmp.
pub struct Server {
    child: Helper,
}

impl Server {
    /// Starts a server on the processor `cpu`, from a thread that is pinned to another and stays until the end of the server.
    ///
    /// # Errors
    ///
    /// It cannot be started.
    pub fn start(serving: Serving, files: &Files, home: Home, cpu: usize) -> Result<Self> {
        let mut command = with_congestion(&serving.command(files)?);
        if home == Home::Apart {
            netns::start_in_new(&mut command);
        }
        // The child inherits the processor of the thread that starts it. That is the calling thread, not a short one for the
        // start: nbdkit ends with the thread that has started it (PR_SET_PDEATHSIG).
        let own = cpu::allowed_cpus();
        cpu::pin_current_thread(cpu).context("pin the server")?;
        let started = Helper::start(&mut command);
        let own = own.first().context("this thread may run on no processor")?;
        cpu::pin_current_thread(*own).context("pin the receiver")?;
        let child = started.with_context(|| format!("start the server of {}", serving.url()))?;
        Ok(Self { child })
    }

    /// Returns its network namespace.
    ///
    /// # Errors
    ///
    /// It has ended.
    pub fn namespace(&self) -> Result<NetNs> {
        Ok(NetNs::open(&format!("pid:{}", self.child.id()))?)
    }

    /// Returns the CPU time of all its threads.
    ///
    /// # Errors
    ///
    /// It has ended.
    pub fn cpu_time(&self) -> Result<Duration> {
        cpu::cpu_time_of(self.child.id()).context("read the server's CPU time")
    }

    /// Waits until it answers, and has the file.
    ///
    /// # Errors
    ///
    /// It does not answer, or the file cannot be written to it.
    pub fn until_ready(&mut self, serving: Serving, files: &Files) -> Result<()> {
        self.until_it_listens(serving.address())?;
        if serving == Serving::Memory {
            let mut fill = Command::new(FILL);
            fill.arg(files.path().join(stock::FILE));
            let ended = fill.arg(serving.url()).status();
            let ended = ended.with_context(|| format!("start {FILL}"))?;
            if !ended.success() {
                bail!("{FILL} could not write the file to the server: {ended}");
            }
        }
        Ok(())
    }

    fn until_it_listens(&mut self, address: SocketAddr) -> Result<()> {
        let start = Instant::now();
        while TcpStream::connect_timeout(&address, START_LIMIT).is_err() {
            if let Some(status) = self.child.ended().context("look after the server")? {
                bail!("the server ended: {status}");
            }
            if start.elapsed() > START_LIMIT {
                bail!("the server does not listen");
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.end_within(stock::END_LIMIT);
    }
}
