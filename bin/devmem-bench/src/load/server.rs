//! Stock servers, and the file that they serve.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use devmem_linux::cpu;
use devmem_linux::netns::{self, NetNs};
use tempfile::TempDir;

use super::tensors;
use crate::sender::SENDER;
use tool::pattern::PositionPattern;
use tool::stock::{self, StockServer};

/// Far longer than a server needs to start.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Seed of the pattern in the file.
const SEED: u64 = 1;
/// Unit of the times in /proc/PID/stat: a hundredth of a second (USER_HZ, linux include/asm-generic/param.h).
const TICK: Duration = Duration::from_millis(10);
/// The tmpfs that every Linux machine has.
const TMPFS: &str = "/dev/shm";

/// A folder in memory with the served file and the files of the servers.
pub struct Files {
    folder: TempDir,
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
        Ok(Self { folder })
    }

    /// Returns the path of the file that curl makes.
    pub fn copy(&self) -> PathBuf {
        self.folder.path().join("copy")
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Returns a user and a system time of a process, two fields of /proc/PID/stat: the ones after `skip` fields behind the name
/// (proc_pid_stat(5)).
///
/// # Errors
///
/// There is no such process.
pub fn cpu_time(pid: &str, skip: usize) -> Result<Duration> {
    let path = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(&path).with_context(|| format!("read {path}"))?;
    times_of(&stat, skip).with_context(|| format!("parse {path}"))
}

/// The name, in parentheses, may have spaces and parentheses.
fn times_of(stat: &str, skip: usize) -> Option<Duration> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(skip);
    let (user, system): (u32, u32) = (times.next()?.parse().ok()?, times.next()?.parse().ok()?);
    Some(TICK.saturating_mul(user.saturating_add(system)))
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

/// A running server, killed at the end.
pub struct Server {
    child: Child,
}

impl Server {
    /// Starts a server on the processor `cpu`, from a thread that is pinned to another and stays until the end of the server.
    ///
    /// # Errors
    ///
    /// It cannot be started.
    pub fn start(server: StockServer, files: &Files, home: Home, cpu: usize) -> Result<Self> {
        let program = server.program();
        let command = server.command(files.path(), SENDER.into());
        let command = command.with_context(|| format!("prepare {program}"))?;
        let mut command = with_congestion(&command);
        if home == Home::Apart {
            netns::start_in_new(&mut command);
        }
        // The child inherits the processor of the thread that starts it. That is the calling thread, not a short one for the
        // start: nbdkit ends with the thread that has started it (PR_SET_PDEATHSIG).
        let own = cpu::allowed_cpus();
        cpu::pin_current_thread(cpu).context("pin the server")?;
        let started = command.spawn();
        let own = own.first().context("this thread may run on no processor")?;
        cpu::pin_current_thread(*own).context("pin the receiver")?;
        let child = started.with_context(|| format!("start {program}"))?;
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

    /// Returns the CPU time of all its threads: the fields utime and stime.
    ///
    /// # Errors
    ///
    /// It has ended.
    pub fn cpu_time(&self) -> Result<Duration> {
        cpu_time(&self.child.id().to_string(), 11)
    }

    /// Waits until it answers at `address`.
    ///
    /// # Errors
    ///
    /// It does not.
    pub fn until_ready(&mut self, address: SocketAddr) -> Result<()> {
        let start = Instant::now();
        while TcpStream::connect_timeout(&address, START_LIMIT).is_err() {
            if let Some(status) = self.child.try_wait().context("look after the server")? {
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
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_times_of_a_process_and_its_children_are_found_behind_any_name() {
        let stat = "1 (a b) c) S 1 2 3 4 5 6 7 8 9 10 500 600 7 8 20 0 1 0\n";
        assert_eq!(times_of(stat, 11), Some(TICK * 1100));
        assert_eq!(times_of(stat, 13), Some(TICK * 15));
        assert_eq!(times_of("1 (x) S", 13), None);
        cpu_time("self", 13).expect("this process has such a file");
    }
}
