// UNSAFETY: fork(2), and what runs between fork and exec. Entering a user namespace changes the process
// that does it, for good, and needs one with a single thread: a fresh child is both.

//! Runs a few system calls in a forked child: as a trial, or before a program starts.

use std::ffi::c_int;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, set_parent_process_death_signal, waitpid};

use super::namespace::IdMaps;
use super::tun;

/// What a child does between fork and exec, or instead of an exec. A closed set, because only system calls are allowed
/// there: another thread may have held the allocator's lock when the child was forked, so that an allocation (or a panic)
/// could wait for ever. What a task needs is made before the fork and is in it.
#[derive(Debug)]
pub(crate) enum Task {
    /// Enters a fresh network namespace, with a user namespace around it where that is needed.
    EnterNamespace(IdMaps),
    /// Enters a fresh user namespace with a network namespace.
    EnterUserNamespace(IdMaps),
    /// Enters as [`Task::EnterNamespace`] and makes a TAP there.
    MakeTap(IdMaps),
    /// Has the kernel end the process with SIGKILL when the thread that forked it ends.
    EndWithParent,
    /// Returns what it holds.
    #[cfg(test)]
    Return(Result<(), Errno>),
}

impl Task {
    /// Every branch makes system calls on values that exist, and nothing else: no allocation, no lock, no panic.
    fn run(&self) -> Result<(), Errno> {
        match self {
            Self::EnterNamespace(maps) => maps.enter(),
            Self::EnterUserNamespace(maps) => maps.enter_as_user(),
            Self::MakeTap(maps) => {
                maps.enter()?;
                // Opened inside: a TUN file belongs to the namespace of its opener.
                let tun = open(c"/dev/net/tun", OFlags::RDWR, Mode::empty())?;
                tun::attach_any(tun.as_fd())
            }
            Self::EndWithParent => set_parent_process_death_signal(Some(Signal::KILL)),
            #[cfg(test)]
            Self::Return(result) => *result,
        }
    }
}

/// Runs `task` in a forked child and returns what it returned. The child gets a copy of the memory and one thread; it is
/// gone when this returns.
pub(crate) fn in_child(task: &Task) -> Result<(), Errno> {
    fork_and(|| task.run())
}

/// Runs the code of a test in a forked child and returns what it returned. The child's other threads are missing: code that
/// waits for one of them, or for a lock that one had, does not end.
#[cfg(test)]
pub(crate) fn test_in_child(body: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
    fork_and(body)
}

fn fork_and(body: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
    // SAFETY: the child runs `body`, which is `Task::run` outside of tests and keeps to system calls, and then leaves by
    // _exit: it runs no exit handler and returns to no caller.
    let pid = unsafe { libc::fork() };
    match pid {
        -1 => Err(last_errno()),
        0 => {
            let code = match body() {
                Ok(()) => 0,
                Err(errno) => errno.raw_os_error(),
            };
            exit_now(code)
        }
        child => wait_for(child),
    }
}

/// Has `task` run in the child of `command` before its program starts.
pub(crate) fn before_exec(command: &mut Command, task: Task) {
    let hook = move || task.run().map_err(std::io::Error::from);
    // SAFETY: the hook runs between fork and exec and keeps to system calls (`Task::run`); an error is a bare errno, which
    // std sends to the parent without allocating.
    unsafe { command.pre_exec(hook) };
}

fn exit_now(code: c_int) -> ! {
    // SAFETY: _exit ends the process at once and touches no state of it.
    unsafe { libc::_exit(code) }
}

fn wait_for(child: libc::pid_t) -> Result<(), Errno> {
    let pid = Pid::from_raw(child).ok_or(Errno::CHILD)?;
    loop {
        match waitpid(Some(pid), WaitOptions::empty()) {
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
            Ok(None) => return Err(Errno::CHILD),
            Ok(Some((_, status))) => {
                // Every errno of Linux is below 134, so it fits the exit status.
                return match status.exit_status() {
                    Some(0) => Ok(()),
                    Some(code) => Err(Errno::from_raw_os_error(code)),
                    None => Err(Errno::INTR),
                };
            }
        }
    }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
