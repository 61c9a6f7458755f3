//! How long the calls of a handle wait, changed through a shared reference as in std.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::driver::WaitLimit;

/// Nanoseconds that stand for [`WaitLimit::Never`] and [`WaitLimit::Forever`].
const NEVER: u64 = 0;
const FOREVER: u64 = u64::MAX;

/// The [`WaitLimit`] of a handle. A call takes the value that it finds when it begins.
#[derive(Debug)]
pub(crate) struct CallLimit(AtomicU64);

impl CallLimit {
    pub(crate) fn new(limit: WaitLimit) -> Self {
        Self(AtomicU64::new(nanos(limit)))
    }

    pub(crate) fn get(&self) -> WaitLimit {
        match self.0.load(Ordering::Relaxed) {
            NEVER => WaitLimit::Never,
            FOREVER => WaitLimit::Forever,
            nanos => WaitLimit::For(Duration::from_nanos(nanos)),
        }
    }

    pub(crate) fn set_nonblocking(&self, nonblocking: bool) {
        self.set(WaitLimit::of_nonblocking(nonblocking));
    }

    pub(crate) fn set_timeout(&self, timeout: Option<Duration>) {
        self.set(WaitLimit::within(timeout));
    }

    fn set(&self, limit: WaitLimit) {
        self.0.store(nanos(limit), Ordering::Relaxed);
    }
}

fn nanos(limit: WaitLimit) -> u64 {
    match limit {
        WaitLimit::Never => NEVER,
        WaitLimit::Forever => FOREVER,
        // A timeout of zero is over at once, and still a timeout; one of more than 584 years is the longest that fits.
        WaitLimit::For(time) => u64::try_from(time.as_nanos())
            .unwrap_or(FOREVER - 1)
            .clamp(1, FOREVER - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_read_as_it_was_set() {
        let limit = CallLimit::new(WaitLimit::Forever);
        assert_eq!(limit.get(), WaitLimit::Forever);
        limit.set_nonblocking(true);
        assert_eq!(limit.get(), WaitLimit::Never);
        limit.set_timeout(Some(Duration::from_micros(7)));
        assert_eq!(limit.get(), WaitLimit::For(Duration::from_micros(7)));
        for (set, expected) in [
            (Duration::ZERO, Duration::from_nanos(1)),
            (Duration::MAX, Duration::from_nanos(u64::MAX - 1)),
        ] {
            limit.set_timeout(Some(set));
            assert_eq!(limit.get(), WaitLimit::For(expected));
        }
        limit.set_nonblocking(false);
        assert_eq!(limit.get(), WaitLimit::Forever);
    }
}
