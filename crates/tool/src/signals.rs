//! SIGINT, SIGTERM and SIGHUP end a run cleanly: loops check the flags of this module.
//!
//! One rule for all commands that transfer: a signal ends the run, the report of what was done until then is printed, and the
//! exit status is 1, with the error `interrupted`, if anything was left to do ([`Failure::interrupted`]). A service without an end
//! of its own, such as a receiver that keeps listening while no connection is open, has left nothing to do: 0.

use std::fs;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::{process, thread};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use signal_hook::SigId;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

use crate::output::{Exit, Failure, program};

/// Returns the signals that end a run. SIGHUP is one of them, so that NIC settings are restored when the terminal closes,
/// unless it was ignored when the process started (nohup(1)).
fn ending() -> impl Iterator<Item = i32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let hang_up = (!is_ignored(SIGHUP, &status)).then_some(SIGHUP);
    [SIGINT, SIGTERM].into_iter().chain(hang_up)
}

/// Returns whether a signal is ignored, by the text of /proc/PID/status (proc_pid_status(5)).
fn is_ignored(signal: i32, status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Flag that ends the run, set by a signal.
#[derive(Clone, Debug)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// Installs handlers for the signals that end a run. A second signal ends the process at once.
    ///
    /// # Errors
    ///
    /// sigaction(2) failed.
    pub fn install() -> io::Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in ending() {
            // The order matters: the first handler must check the flag before the second one sets it.
            signal_hook::flag::register_conditional_default(signal, Arc::clone(&flag))?;
            signal_hook::flag::register(signal, Arc::clone(&flag))?;
        }
        Ok(Self(flag))
    }

    /// Ends the run as a signal does.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns whether the run is to end.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns the result of `wait`, which does not look at this flag. If a signal arrives meanwhile, the process ends at once with
    /// [`Failure::interrupted`]: for waits before anything is to be restored or reported.
    ///
    /// # Errors
    ///
    /// socketpair(2), sigaction(2) or the start of a thread failed.
    pub fn or_exit<T>(&self, wait: impl FnOnce() -> T) -> io::Result<T> {
        let watched = SignalPipe::open()?;
        let (done, is_done) = UnixStream::pair()?;
        thread::scope(|scope| {
            let watch = move || {
                if matches!(watched.wait_readable(is_done.as_fd()), Ok(false)) {
                    exit_now(&Failure::interrupted());
                }
            };
            thread::Builder::new()
                .name("signals".into())
                .spawn_scoped(scope, watch)?;
            // A signal from before the pipe.
            if self.is_set() {
                exit_now(&Failure::interrupted());
            }
            let result = wait();
            // Also after a panic of `wait`.
            drop(done);
            Ok(result)
        })
    }

    /// As [`is_set`](Self::is_set), for functions that take a check whether to cancel.
    pub fn control_flow(&self) -> ControlFlow<()> {
        match self.is_set() {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

/// Signals for a loop that sleeps in poll(2): a signal between the check and the sleep ends the sleep.
#[derive(Debug)]
pub struct Signals {
    stop: StopFlag,
    report: Arc<AtomicBool>,
    /// Readable after one of the signals.
    woken: UnixStream,
}

impl Signals {
    /// Installs the handlers of [`StopFlag::install`], and one for SIGUSR1, which requests a report.
    ///
    /// # Errors
    ///
    /// sigaction(2) failed, or no file descriptor is left.
    pub fn install() -> io::Result<Self> {
        let stop = StopFlag::install()?;
        let report = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(SIGUSR1, Arc::clone(&report))?;
        let (woken, wake) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        // Registered after the flags, so that they are set before the loop wakes.
        for signal in ending().chain([SIGUSR1]) {
            signal_hook::low_level::pipe::register(signal, wake.try_clone()?)?;
        }
        Ok(Self {
            stop,
            report,
            woken,
        })
    }

    /// Returns the file descriptor to poll for reading.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.woken.as_fd()
    }

    /// Drains [`fd`](Self::fd), so that it is not readable until the next signal. Call it before checking the flags.
    pub fn clear(&self) {
        let mut bytes = [0; 64];
        while (&self.woken)
            .read(&mut bytes)
            .is_ok_and(|len| len == bytes.len())
        {}
    }

    /// Returns the flag that ends the run.
    pub fn stop(&self) -> &StopFlag {
        &self.stop
    }

    /// Returns whether a report was requested since the last call.
    pub fn take_report(&self) -> bool {
        self.report.swap(false, Ordering::Relaxed)
    }
}

/// A pipe that becomes readable on the first signal.
#[derive(Debug)]
struct SignalPipe {
    reader: UnixStream,
    handlers: Vec<SigId>,
}

impl SignalPipe {
    fn open() -> io::Result<Self> {
        let (reader, writer) = UnixStream::pair()?;
        let mut pipe = Self {
            reader,
            handlers: Vec::new(),
        };
        for signal in ending() {
            let writer = writer.try_clone()?;
            pipe.handlers
                .push(signal_hook::low_level::pipe::register(signal, writer)?);
        }
        Ok(pipe)
    }

    /// Waits until `socket` is readable; returns false after a signal, now or earlier.
    fn wait_readable(&self, socket: BorrowedFd<'_>) -> io::Result<bool> {
        loop {
            let mut fds = [
                PollFd::from_borrowed_fd(self.reader.as_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(socket, PollFlags::IN),
            ];
            match poll(&mut fds, None) {
                Err(Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
                Ok(_) if !fds[0].revents().is_empty() => return Ok(false),
                Ok(_) => return Ok(true),
            }
        }
    }
}

impl Drop for SignalPipe {
    fn drop(&mut self) {
        for handler in self.handlers.drain(..) {
            signal_hook::low_level::unregister(handler);
        }
    }
}

/// [`StopFlag`] for loops that sleep in poll(2): a pipe that becomes readable.
#[derive(Debug)]
pub struct StopPipe {
    pipe: SignalPipe,
    _flag: StopFlag,
}

impl StopPipe {
    /// Installs handlers for the signals that end a run, as [`StopFlag::install`] does.
    ///
    /// # Errors
    ///
    /// socketpair(2) or sigaction(2) failed.
    pub fn install() -> io::Result<Self> {
        let flag = StopFlag::install()?;
        Ok(Self {
            pipe: SignalPipe::open()?,
            _flag: flag,
        })
    }

    /// Waits until `socket` is readable; returns false after a signal, now or earlier.
    ///
    /// # Errors
    ///
    /// poll(2) failed.
    pub fn wait_readable(&self, socket: BorrowedFd<'_>) -> io::Result<bool> {
        self.pipe.wait_readable(socket)
    }
}

/// Ends the process with `failure`, from any thread.
fn exit_now(failure: &Failure) -> ! {
    failure.report(program());
    process::exit(Exit::Failed.code().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sighup_stays_ignored_under_nohup() {
        let status = |mask: &str| format!("Name:\tx\nSigBlk:\t0000000000000001\nSigIgn:\t{mask}\n");
        assert!(is_ignored(SIGHUP, &status("0000000000001001")));
        assert!(!is_ignored(SIGHUP, &status("0000000000001000")));
        assert!(is_ignored(SIGTERM, &status("0000000000004000")));
        assert!(!is_ignored(SIGHUP, ""));
    }
}
