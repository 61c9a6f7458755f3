// UNSAFETY: fork(2), and what runs between fork and exec. Entering a user namespace changes the process
// that does it, for good, and needs one with a single thread: a fresh child is both.

//! Runs a few system calls in a forked child: as a trial, or before a program starts.

use std::ffi::c_int;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, waitpid};

/// Runs `body` in a forked child and returns what it returned. The child gets a copy of the memory
/// and one thread; it is gone when this returns.
///
/// `body` may only make system calls: another thread may have held the allocator's lock when the
/// child was forked, so an allocation (or a panic) there could wait for ever. Everything it needs is
/// made before the call.
pub(crate) fn in_child(body: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
    // SAFETY: the child runs `body`, which keeps to system calls (see above; the callers in
    // probe.rs are written so), and then leaves by _exit: it runs no destructor or exit handler.
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

/// Has `body` run in the child of `command` before its program starts. The rule of [`in_child`] holds
/// for it too.
pub(crate) fn before_exec(
    command: &mut Command,
    body: impl Fn() -> Result<(), Errno> + Send + Sync + 'static,
) {
    let hook = move || body().map_err(std::io::Error::from);
    // SAFETY: the hook runs between fork and exec and makes system calls only (its caller in netns.rs
    // is written so); an error is a bare errno, which std sends to the parent without allocating.
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
