//! Decides whether to spin before a sleep: as long as spinning finds work, and occasionally afterwards, as a test (as linux
//! virt/kvm/kvm_main.c `halt_poll_ns` does).
//!
//! A sleep and wake-up costs tens of microseconds in a virtual machine, and the gaps between packets of a fast peer are much
//! shorter, so spinning is useful. If the peer shares our processor, it runs when the spinning thread yields; then a sleep would
//! be as good, and would leave more time to other processes.

use std::time::Duration;

/// How long an idle waiter spins before it sleeps.
const LIMIT: Duration = Duration::from_micros(50);

/// Number of consecutive spins without work after which waiters sleep at once.
const PATIENCE: u32 = 4;

/// After that, one of this many sleeps is preceded by a spin, to test whether it finds work.
const PROBE_EVERY: u32 = 16;

/// Recent results of spinning.
#[derive(Debug, Default)]
pub(crate) struct Spin {
    /// Sleeps since a spin last found work.
    sleeps: u32,
}

impl Spin {
    /// Returns how long to spin before the next sleep.
    pub(crate) fn limit(&self) -> Duration {
        if self.sleeps < PATIENCE || self.sleeps.is_multiple_of(PROBE_EVERY) {
            LIMIT
        } else {
            Duration::ZERO
        }
    }

    /// Records that spinning found work.
    pub(crate) fn on_work(&mut self) {
        self.sleeps = 0;
    }

    /// Records a sleep, after a spin without work or without a spin.
    pub(crate) fn on_sleep(&mut self) {
        self.sleeps = self.sleeps.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many of `sleeps` sleeps are preceded by a spin.
    fn spins_before(spin: &mut Spin, sleeps: u32) -> usize {
        let spun = (0..sleeps).map(|_| {
            let spun = !spin.limit().is_zero();
            spin.on_sleep();
            spun
        });
        spun.filter(|&spun| spun).count()
    }

    #[test]
    fn spinning_that_finds_nothing_becomes_rare_and_never_ends() {
        let mut spin = Spin::default();
        assert_eq!(spins_before(&mut spin, PATIENCE), PATIENCE as usize);
        assert_eq!(spins_before(&mut spin, PROBE_EVERY), 1);
        assert_eq!(spins_before(&mut spin, 10 * PROBE_EVERY), 10);
    }

    #[test]
    fn one_spin_that_finds_work_brings_it_back() {
        let mut spin = Spin::default();
        spins_before(&mut spin, 100);
        spin.on_work();
        assert_eq!(spin.limit(), LIMIT);
        assert_eq!(spins_before(&mut spin, PATIENCE), PATIENCE as usize);
    }
}
