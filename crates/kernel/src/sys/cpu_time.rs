// UNSAFETY: the CPU times of other processes. rustix has neither their clocks nor getrusage(2).

//! The CPU times of other processes, to the resolution of the scheduler's clock. /proc has hundredths of a second.

use std::mem::MaybeUninit;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::Pid;

use super::last_errno;

/// Returns the CPU time of all threads of a process, also of those that have ended.
///
/// # Errors
/// `ESRCH`: there is no such process.
pub(crate) fn of_process(pid: Pid) -> Result<Duration, Errno> {
    let mut clock = MaybeUninit::uninit();
    // SAFETY: the function writes one clockid_t at most, to memory of that type.
    let refused = unsafe { libc::clock_getcpuclockid(pid.as_raw_pid(), clock.as_mut_ptr()) };
    if refused != 0 {
        return Err(Errno::from_raw_os_error(refused));
    }
    // SAFETY: the function has returned 0, so it has written the clock.
    let clock = unsafe { clock.assume_init() };
    let mut time = MaybeUninit::uninit();
    // SAFETY: the kernel writes one timespec at most, to memory of that type.
    if unsafe { libc::clock_gettime(clock, time.as_mut_ptr()) } != 0 {
        // A process that has ended since has no clock.
        return Err(Errno::SRCH);
    }
    // SAFETY: the call has not failed, so the kernel has written the time.
    let time = unsafe { time.assume_init() };
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let nanos = u64::try_from(time.tv_nsec).unwrap_or_default();
    Ok(Duration::from_secs(seconds) + Duration::from_nanos(nanos))
}

/// Returns the CPU time of all children of this process that have ended and were waited for, and of theirs.
///
/// # Errors
/// None on Linux: only wrong arguments are refused.
pub(crate) fn of_children() -> Result<Duration, Errno> {
    let mut usage = MaybeUninit::uninit();
    // SAFETY: the kernel writes one rusage at most, to memory of that type.
    if unsafe { libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr()) } != 0 {
        return Err(last_errno());
    }
    // SAFETY: the call has not failed, so the kernel has written the usage.
    let usage: libc::rusage = unsafe { usage.assume_init() };
    Ok(duration(usage.ru_utime) + duration(usage.ru_stime))
}

fn duration(time: libc::timeval) -> Duration {
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    let micros = u64::try_from(time.tv_usec).unwrap_or_default();
    Duration::from_secs(seconds) + Duration::from_micros(micros)
}
