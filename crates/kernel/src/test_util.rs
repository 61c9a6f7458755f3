//! Network namespaces for tests: each test that needs a TAP runs in a separate namespace.
//!
//! A test binary has several threads, but only a process with one thread can enter a user namespace. So the test binary
//! starts itself again in the namespace, to run only this test.

use std::env;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

use crate::netif::Interface;
use crate::{netns, probe};

mod guest;

pub use guest::{GuestHas, skip_outside_guest};

/// Environment variable of the inner run: the name of the test that runs in the namespace.
const INNER: &str = "DEVMEM_TEST_IN_NETNS";
/// Environment variable: a comma-separated list of requirements for which no test may be skipped: `tun`, `nic`, `kernel`, `udmabuf`, `cuda`.
const REQUIRE: &str = "DEVMEM_REQUIRE";
/// Environment variable that makes some tests move gigabytes.
const SLOW: &str = "DEVMEM_SLOW";
/// Environment variable of a process that is to be killed.
const VICTIM: &str = "DEVMEM_TEST_VICTIM";
/// Time limit of a test, for a slow and shared machine.
const LIMIT: Duration = Duration::from_secs(180);
/// The same with [`SLOW`].
const SLOW_LIMIT: Duration = Duration::from_secs(3600);

/// Runs `body` in a new network namespace, in which it may create TAPs. `test` is the path of the calling
/// test as `cargo test` prints it. If that is not possible, prints `SKIP` with the reason, or fails if
/// `DEVMEM_REQUIRE` contains `tun`.
///
/// # Panics
///
/// If the test in the namespace fails, does not exist under that name, or exceeds its time limit.
pub fn in_netns(test: &str, body: impl FnOnce()) {
    if env::var(INNER).is_ok_and(|inner| inner == test) {
        let lo = Interface::by_name("lo").and_then(|mut lo| lo.set_up());
        lo.expect("a new namespace has lo");
        return body();
    }
    if let Some(reason) = probe::tap_in_namespace().reason() {
        return skip(test, "tun", reason);
    }
    let mut command = Command::new(env::current_exe().expect("the test binary has a path"));
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
    // In a separate process group, so that its child processes can be killed with it.
    command
        .env(INNER, test)
        .stdout(Stdio::piped())
        .process_group(0);
    netns::start_in_new(&mut command);
    let mut child = command.spawn().expect("the probe succeeded");
    let mut pipe = child.stdout.take().expect("it was piped");
    let reader = thread::spawn(move || {
        let mut stdout = Vec::new();
        pipe.read_to_end(&mut stdout).expect("a pipe can be read");
        String::from_utf8_lossy(&stdout).into_owned()
    });
    let limit = match env::var_os(SLOW) {
        Some(_) => SLOW_LIMIT,
        None => LIMIT,
    };
    let status = wait_or_kill(&mut child, limit);
    let stdout = reader.join().expect("the reader does not panic");
    assert!(
        status.is_some(),
        "{test} took longer than {limit:?}; it printed:\n{stdout}"
    );
    assert!(
        status.is_some_and(|s| s.success()),
        "{test} failed in its namespace:\n{stdout}"
    );
    assert!(
        stdout.contains("1 passed"),
        "there is no test {test} in this binary:\n{stdout}"
    );
}

/// Prints that `test` is skipped, with the reason.
///
/// # Panics
///
/// If `DEVMEM_REQUIRE` contains `what`.
pub fn skip(test: &str, what: &str, reason: &str) {
    let required = env::var(REQUIRE).is_ok_and(|list| list.split(',').any(|r| r.trim() == what));
    assert!(
        !required,
        "{test} needs {what}, which {REQUIRE} demands: {reason}"
    );
    // Not eprintln!, because the test harness captures its output and discards it if the test passes.
    writeln!(io::stderr(), "SKIP {test}: {reason}").expect("stderr is open");
}

/// Returns whether this process is the one that [`kill_victim`] started.
pub fn is_victim() -> bool {
    env::var_os(VICTIM).is_some()
}

/// Prints `word`, and waits to be killed.
pub fn wait_to_be_killed(word: &str) {
    println!("{word}");
    // Ends also when the parent has ended.
    let _ = io::stdin().read(&mut [0]);
}

/// Starts this program again in the calling thread's network namespace, for `test` alone, and kills it when it prints `word`.
///
/// # Panics
///
/// If it cannot be started, or never prints the word.
pub fn kill_victim(test: &str, word: &str) {
    let mut victim = Command::new(env::current_exe().expect("the test binary has a path"))
        .args([test, "--exact", "--nocapture"])
        .env(VICTIM, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program can be started");
    let lines = BufReader::new(victim.stdout.take().expect("it was piped")).lines();
    let mut lines = lines.map_while(Result::ok);
    assert!(lines.any(|line| line.contains(word)), "never {word}");
    victim.kill().expect("it is ours");
    victim.wait().expect("it is ours");
}

/// Waits for `child`, and kills it and its process group if it has not ended after `limit`.
///
/// # Panics
///
/// If the child cannot be waited for.
pub fn wait_or_kill(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.expect("a child has an id");
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).expect("the child is ours");
    let limit = Timespec::try_from(limit).expect("a limit is short");
    let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
    if poll(&mut fds, Some(&limit)).expect("poll works") == 0 {
        // There is no such group unless the child was started as the leader of one.
        let _ = kill_process_group(pid, Signal::KILL);
        child.kill().expect("the child is ours");
        child.wait().expect("the child is ours");
        return None;
    }
    Some(child.wait().expect("the child is ours"))
}

/// Returns the path of a shared object of the workspace, which cargo put beside the calling test or one folder up.
///
/// # Panics
/// If it is not there.
pub fn built_library(name: &str) -> std::path::PathBuf {
    let test = std::env::current_exe().expect("this program has a path");
    let places = test.ancestors().skip(1).take(2);
    let mut places = places.map(|folder| folder.join(name));
    let found = places.find(|place| place.exists());
    found.expect("cargo builds the library before the test")
}
