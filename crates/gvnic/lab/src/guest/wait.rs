//! Waiting for what the kernel makes in the background.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::anyhow;

/// Maximum time until a NIC or a port appears.
const LIMIT: Duration = Duration::from_secs(20);
/// Time between two looks.
pub const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Calls `look` repeatedly until it returns a value, for a bounded time.
pub fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> anyhow::Result<T> {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return Ok(found);
        }
        if start.elapsed() > LIMIT {
            return Err(anyhow!("{what} did not appear in time"));
        }
        thread::sleep(POLL_INTERVAL);
    }
}
