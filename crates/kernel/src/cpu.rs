//! Pins threads to processors, ranks them and makes their timers exact, reads CPU time, and chooses the congestion control of a kernel socket.

use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, setpriority_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity, set_current_timer_slack};
use rustix::time::{ClockId, Timespec, clock_gettime};

use crate::sys::cpu_time;

/// Returns the processors that the calling thread may run on.
pub fn allowed_cpus() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    (0..CpuSet::MAX_CPU)
        .filter(|&cpu| set.is_set(cpu))
        .collect()
}

/// Pins the calling thread to the processor `cpu`.
///
/// # Errors
///
/// `EINVAL` if the thread may not run on it.
pub fn pin_current_thread(cpu: usize) -> Result<(), Errno> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(Errno::INVAL);
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set)
}

/// The nice value of the threads that the scheduler prefers most (setpriority(2)).
const FIRST_NICE: i32 = -20;

/// Lets the calling thread run before all others that share its processor, except those of the same rank and real-time ones.
///
/// # Errors
///
/// `EACCES` without `CAP_SYS_NICE`.
pub fn rank_first() -> Result<(), Errno> {
    setpriority_process(None, FIRST_NICE)
}

/// Makes timeouts of the calling thread end when they are due, and not up to 50 microseconds later together with others
/// (`PR_SET_TIMERSLACK`).
///
/// # Errors
///
/// None that Linux documents for this value (prctl(2)).
pub fn set_exact_timers() -> Result<(), Errno> {
    set_current_timer_slack(Some(NonZeroU64::MIN))
}

/// Returns the CPU time of the calling thread.
pub fn thread_cpu_time() -> Duration {
    duration(clock_gettime(ClockId::ThreadCPUTime))
}

/// Returns the CPU time of all threads of this process.
pub fn process_cpu_time() -> Duration {
    duration(clock_gettime(ClockId::ProcessCPUTime))
}

/// Returns the CPU time of all threads of the process `pid`, also of those that have ended.
///
/// # Errors
///
/// `ESRCH` if there is no such process.
pub fn cpu_time_of(pid: u32) -> Result<Duration, Errno> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    cpu_time::of_process(pid.ok_or(Errno::SRCH)?)
}

/// Returns the CPU time of the child processes that have ended and were waited for, and of their children.
///
/// # Errors
///
/// None that Linux documents for these arguments (getrusage(2)).
pub fn children_cpu_time() -> Result<Duration, Errno> {
    cpu_time::of_children()
}

/// Sets the congestion control of a kernel TCP socket (`TCP_CONGESTION`).
///
/// # Errors
///
/// `ENOENT` if this kernel does not have the algorithm; `EPERM` if the algorithm requires a privilege.
pub fn set_congestion_control(socket: impl AsFd, name: &str) -> Result<(), Errno> {
    rustix::net::sockopt::set_tcp_congestion(socket, name)
}

fn duration(t: Timespec) -> Duration {
    Duration::new(
        u64::try_from(t.tv_sec).unwrap_or(0),
        u32::try_from(t.tv_nsec).unwrap_or(0),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_can_be_pinned_to_a_processor_it_may_use_and_to_no_other() {
        let cpus = allowed_cpus();
        let cpu = *cpus.first().expect("this thread runs somewhere");
        std::thread::spawn(move || {
            pin_current_thread(cpu).unwrap();
            assert_eq!(allowed_cpus(), [cpu]);
        })
        .join()
        .unwrap();
        assert_eq!(pin_current_thread(CpuSet::MAX_CPU), Err(Errno::INVAL));
        assert_eq!(allowed_cpus(), cpus);
    }

    #[test]
    fn cpu_time_grows_with_work_and_that_of_the_process_includes_this_thread() {
        let before = thread_cpu_time();
        let mut sum = 0u64;
        while thread_cpu_time() == before {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(process_cpu_time() >= thread_cpu_time() - before);
    }

    #[test]
    fn the_cpu_time_of_a_child_is_known_while_it_runs_and_counts_after_its_end() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .unwrap();
        while cpu_time_of(child.id()).unwrap() < Duration::from_millis(1) {
            std::thread::yield_now();
        }
        let (before, used) = (children_cpu_time().unwrap(), cpu_time_of(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        let micro = Duration::from_micros(1);
        // Both of its parts are whole microseconds.
        assert!(children_cpu_time().unwrap() + 2 * micro >= before + used.unwrap());
        assert_eq!(cpu_time_of(child.id()), Err(Errno::SRCH));
        assert_eq!(cpu_time_of(0), Err(Errno::SRCH));
    }

    #[test]
    fn reno_can_always_be_set_and_an_unknown_congestion_control_is_enoent() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(set_congestion_control(&socket, "reno"), Ok(()));
        assert_eq!(set_congestion_control(&socket, "nosuch"), Err(Errno::NOENT));
    }

    #[test]
    fn a_thread_gets_exact_timers_and_the_first_rank_if_it_has_the_privilege() {
        std::thread::spawn(|| {
            set_exact_timers().unwrap();
            assert_eq!(rustix::thread::current_timer_slack(), Ok(1));
            match rank_first() {
                Ok(()) => {
                    let nice = rustix::process::getpriority_process(None);
                    assert_eq!(nice, Ok(FIRST_NICE));
                }
                Err(errno) => assert_eq!(errno, Errno::ACCESS),
            }
        })
        .join()
        .unwrap();
    }
}
