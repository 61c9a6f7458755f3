//! Processes of stock servers.

use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use devmem_linux::helper::Helper;
use devmem_linux::test_util::skip;

/// Far longer than a server needs to start.
const START_LIMIT: Duration = Duration::from_secs(30);

/// Longer than a server needs to end.
const END_LIMIT: Duration = Duration::from_secs(5);

/// A server process, asked to end at the end (SIGTERM), so that nbdkit removes its folder in /tmp, and killed if it does not.
pub struct Server(Helper);

impl Server {
    /// Kills it (SIGKILL).
    pub fn kill(mut self) {
        self.0.kill();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.0.end_within(END_LIMIT);
    }
}

/// Starts a server in the foreground and waits until it listens on `port`.
#[track_caller]
pub fn start(command: &mut Command, port: u16) -> Server {
    let command = command.stdin(Stdio::null()).stdout(Stdio::null());
    until_free(port);
    let server = Server(Helper::start(command).expect("it was found before"));
    until_listening(port);
    server
}

/// Waits until nobody listens on `port`: a child of the server before, between fork(2) and exec(2) when that was killed, still
/// has its sockets.
fn until_free(port: u16) {
    let start = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_ok() {
        assert!(start.elapsed() < START_LIMIT, "a server stays on {port}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until a server listens on `port`.
#[track_caller]
pub fn until_listening(port: u16) {
    let start = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(start.elapsed() < START_LIMIT, "no server listens on {port}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Returns whether a program is here; if not, prints that the test is skipped.
pub fn has(test: &str, program: &str, argument: &str) -> bool {
    let mut command = Command::new(program);
    let found = command
        .arg(argument)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    let is_here = found.is_ok_and(|status| status.success());
    if !is_here {
        skip(test, program, &format!("there is no {program} here"));
    }
    is_here
}
