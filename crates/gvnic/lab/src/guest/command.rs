//! The command of a job: started from the search path, its output sent to the host, or on the console for an interactive shell.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;

use anyhow::Context as _;

use super::control::Control;
use crate::frame::{self, FrameKind};
use crate::job::Job;

/// Search path for programs.
const PATH: &str = "/usr/local/bin:/bin:/sbin:/usr/bin:/usr/sbin:/lab/busybox";
/// Exit code of a command that could not be started, as in a shell.
const NOT_STARTED: i32 = 127;
/// Exit code of a command that a signal ended, minus the number of the signal, as in a shell.
const SIGNALLED: i32 = 128;

/// Runs the command, forwards its output, and returns its exit code.
///
/// # Errors
///
/// The job has no command, or the host is gone.
pub fn run(control: &Control, job: &Job) -> anyhow::Result<i32> {
    let (program, arguments) = job.command.split_first().context("there is no command")?;
    let mut command = Command::new(program);
    command.args(arguments).current_dir("/root").env_clear();
    command
        .env("PATH", PATH)
        .env("HOME", "/root")
        .env("TERM", "linux")
        .env("DEVMEM_LAB", "1")
        .env("ENV", "/etc/shrc");
    command.envs(job.env.iter().map(|(name, value)| (name, value)));
    if job.interactive {
        return shell(command);
    }
    let stdin = || match job.stdin {
        true => Stdio::piped(),
        false => Stdio::null(),
    };
    command
        .stdin(stdin())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = match spawn(&mut command, stdin()) {
        Ok(child) => child,
        Err(error) => {
            control.say(
                FrameKind::Stderr,
                format!("devmem-tcp: {program}: {error}\n").as_bytes(),
            )?;
            return Ok(NOT_STARTED);
        }
    };
    if let Some(stdin) = child.stdin.take() {
        let from = control.reader().context("clone the control port")?;
        // The thread may wait for the host for ever; it ends with the guest.
        thread::spawn(move || frame::take_in(from, stdin));
    }
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    thread::scope(|scope| {
        scope.spawn(|| control.pass_on(FrameKind::Stdout, stdout));
        scope.spawn(|| control.pass_on(FrameKind::Stderr, stderr));
        child.wait()
    })
    .map(code)
    .context("wait for the command")
}

/// Starts a command from the search path; std would use the PATH of this process, which process 1 does not have.
fn spawn(command: &mut Command, stdin: Stdio) -> io::Result<Child> {
    let name = command.get_program().to_owned();
    if Path::new(&name).components().count() > 1 {
        return command.spawn();
    }
    let places = PATH.split(':').map(|folder| Path::new(folder).join(&name));
    let found = places.into_iter().find(|path| path.exists());
    let found = found
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "no such command in the guest"))?;
    let mut at_place = Command::new(found);
    at_place
        .args(command.get_args())
        .current_dir("/root")
        .env_clear();
    let set = command
        .get_envs()
        .filter_map(|(name, value)| Some((name, value?)));
    at_place.envs(set);
    at_place
        .stdin(stdin)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    at_place.spawn()
}

/// Runs an interactive shell on the virtio console, in a new session, so that Ctrl-C works.
fn shell(command: Command) -> anyhow::Result<i32> {
    let device = "/dev/hvc0";
    let open = || -> anyhow::Result<OwnedFd> {
        Ok(File::options().read(true).write(true).open(device)?.into())
    };
    let mut session = Command::new("/lab/busybox/setsid");
    session
        .arg("-c")
        .arg(command.get_program())
        .args(command.get_args());
    session.current_dir("/root").env_clear().envs(
        command
            .get_envs()
            .filter_map(|(name, value)| Some((name, value?))),
    );
    session.stdin(open()?).stdout(open()?).stderr(open()?);
    Ok(code(session.status().context("start the shell")?))
}

/// Returns the exit code of a command as a shell reports it.
pub fn code(status: ExitStatus) -> i32 {
    status
        .code()
        .or(status.signal().map(|signal| SIGNALLED + signal))
        .unwrap_or(NOT_STARTED)
}
