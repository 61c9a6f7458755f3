//! Whether to spin before a sleep: as long as that finds work, and now and then to see whether it does again (the idea
//! of linux virt/kvm/kvm_main.c `halt_poll_ns`).
//!
//! A sleep and wake costs tens of microseconds in a virtual machine, and a peer at full rate leaves gaps far shorter
//! than that: spinning is worth it. A peer that has to share our processor gets it between two looks at the link, but then
//! a sleep would have been as good, and other processes of this processor had less of it.

use std::time::Duration;

/// How long an idle waiter spins before it sleeps.
const LIMIT: Duration = Duration::from_micros(50);

/// Sleeps in a row, each after spinning in vain, after which waiters sleep at once.
const PATIENCE: u32 = 4;

/// Of so many sleeps one has a spin before it then, to see whether it finds work.
const PROBE_EVERY: u32 = 16;

/// What spinning came to lately.
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

    /// Notes that there was work before the sleep.
    pub(crate) fn on_work(&mut self) {
        self.sleeps = 0;
    }

    /// Notes that there was none.
    pub(crate) fn on_sleep(&mut self) {
        self.sleeps = self.sleeps.wrapping_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of `sleeps` sleeps are preceded by a spin.
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
