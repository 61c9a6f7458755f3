//! CPU time outside of the benchmark's processes: the kernel's softirq threads, and all other processes of the machine.

use std::fs;
use std::time::Duration;

/// Unit of the CPU times in /proc/stat: a hundredth of a second (USER_HZ, linux
/// include/asm-generic/param.h).
const TICK: Duration = Duration::from_millis(10);

/// CPU times at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accounting {
    /// All ksoftirqd threads.
    pub softirq_threads: Duration,
    /// Time that was not idle, of all processors.
    pub busy: Duration,
}

impl Accounting {
    /// Reads the machine's counters; a counter that cannot be read is zero.
    pub fn now(softirq_threads: &[u32]) -> Self {
        let read = |path: String| fs::read_to_string(path).unwrap_or_default();
        let times = softirq_threads
            .iter()
            .map(|pid| run_time(&read(format!("/proc/{pid}/schedstat"))));
        Self {
            softirq_threads: times.sum(),
            busy: busy_time(&read("/proc/stat".to_owned())),
        }
    }

    /// Returns the difference to `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            softirq_threads: self.softirq_threads.saturating_sub(earlier.softirq_threads),
            busy: self.busy.saturating_sub(earlier.busy),
        }
    }
}

/// Lists the process ids of the softirq threads.
pub fn softirq_threads() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let is_softirq = |pid: &u32| {
        fs::read_to_string(format!("/proc/{pid}/comm"))
            .is_ok_and(|name| name.starts_with("ksoftirqd/"))
    };
    pids.filter(is_softirq).collect()
}

/// Parses the first number of /proc/PID/schedstat: CPU time in nanoseconds.
fn run_time(schedstat: &str) -> Duration {
    Duration::from_nanos(
        schedstat
            .split_whitespace()
            .next()
            .and_then(|text| text.parse().ok())
            .unwrap_or(0),
    )
}

/// Adds up user, nice, system, irq, softirq and steal of the first line of /proc/stat.
fn busy_time(stat: &str) -> Duration {
    let Some(line) = stat.lines().find_map(|line| line.strip_prefix("cpu ")) else {
        return Duration::ZERO;
    };
    let ticks: Vec<u32> = line
        .split_whitespace()
        .map_while(|text| text.parse().ok())
        .collect();
    let busy = [0, 1, 2, 5, 6, 7]
        .into_iter()
        .filter_map(|at| ticks.get(at));
    busy.map(|&ticks| TICK.saturating_mul(ticks)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_time_leaves_out_idle_and_iowait() {
        let stat = "cpu  1 2 3 1000 2000 4 5 6 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(busy_time(stat), TICK * (1 + 2 + 3 + 4 + 5 + 6));
        assert_eq!(busy_time(""), Duration::ZERO);
    }

    #[test]
    fn run_time_is_the_first_number() {
        assert_eq!(run_time("123456 78 9\n"), Duration::from_nanos(123_456));
        assert_eq!(run_time("rubbish"), Duration::ZERO);
    }

    #[test]
    fn the_busy_time_of_this_machine_is_not_zero() {
        assert!(Accounting::now(&softirq_threads()).busy > Duration::ZERO);
    }
}
