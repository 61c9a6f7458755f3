//! nginx, and the file that it serves.

use std::fs::{self, File};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use devmem_linux::cpu;
use devmem_linux::netns::{self, NetNs};
use tempfile::TempDir;

use tool::output::Failure;

/// Port of the server.
pub const PORT: u16 = 8000;
/// Far longer than nginx needs to start.
const START_LIMIT: Duration = Duration::from_secs(20);
/// The tmpfs that every Linux machine has.
const TMPFS: &str = "/dev/shm";

/// Returns the failure of a machine without `program`.
///
/// # Errors
///
/// It is not there.
pub fn require(program: &str) -> Result<(), Failure> {
    let mut command = Command::new(program);
    // Both programs print their version.
    let found = command
        .arg("-V")
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    match found.status() {
        Ok(_) => Ok(()),
        Err(_) => Err(
            Failure::unsupported(format_args!("there is no {program} here"))
                .with_remedy("apt install nginx-light curl"),
        ),
    }
}

/// A folder in memory with the served file and nginx's own files.
pub struct Files {
    folder: TempDir,
}

impl Files {
    /// Writes a file of `bytes` bytes.
    ///
    /// # Errors
    ///
    /// There is no room.
    pub fn new(bytes: u64) -> Result<Self> {
        let folder = TempDir::new_in(TMPFS).with_context(|| format!("make a folder in {TMPFS}"))?;
        let mut file = File::create(folder.path().join("file")).context("create the file")?;
        let block: Vec<u8> = (0..1 << 20).map(|at: u32| (at >> 3) as u8).collect();
        let mut left = bytes;
        while left > 0 {
            let len = block.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            file.write_all(&block[..len]).context("write the file")?;
            left -= len as u64;
        }
        let conf = format!(
            "daemon off; master_process off; worker_processes 1; pid {0}/pid; error_log {0}/errors;\n\
             events {{ worker_connections 256; }}\n\
             http {{ access_log off; sendfile on; tcp_nopush on; keepalive_requests 100000;\n\
             client_body_temp_path {0}/body; proxy_temp_path {0}/proxy; fastcgi_temp_path {0}/fcgi;\n\
             uwsgi_temp_path {0}/uwsgi; scgi_temp_path {0}/scgi;\n\
             server {{ listen {PORT}; root {0}; }} }}\n",
            folder.path().display()
        );
        fs::write(folder.path().join("conf"), conf).context("write the configuration")?;
        Ok(Self { folder })
    }

    /// Returns the path of curl's file.
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

/// A running nginx, killed at the end.
pub struct Nginx {
    child: Child,
}

impl Nginx {
    /// Starts nginx on a processor.
    ///
    /// # Errors
    ///
    /// It cannot be started.
    pub fn start(files: &Files, home: Home, cpu: usize) -> Result<Self> {
        let mut command = Command::new("nginx");
        let folder = files.path();
        command.arg("-e").arg(folder.join("errors"));
        command.arg("-c").arg(folder.join("conf"));
        command.stdin(Stdio::null()).stdout(Stdio::null());
        if home == Home::Apart {
            netns::start_in_new(&mut command);
        }
        // The child inherits the processor of the thread that starts it.
        let started = thread::scope(|scope| {
            let start = scope.spawn(|| {
                cpu::pin_current_thread(cpu).context("pin the server")?;
                command.spawn().context("start nginx")
            });
            start.join().map_err(|_| anyhow!("the thread panicked"))
        })?;
        Ok(Self { child: started? })
    }

    /// Returns its network namespace.
    ///
    /// # Errors
    ///
    /// It has ended.
    pub fn namespace(&self) -> Result<NetNs> {
        Ok(NetNs::open(&format!("pid:{}", self.child.id()))?)
    }

    /// Waits until it answers at `address`.
    ///
    /// # Errors
    ///
    /// It does not.
    pub fn until_ready(&mut self, address: SocketAddr) -> Result<()> {
        let start = Instant::now();
        while TcpStream::connect_timeout(&address, START_LIMIT).is_err() {
            if let Some(status) = self.child.try_wait().context("look after nginx")? {
                bail!("nginx ended: {status}");
            }
            if start.elapsed() > START_LIMIT {
                bail!("nginx does not listen");
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
