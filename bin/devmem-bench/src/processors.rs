//! The processors of the two ends of a benchmark.

use std::thread;

use anyhow::{Context, Result, anyhow};
use devmem_linux::cpu;

/// Returns the processors of receiver and sender, the same for both if there is only one.
pub fn first_two(allowed: &[usize]) -> Result<(usize, usize)> {
    let receiver = *allowed
        .first()
        .context("this process may run on no processor")?;
    Ok((receiver, allowed.get(1).copied().unwrap_or(receiver)))
}

/// Calls `work` on a thread that is pinned to a processor. The pinning ends with it.
pub fn pinned<T: Send>(cpu: usize, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        let pinned = scope.spawn(|| {
            cpu::pin_current_thread(cpu).with_context(|| format!("pin to processor {cpu}"))?;
            work()
        });
        let ended = pinned.join();
        ended.map_err(|_| anyhow!("the pinned thread panicked"))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_share_a_processor_if_there_is_only_one() {
        assert_eq!(first_two(&[3]).unwrap(), (3, 3));
        assert_eq!(first_two(&[3, 5, 7]).unwrap(), (3, 5));
        assert!(first_two(&[]).is_err());
    }
}
