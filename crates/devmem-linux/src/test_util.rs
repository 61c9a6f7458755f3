//! Network namespaces for tests: each test that needs a TAP gets a network of its own.
//!
//! A test binary has threads, and a user namespace needs a process with one; so the test runs itself
//! once more, alone and single-threaded, and enters the namespace there.

use std::env;
use std::io::{self, Write};
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::{netns, probe};

/// Set for the inner run: the name of the test that may enter a namespace.
const INNER: &str = "DEVMEM_TEST_IN_NETNS";
/// A comma-separated list of what must not be skipped: `tun`, `kernel`, `gpu`.
const REQUIRE: &str = "DEVMEM_REQUIRE";
/// No test of ours runs longer, even on a slow and shared machine.
const LIMIT: Duration = Duration::from_secs(180);

/// Runs `body` in a fresh network namespace, in which it may make TAPs. `test` is the path of the calling
/// test as `cargo test` prints it. Where that is not possible prints `SKIP` with the reason, or fails if
/// `DEVMEM_REQUIRE` names `tun`.
///
/// # Panics
///
/// If the test in the namespace fails, does not exist under that name, or takes longer than it may.
pub fn in_netns(test: &str, body: impl FnOnce()) {
    if env::var(INNER).is_ok_and(|inner| inner == test) {
        netns::enter_new().expect("the outer run found that this works");
        return body();
    }
    if let Some(reason) = probe::tap_in_namespace().reason() {
        return skip(test, "tun", reason);
    }
    let mut child = Command::new(env::current_exe().expect("the test binary has a path"))
        .args([test, "--exact", "--nocapture", "--test-threads=1"])
        .env(INNER, test)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("the test binary runs again");
    let status = wait_or_kill(&mut child, LIMIT);
    let mut stdout = String::new();
    if let Some(mut pipe) = child.stdout.take() {
        io::Read::read_to_string(&mut pipe, &mut stdout).expect("the test prints text");
    }
    assert!(
        status.is_some(),
        "{test} took longer than {LIMIT:?}; it printed:\n{stdout}"
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

/// Says that `test` is skipped and why, unless `DEVMEM_REQUIRE` names `what`.
///
/// # Panics
///
/// If it does.
pub fn skip(test: &str, what: &str, reason: &str) {
    let required = env::var(REQUIRE).is_ok_and(|list| list.split(',').any(|r| r.trim() == what));
    assert!(
        !required,
        "{test} needs {what}, which {REQUIRE} demands: {reason}"
    );
    // Not eprintln!: its output is captured and thrown away when a test passes.
    writeln!(io::stderr(), "SKIP {test}: {reason}").expect("stderr is open");
}

/// Waits for `child`, and kills it when it has not ended after `limit`.
///
/// # Panics
///
/// If the child cannot be waited for.
pub fn wait_or_kill(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let pid = i32::try_from(child.id())
        .ok()
        .and_then(Pid::from_raw)
        .expect("a child has an id");
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).expect("the child is ours");
    let limit = Timespec::try_from(limit).expect("a limit is short");
    let ended = poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&limit)).expect("poll works");
    if ended == 0 {
        child.kill().expect("the child is ours");
        child.wait().expect("the child is ours");
        return None;
    }
    Some(child.wait().expect("the child is ours"))
}
