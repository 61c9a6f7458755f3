//! Stock servers of a file: nginx, Python's http.server, qemu-nbd and nbdkit.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::ValueEnum;
use devmem_linux::helper::Helper;

use crate::output::Failure;
use crate::peer::start_apart;
use crate::signals::StopFlag;
use pattern::PositionPattern;

/// Name of the served file, and of the export.
pub const FILE: &str = "file";
/// The file with the server's errors.
const ERRORS: &str = "errors";
/// Ports of the protocols.
const HTTP_PORT: u16 = 8000;
const NBD_PORT: u16 = 10_809;
/// Bytes of the file that are written at a time.
const WRITE_BYTES: usize = 1 << 20;
/// Far longer than a server needs to start.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Far longer than a server needs to end after SIGTERM.
pub const END_LIMIT: Duration = Duration::from_secs(5);
/// Time between two looks whether a server listens.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Where administrators' programs are, which is often not among the places that a user's shell searches.
const SBIN: &str = "/usr/sbin";

/// Writes the file that a server of `folder` serves: the first `bytes` bytes of a pattern.
///
/// # Errors
///
/// There is no room.
pub fn write_file(folder: &Path, pattern: PositionPattern, bytes: u64) -> io::Result<()> {
    let mut file = File::create(folder.join(FILE))?;
    let mut block = vec![0; WRITE_BYTES];
    let mut at = 0;
    while at < bytes {
        let left = usize::try_from(bytes - at).unwrap_or(usize::MAX);
        let block = &mut block[..left.min(WRITE_BYTES)];
        pattern.fill(at, block);
        file.write_all(block)?;
        at += block.len() as u64;
    }
    Ok(())
}

/// A stock server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StockServer {
    /// nginx, which serves ranges by HTTP
    Nginx,
    /// Python's http.server, which serves whole files by HTTP
    Python,
    /// qemu-nbd, by NBD; clients may also write
    QemuNbd,
    /// nbdkit, by NBD
    Nbdkit,
}

impl StockServer {
    /// All servers, the preferred one first.
    const ALL: [Self; 4] = [Self::Nginx, Self::QemuNbd, Self::Nbdkit, Self::Python];

    /// Returns the first server that this machine has.
    ///
    /// # Errors
    ///
    /// There is none.
    pub fn find() -> Result<Self, Failure> {
        Self::find_in(&folders())
    }

    fn find_in(folders: &[PathBuf]) -> Result<Self, Failure> {
        let is_here = |server: &Self| path_in(server.program(), folders).is_some();
        Self::ALL.into_iter().find(is_here).ok_or_else(|| {
            Failure::unsupported("there is no nginx, qemu-nbd, nbdkit or python3 here")
                .with_remedy("install one of them: apt install nginx-light")
        })
    }

    /// Checks that this machine has the server.
    ///
    /// # Errors
    ///
    /// It has not.
    pub fn require(self) -> Result<(), Failure> {
        let (program, package) = (self.program(), self.package());
        match self.path() {
            Some(_) => Ok(()),
            None => Err(
                Failure::unsupported(format_args!("there is no {program} here"))
                    .with_remedy(format!("apt install {package}")),
            ),
        }
    }

    /// Returns the name of its program.
    pub fn program(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Python => "python3",
            Self::QemuNbd => "qemu-nbd",
            Self::Nbdkit => "nbdkit",
        }
    }

    /// Returns the name of Debian's package with it.
    fn package(self) -> &'static str {
        match self {
            Self::Nginx => "nginx-light",
            Self::Python => "python3",
            Self::QemuNbd => "qemu-utils",
            Self::Nbdkit => "nbdkit",
        }
    }

    /// Returns the path of its program, if this machine has it.
    pub fn path(self) -> Option<PathBuf> {
        path_of(self.program())
    }

    /// Returns the address that it listens on, for a client that reaches it at `host`.
    pub fn address(self, host: IpAddr) -> SocketAddr {
        SocketAddr::new(host, self.port())
    }

    fn port(self) -> u16 {
        match self {
            Self::Nginx | Self::Python => HTTP_PORT,
            Self::QemuNbd | Self::Nbdkit => NBD_PORT,
        }
    }

    /// Returns the URL of the served file, for a client that reaches the server at `host`.
    pub fn url(self, host: IpAddr) -> String {
        let at = self.address(host);
        match self {
            Self::Nginx | Self::Python => format!("http://{at}/{FILE}"),
            Self::QemuNbd | Self::Nbdkit => format!("nbd://{at}/{FILE}"),
        }
    }

    /// Returns the command that serves the file [`FILE`] in `folder` at all addresses of the IP version of `host`. The server
    /// also writes to that folder.
    ///
    /// # Errors
    ///
    /// Its configuration cannot be written.
    pub fn command(self, folder: &Path, host: IpAddr) -> io::Result<Command> {
        let any = match host {
            IpAddr::V4(_) => "0.0.0.0",
            IpAddr::V6(_) => "::",
        };
        let port = self.port().to_string();
        let mut command = Command::new(self.path().unwrap_or_else(|| self.program().into()));
        match self {
            Self::Nginx => {
                fs::write(folder.join("conf"), nginx_conf(folder, any, &port))?;
                command.arg("-e").arg(folder.join(ERRORS));
                command.arg("-c").arg(folder.join("conf"));
            }
            Self::Python => {
                command.args(["-m", "http.server", &port, "--bind", any]);
                command.arg("--directory").arg(folder);
            }
            Self::QemuNbd => {
                command.args("--persistent --shared 16 --format raw".split(' '));
                command.args(["--export-name", FILE, "--bind", any, "--port", &port]);
                command.arg(folder.join(FILE));
            }
            Self::Nbdkit => {
                command.args(["--foreground", "--readonly", "--ipaddr", any]);
                command.args(["--port", &port, "file"]);
                command.arg(folder.join(FILE));
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::null());
        Ok(command)
    }

    /// Starts the server, and waits until it answers at `host`. It ends when the returned value is dropped.
    ///
    /// # Errors
    ///
    /// It ends, or does not listen; a signal has arrived.
    pub fn start(
        self,
        folder: &Path,
        host: IpAddr,
        stop: &StopFlag,
    ) -> Result<RunningServer, Failure> {
        let command = self.command(folder, host).context("prepare the server")?;
        RunningServer::start(self.program(), command, self.address(host), folder, stop)
    }
}

/// A running server. Dropping it ends it by SIGTERM, on which nbdkit removes its folder in /tmp, or by force.
#[derive(Debug)]
pub struct RunningServer(Helper);

impl RunningServer {
    /// Starts a server by its command, and waits until it listens at `at`. What it says goes to a file in `folder`.
    ///
    /// # Errors
    ///
    /// It ends, or does not listen; a signal has arrived.
    pub fn start(
        program: &str,
        mut command: Command,
        at: SocketAddr,
        folder: &Path,
        stop: &StopFlag,
    ) -> Result<Self, Failure> {
        let errors = folder.join(ERRORS);
        // Some servers also open it by its name.
        let stderr = File::options().append(true).create(true).open(&errors);
        command.stderr(stderr.context("create a file")?);
        let server = start_apart(&mut command).with_context(|| format!("start {program}"))?;
        let mut server = Self(server);
        let start = Instant::now();
        while TcpStream::connect_timeout(&at, START_LIMIT).is_err() {
            if server.0.ended().context("look after the server")?.is_some() {
                let said = fs::read_to_string(&errors).unwrap_or_default();
                let last = said
                    .lines()
                    .next_back()
                    .unwrap_or("without an error")
                    .trim();
                return Err(Failure::failed(format!("{program} ended: {last}")));
            }
            if stop.is_set() {
                return Err(Failure::interrupted());
            }
            if start.elapsed() > START_LIMIT {
                return Err(Failure::failed(format!(
                    "{program} does not listen on {at}"
                )));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(server)
    }

    /// Ends it by force (SIGKILL), as a crash would.
    pub fn kill(mut self) {
        self.0.kill();
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        self.0.end_within(END_LIMIT);
    }
}

/// Returns the path of a program, if this machine has it.
pub fn path_of(program: &str) -> Option<PathBuf> {
    path_in(program, &folders())
}

fn path_in(program: &str, folders: &[PathBuf]) -> Option<PathBuf> {
    let mut programs = folders.iter().map(|folder| folder.join(program));
    programs.find(|program| program.is_file())
}

/// Returns the folders that are searched for programs.
fn folders() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path);
    folders.chain([PathBuf::from(SBIN)]).collect()
}

/// Returns the configuration of an nginx that needs no privilege and no folder but this one. Its user is root: in the user
/// namespace of a demo without privileges there is no other, and nginx gives its folders to the user.
fn nginx_conf(folder: &Path, any: &str, port: &str) -> String {
    let any = match any.contains(':') {
        true => format!("[{any}]"),
        false => any.to_owned(),
    };
    format!(
        "user root; daemon off; master_process off; worker_processes 1; pid {0}/pid; error_log {0}/{ERRORS};\n\
         events {{ worker_connections 256; }}\n\
         http {{ access_log off; sendfile on; tcp_nopush on; keepalive_requests 100000;\n\
         client_body_temp_path {0}/body; proxy_temp_path {0}/proxy; fastcgi_temp_path {0}/fcgi;\n\
         uwsgi_temp_path {0}/uwsgi; scgi_temp_path {0}/scgi;\n\
         server {{ listen {any}:{port}; root {0}; }} }}\n",
        folder.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::Exit;

    #[test]
    fn the_first_installed_server_is_found_and_without_one_the_remedy_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let folders = [folder.path().join("nosuch"), folder.path().to_owned()];
        let refused = StockServer::find_in(&folders).unwrap_err();
        assert!(refused.to_string().ends_with("apt install nginx-light"));
        assert_eq!(refused.report("test"), Exit::Unsupported);
        for (name, found) in [
            ("nbdkit", StockServer::Nbdkit),
            ("nginx", StockServer::Nginx),
        ] {
            File::create(folder.path().join(name)).unwrap();
            assert_eq!(StockServer::find_in(&folders).unwrap(), found);
        }
    }

    #[test]
    fn urls_name_the_file_and_the_port_of_the_protocol() {
        let v6: IpAddr = "fd77::1".parse().unwrap();
        assert_eq!(StockServer::Nginx.url(v6), "http://[fd77::1]:8000/file");
        let v4: IpAddr = "10.77.0.1".parse().unwrap();
        assert_eq!(StockServer::Nbdkit.url(v4), "nbd://10.77.0.1:10809/file");
    }
}
