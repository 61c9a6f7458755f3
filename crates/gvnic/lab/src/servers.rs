//! Processes that serve devices to QEMU over a UNIX socket: NICs and shared folders.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use devmem_linux::helper::Helper;

use tool::output::Failure;

/// Maximum time until a server has created its socket.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Maximum time until the servers end after a signal; after it they are killed.
const STOP_LIMIT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A running server.
#[derive(Debug)]
struct Server {
    /// What it serves, for error messages.
    what: String,
    child: Helper,
    /// File with its output on stderr.
    log: PathBuf,
}

impl Server {
    /// Returns a message with its output if it has ended.
    fn ended(&mut self) -> Option<String> {
        let status = self.child.ended().ok().flatten()?;
        let said = std::fs::read(&self.log).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        Some(format!("{} ended ({status}): {}", self.what, said.trim()))
    }
}

/// The running servers of a guest.
#[derive(Debug, Default)]
pub struct Servers(Vec<Server>);

impl Servers {
    /// Starts a server and waits until it has created `socket`. Its output on stderr is written to a file next to the socket.
    ///
    /// # Errors
    ///
    /// The program cannot be started, ended, or did not create its socket in time; the error has its output.
    pub fn start(
        &mut self,
        what: String,
        command: &mut Command,
        socket: &Path,
    ) -> Result<(), Failure> {
        let log = socket.with_extension("log");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log)?);
        let child = Helper::start(command).with_context(|| format!("start {what}"))?;
        let mut server = Server { what, child, log };
        let start = Instant::now();
        while !socket.exists() {
            if let Some(said) = server.ended() {
                return Err(Failure::failed(said));
            }
            if start.elapsed() > START_LIMIT {
                let (what, socket) = (&server.what, socket.display());
                return Err(Failure::failed(format!("{what} did not create {socket}")));
            }
            thread::sleep(POLL_INTERVAL);
        }
        self.0.push(server);
        Ok(())
    }

    /// Returns a message if a server has ended.
    pub fn ended(&mut self) -> Option<String> {
        self.0.iter_mut().find_map(Server::ended)
    }

    /// Ends the servers: by a signal, and by force after a time.
    pub fn stop(&mut self) {
        for server in &self.0 {
            server.child.terminate();
        }
        let start = Instant::now();
        for server in &mut self.0 {
            // A server that has not ended by then is killed on drop.
            let _ended = server
                .child
                .wait_at_most(STOP_LIMIT.saturating_sub(start.elapsed()));
        }
        self.0.clear();
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(servers: &mut Servers, script: &str, socket: &Path) -> Result<(), Failure> {
        let mut command = Command::new("sh");
        command.args(["-c", script]).arg(socket);
        servers.start("the server of x".to_owned(), &mut command, socket)
    }

    #[test]
    fn a_server_that_ends_without_a_socket_is_an_error_with_its_output() {
        let scratch = tempfile::tempdir().unwrap();
        let mut servers = Servers::default();
        let script = "echo 'no such folder' >&2; exit 3";
        let ended = start(&mut servers, script, &scratch.path().join("socket"));
        assert_eq!(
            ended.unwrap_err().to_string(),
            "the server of x ended (exit status: 3): no such folder"
        );
        assert_eq!(
            servers.ended(),
            None,
            "it is not one of the running servers"
        );
    }

    #[test]
    fn a_started_server_has_created_its_socket_and_is_missed_when_it_ends() {
        let scratch = tempfile::tempdir().unwrap();
        let mut servers = Servers::default();
        let sockets = ["a", "b"].map(|name| scratch.path().join(name));
        start(&mut servers, "touch \"$0\"; exec sleep 60", &sockets[0]).unwrap();
        assert!(sockets[0].exists());
        assert_eq!(servers.ended(), None);
        let script = "touch \"$0\"; echo 'lost the client' >&2";
        start(&mut servers, script, &sockets[1]).unwrap();
        let said = loop {
            match servers.ended() {
                Some(said) => break said,
                None => thread::sleep(POLL_INTERVAL),
            }
        };
        assert!(
            said.ends_with("(exit status: 0): lost the client"),
            "{said}"
        );
    }
}
