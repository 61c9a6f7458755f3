//! Helper processes: child processes that never outlive the process that started them.

use std::io;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, ExitStatus, Output};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::sys::child::{Task, before_exec};

/// Polling interval while waiting for a process to end.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A helper process. It is killed when this is dropped, and by the kernel when the thread that started it ends in any way
/// (`PR_SET_PDEATHSIG`): start it from a thread that lives as long as the helper is needed.
#[derive(Debug)]
pub struct Helper(Child);

impl Helper {
    /// Returns the command that runs this program again: the running executable, even if its path was replaced since.
    pub fn this_program() -> Command {
        Command::new("/proc/self/exe")
    }

    /// Starts a helper. The pre-exec actions of `command`, such as entering namespaces, run first, because a change of
    /// credentials would clear the death signal (prctl(2)).
    ///
    /// # Errors
    ///
    /// As [`Command::spawn`].
    pub fn start(command: &mut Command) -> io::Result<Self> {
        before_exec(command, Task::EndWithParent);
        command.spawn().map(Self)
    }

    /// Returns the id of the process.
    pub fn id(&self) -> u32 {
        self.0.id()
    }

    /// Takes the pipe to its standard input, if the command asked for one.
    pub fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.0.stdin.take()
    }

    /// Takes the pipe from its standard output, if the command asked for one.
    pub fn take_stdout(&mut self) -> Option<ChildStdout> {
        self.0.stdout.take()
    }

    /// Takes the pipe from its standard error, if the command asked for one.
    pub fn take_stderr(&mut self) -> Option<ChildStderr> {
        self.0.stderr.take()
    }

    /// Returns its exit status, if it has ended.
    ///
    /// # Errors
    ///
    /// As [`Child::try_wait`].
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        self.0.try_wait()
    }

    /// Waits until it ends.
    ///
    /// # Errors
    ///
    /// As [`Child::wait`].
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        self.0.wait()
    }

    /// Waits until it ends, at most `limit`; `None` if it is still running.
    ///
    /// # Errors
    ///
    /// As [`Child::try_wait`].
    pub fn wait_at_most(&mut self, limit: Duration) -> io::Result<Option<ExitStatus>> {
        let start = Instant::now();
        loop {
            match self.0.try_wait()? {
                None if start.elapsed() < limit => thread::sleep(POLL_INTERVAL),
                ended => return Ok(ended),
            }
        }
    }

    /// Waits until it ends and returns its output from the pipes.
    ///
    /// # Errors
    ///
    /// As [`Child::wait_with_output`].
    pub fn wait_with_output(mut self) -> io::Result<Output> {
        // Both pipes are drained at the same time, because a full one would block the process.
        let (stdout, stderr) = (self.0.stdout.take(), self.0.stderr.take());
        let drain = |pipe: Option<ChildStderr>| {
            let mut bytes = Vec::new();
            pipe.map_or(Ok(0), |mut pipe| {
                io::Read::read_to_end(&mut pipe, &mut bytes)
            })?;
            Ok::<_, io::Error>(bytes)
        };
        let errors = thread::spawn(move || drain(stderr));
        let mut output = Vec::new();
        stdout.map_or(Ok(0), |mut pipe| {
            io::Read::read_to_end(&mut pipe, &mut output)
        })?;
        let died = |_| io::Error::other("the thread that read the errors panicked");
        Ok(Output {
            stderr: errors.join().map_err(died)??,
            stdout: output,
            status: self.0.wait()?,
        })
    }

    /// Sends it SIGTERM.
    pub fn terminate(&self) {
        let pid = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw);
        // A process that has ended was not waited for yet, so its id is not reused.
        let _gone = pid.map(|pid| kill_process(pid, Signal::TERM));
    }

    /// Asks it to end (SIGTERM), so that it can remove its temporary files, and kills it if it has not ended after `limit`.
    pub fn end_within(&mut self, limit: Duration) {
        self.terminate();
        if !matches!(self.wait_at_most(limit), Ok(Some(_))) {
            self.kill();
        }
    }

    /// Kills it (SIGKILL).
    pub fn kill(&mut self) {
        // Errors mean that it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::Stdio;

    use super::*;

    fn sleeper() -> Command {
        let mut command = Command::new("sleep");
        command.arg("600").stdout(Stdio::piped());
        command
    }

    /// Waits until the other end of the pipe is closed.
    fn is_closed(mut pipe: ChildStdout) -> bool {
        pipe.read(&mut [0]).expect("a pipe can be read") == 0
    }

    #[test]
    fn a_helper_ends_with_the_thread_that_started_it() {
        let started = || Helper::start(&mut sleeper()).expect("sleep is there");
        let mut helper = thread::spawn(started)
            .join()
            .expect("the thread does not panic");
        assert!(is_closed(helper.take_stdout().expect("it was piped")));
        assert!(!helper.wait().expect("it is ours").success());
    }

    #[test]
    fn a_dropped_helper_is_killed() {
        let mut helper = Helper::start(&mut sleeper()).expect("sleep is there");
        let pipe = helper.take_stdout().expect("it was piped");
        drop(helper);
        assert!(is_closed(pipe));
    }

    #[test]
    fn a_helper_that_still_runs_can_be_waited_for_some_time_and_asked_to_end() {
        let mut helper = Helper::start(&mut sleeper()).expect("sleep is there");
        assert_eq!(
            helper.wait_at_most(POLL_INTERVAL).expect("it is ours"),
            None
        );
        helper.terminate();
        assert!(!helper.wait().expect("it is ours").success());
    }

    #[test]
    fn a_helper_that_is_asked_to_end_does_its_last_work_and_one_that_refuses_is_killed() {
        for (script, last) in [
            (
                "trap 'echo last; exit' TERM; echo ready; while :; do sleep 0.01; done",
                "ready\nlast\n",
            ),
            (
                "trap '' TERM; echo ready; while :; do sleep 0.01; done",
                "ready\n",
            ),
        ] {
            let mut command = Command::new("sh");
            command.args(["-c", script]).stdout(Stdio::piped());
            let mut helper = Helper::start(&mut command).expect("sh is there");
            let mut pipe = helper.take_stdout().expect("it was piped");
            let mut said = [0; 6];
            pipe.read_exact(&mut said)
                .expect("it says that it is ready");
            let limit = match last.contains("last") {
                true => Duration::from_secs(60),
                false => Duration::ZERO,
            };
            helper.end_within(limit);
            let mut all = String::from_utf8(said.to_vec()).expect("ASCII");
            pipe.read_to_string(&mut all).expect("a pipe can be read");
            assert_eq!(all, last);
        }
    }

    #[test]
    fn the_output_of_a_helper_on_both_pipes_is_returned_at_its_end() {
        let mut command = Command::new("sh");
        command.args(["-c", "head -c 200000 /dev/zero >&2; echo out; exit 3"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let helper = Helper::start(&mut command).expect("sh is there");
        let output = helper.wait_with_output().expect("it is ours");
        assert_eq!(output.stdout, b"out\n");
        assert_eq!(output.stderr.len(), 200_000);
        assert_eq!(output.status.code(), Some(3));
    }
}
