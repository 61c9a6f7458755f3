//! SIGINT, SIGTERM and SIGHUP end a run cleanly: the loops look here.

use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

/// The signals that end a run. A terminal that goes away is a reason to end, and to put a NIC back, unless whoever started
/// us (nohup(1)) had the hang-up ignored.
fn ending() -> impl Iterator<Item = i32> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let hang_up = (!is_ignored(SIGHUP, &status)).then_some(SIGHUP);
    [SIGINT, SIGTERM].into_iter().chain(hang_up)
}

/// Reads in /proc/PID/status (proc_pid_status(5)) whether a signal is ignored.
fn is_ignored(signal: i32, status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Whether somebody asked for the end.
#[derive(Clone, Debug)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// Takes over the signals that end a run. A second one ends the process at once.
    ///
    /// # Errors
    ///
    /// What sigaction(2) said.
    pub fn install() -> io::Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in ending() {
            // Order matters: the first of these looks at the flag before the second sets it.
            signal_hook::flag::register_conditional_default(signal, Arc::clone(&flag))?;
            signal_hook::flag::register(signal, Arc::clone(&flag))?;
        }
        Ok(Self(flag))
    }

    /// Tells whether a signal has come.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Signals for a loop that sleeps in poll(2): none that comes between a look and a sleep is slept through.
#[derive(Debug)]
pub struct Signals {
    stop: StopFlag,
    report: Arc<AtomicBool>,
    /// Readable when one of the signals has come.
    woken: UnixStream,
}

impl Signals {
    /// As [`StopFlag::install`]; and takes over SIGUSR1, which asks for a report.
    ///
    /// # Errors
    ///
    /// What sigaction(2) said, or that there is no descriptor left to give.
    pub fn install() -> io::Result<Self> {
        let stop = StopFlag::install()?;
        let report = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(SIGUSR1, Arc::clone(&report))?;
        let (woken, wake) = UnixStream::pair()?;
        woken.set_nonblocking(true)?;
        // After the flags: who is woken finds them set.
        for signal in ending().chain([SIGUSR1]) {
            signal_hook::low_level::pipe::register(signal, wake.try_clone()?)?;
        }
        Ok(Self {
            stop,
            report,
            woken,
        })
    }

    /// What to poll for reading.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.woken.as_fd()
    }

    /// Makes [`fd`](Self::fd) quiet until the next signal. To be called before the flags are looked at.
    pub fn clear(&self) {
        let mut bytes = [0; 64];
        while (&self.woken)
            .read(&mut bytes)
            .is_ok_and(|len| len == bytes.len())
        {}
    }

    /// Whether somebody asked for the end.
    pub fn stop(&self) -> &StopFlag {
        &self.stop
    }

    /// Tells whether a report was asked for since this was asked last.
    pub fn take_report(&self) -> bool {
        self.report.swap(false, Ordering::Relaxed)
    }
}

/// [`StopFlag`] for loops that sleep in poll(2): it becomes readable.
#[derive(Debug)]
pub struct StopPipe {
    reader: UnixStream,
    _flag: StopFlag,
}

impl StopPipe {
    /// Takes over the signals that end a run, as [`StopFlag::install`] does.
    ///
    /// # Errors
    ///
    /// What socketpair(2) or sigaction(2) said.
    pub fn install() -> io::Result<Self> {
        let flag = StopFlag::install()?;
        let (reader, writer) = UnixStream::pair()?;
        for signal in ending() {
            signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?;
        }
        Ok(Self {
            reader,
            _flag: flag,
        })
    }

    /// Waits until `socket` has something to read; false if a signal comes, or has come.
    ///
    /// # Errors
    ///
    /// What poll(2) said.
    pub fn wait_readable(&self, socket: BorrowedFd<'_>) -> io::Result<bool> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hang_up_that_nohup_has_ignored_stays_ignored() {
        let status = |mask: &str| format!("Name:\tx\nSigBlk:\t0000000000000001\nSigIgn:\t{mask}\n");
        assert!(is_ignored(SIGHUP, &status("0000000000001001")));
        assert!(!is_ignored(SIGHUP, &status("0000000000001000")));
        assert!(is_ignored(SIGTERM, &status("0000000000004000")));
        assert!(!is_ignored(SIGHUP, ""));
    }
}
