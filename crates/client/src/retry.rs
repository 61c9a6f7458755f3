//! When a connection is made again, and the wait before it.

use std::io;
use std::time::Duration;

use devmem_tcp::ErrorKind;
use rustix::rand::{GetRandomFlags, getrandom};

/// The wait after the first failure; it doubles with each further one.
const FIRST: Duration = Duration::from_millis(100);
/// Longest wait that is chosen here.
const LONGEST: Duration = Duration::from_secs(5);
/// Longest wait that a server may ask for (Retry-After).
const LONGEST_ASKED: Duration = Duration::from_secs(60);

/// Returns whether another connection may help after an error of this kind: the connection is lost.
#[inline]
pub fn may_help(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::ConnectionReset
            | ErrorKind::ConnectionAborted
            | ErrorKind::TimedOut
            | ErrorKind::NotConnected
            | ErrorKind::BrokenPipe
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
            | ErrorKind::DataLost
    )
}

/// Returns whether an error of a stream says that a later turn may do better.
#[inline]
pub fn is_not_ready(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
    )
}

/// Returns how long to wait after the `failures`-th failure in a row: between half of the full wait and all of it, at
/// random, so that clients of a restarted server do not come back together. `retry_after` is what the server asked for.
pub fn delay(failures: u32, retry_after: Option<Duration>) -> Duration {
    let doubled = FIRST.saturating_mul(1 << failures.saturating_sub(1).min(16));
    let full = doubled.min(LONGEST);
    let jittered = full / 2 + full.mul_f64(random_share() / 2.0);
    jittered.max(retry_after.unwrap_or_default().min(LONGEST_ASKED))
}

/// Returns a random number from 0 to 1.
fn random_share() -> f64 {
    let mut bytes = [0; 4];
    match getrandom(&mut bytes, GetRandomFlags::empty()) {
        Ok(_) => f64::from(u32::from_ne_bytes(bytes)) / f64::from(u32::MAX),
        Err(_) => 0.5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_limit_and_vary() {
        for (failures, full) in [(1, FIRST), (2, FIRST * 2), (4, FIRST * 8), (40, LONGEST)] {
            for _ in 0..20 {
                let wait = delay(failures, None);
                assert!(wait >= full / 2 && wait <= full, "{failures}: {wait:?}");
            }
        }
    }

    #[test]
    fn a_servers_wish_is_granted_up_to_a_limit() {
        let second = Duration::from_secs(1);
        assert_eq!(delay(1, Some(second)), second);
        assert_eq!(delay(1, Some(second * 100_000)), LONGEST_ASKED);
    }
}
