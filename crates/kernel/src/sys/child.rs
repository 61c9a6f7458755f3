// UNSAFETY: fork(2), and code that runs between fork and exec. Entering a user namespace changes the whole process
// permanently, and requires a process with a single thread, so it is done in a new child.

//! Runs a few system calls in a forked child: to probe the machine, or before a program starts.

use std::ffi::c_int;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, set_parent_process_death_signal, waitpid};

use super::namespace::IdMaps;
use super::tun;

/// A task of a child between fork and exec, or instead of an exec. The set is closed, because only system calls are allowed
/// there: another thread may have held the allocator's lock at the fork, so that an allocation (or a panic) could block
/// for ever. A task contains all data that it needs, created before the fork.
#[derive(Debug)]
pub(crate) enum Task {
    /// Enters a new network namespace, inside a new user namespace if needed.
    EnterNamespace(IdMaps),
    /// Enters a new user namespace and a new network namespace.
    EnterUserNamespace(IdMaps),
    /// Does [`Task::EnterNamespace`] and creates a TAP there.
    MakeTap(IdMaps),
    /// Makes the kernel send SIGKILL to the process when the thread that forked it ends.
    EndWithParent,
    /// Returns the value in it.
    #[cfg(test)]
    Return(Result<(), Errno>),
}

impl Task {
    /// Runs the task. Every branch makes only system calls on existing values: no allocation, no lock, no panic.
    fn run(&self) -> Result<(), Errno> {
        match self {
            Self::EnterNamespace(maps) => maps.enter(),
            Self::EnterUserNamespace(maps) => maps.enter_as_user(),
            Self::MakeTap(maps) => {
                maps.enter()?;
                // Opened after entering, because a TUN file belongs to the namespace of its opener.
                let tun = open(c"/dev/net/tun", OFlags::RDWR, Mode::empty())?;
                tun::attach_any(tun.as_fd())
            }
            Self::EndWithParent => set_parent_process_death_signal(Some(Signal::KILL)),
            #[cfg(test)]
            Self::Return(result) => *result,
        }
    }
}

/// Runs `task` in a forked child and returns its result. The child has a copy of the memory and one thread; it has ended
/// when this returns.
pub(crate) fn in_child(task: &Task) -> Result<(), Errno> {
    fork_and(|| task.run())
}

/// Runs the code of a test in a forked child and returns its result. The child has no other threads: code that waits for
/// one of them, or for a lock that one of them held, does not end.
#[cfg(test)]
pub(crate) fn test_in_child(body: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
    fork_and(body)
}

fn fork_and(body: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
    // SAFETY: the child runs `body`, which outside of tests is `Task::run` and makes only system calls. Then it calls _exit:
    // it runs no exit handlers and does not return to the caller.
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

/// Makes the child of `command` run `task` before its program starts.
pub(crate) fn before_exec(command: &mut Command, task: Task) {
    let hook = move || task.run().map_err(std::io::Error::from);
    // SAFETY: the hook runs between fork and exec and makes only system calls (`Task::run`); an error is an errno, which std
    // sends to the parent without an allocation.
    unsafe { command.pre_exec(hook) };
}

fn exit_now(code: c_int) -> ! {
    // SAFETY: _exit ends the process at once and accesses none of its memory.
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
                // Every errno of Linux is below 134, so it fits in the exit status.
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
