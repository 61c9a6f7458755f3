//! Whether a guest that boots is alive: its kernel's log grows, or a frame has arrived.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Time without a sign of life after which a boot is given up and started again. A healthy boot logs several times a second,
/// and takes seconds; Linux 7.3 may hang (see `qemu::command_line`), and on a machine without a spare processor so may others.
pub const SILENCE_LIMIT: Duration = Duration::from_secs(60);
/// How often a boot without a sign of life is started again.
pub const RETRIES_MAX: u32 = 1;

/// The last sign of life of a guest that boots.
#[derive(Debug)]
pub struct BootWatchdog {
    /// The kernel's log.
    log: PathBuf,
    /// Its length at that time.
    bytes: u64,
    since: Instant,
    /// Longest silence; `None` if a guest may be silent for as long as it likes.
    limit: Option<Duration>,
}

impl BootWatchdog {
    /// Starts to watch a guest.
    pub fn of(log: PathBuf, limit: Option<Duration>) -> Self {
        Self {
            log,
            bytes: 0,
            since: Instant::now(),
            limit,
        }
    }

    /// Looks at the log again. Returns whether the guest has been silent for longer than the limit.
    pub fn is_missing(&mut self) -> bool {
        let Some(limit) = self.limit else {
            return false;
        };
        let bytes = fs::metadata(&self.log).map_or(0, |file| file.len());
        if bytes != self.bytes {
            (self.bytes, self.since) = (bytes, Instant::now());
        }
        self.since.elapsed() > limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_grows_is_a_sign_of_life_and_one_that_does_not_is_none() {
        let scratch = tempfile::tempdir().unwrap();
        let log = scratch.path().join("log");
        let mut watched = BootWatchdog::of(log.clone(), Some(Duration::ZERO));
        assert!(watched.is_missing(), "there is no log yet");
        fs::write(&log, "Linux").unwrap();
        let before = watched.since;
        watched.is_missing();
        assert!(watched.since > before && watched.bytes == 5);
        let before = watched.since;
        assert!(watched.is_missing());
        assert_eq!(watched.since, before);
        let mut patient = BootWatchdog::of(log, None);
        assert!(!patient.is_missing());
    }
}
