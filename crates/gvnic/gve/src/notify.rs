//! Notification blocks: interrupt masking and moderation.

use std::time::Duration;

use gve_defs::doorbell::{
    IRQ_ENABLE, IRQ_INTERVAL_MASK, IRQ_INTERVAL_SHIFT, IRQ_INTERVAL_UNIT_NS, IRQ_KEEP_INTERVAL,
};
use wire::Instant;

use crate::env::IrqSink;

/// One interrupt of the guest, shared by the queues that use it.
///
/// An interrupt masks the block until the driver enables it again. Events in between are remembered and interrupt as
/// soon as the block is enabled, so that no event is lost between the driver's last check and the enabling.
#[derive(Clone, Copy, Debug)]
struct NotifyBlock {
    vector: u16,
    enabled: bool,
    pending: bool,
    /// Minimum time between interrupts.
    interval: Duration,
    not_before: Instant,
}

impl NotifyBlock {
    fn settle(&mut self, now: Instant, irqs: &dyn IrqSink) {
        if self.enabled && self.pending && now >= self.not_before {
            self.enabled = false;
            self.pending = false;
            self.not_before = now + self.interval;
            irqs.fire(self.vector);
        }
    }
}

/// All notification blocks the driver has configured.
#[derive(Debug, Default)]
pub(crate) struct Notify {
    blocks: Vec<NotifyBlock>,
}

impl Notify {
    /// Creates `count` masked blocks, with vectors from `first_vector` on.
    pub(crate) fn configure(&mut self, count: u16, first_vector: u16) {
        let block = |index| NotifyBlock {
            vector: first_vector + index,
            enabled: false,
            pending: false,
            interval: Duration::ZERO,
            not_before: Instant::ZERO,
        };
        self.blocks = (0..count).map(block).collect();
    }

    /// Removes all blocks.
    pub(crate) fn clear(&mut self) {
        self.blocks.clear();
    }

    /// Returns the number of blocks.
    pub(crate) fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Handles a doorbell write for a block; returns false if there is no such block.
    pub(crate) fn doorbell(
        &mut self,
        index: usize,
        value: u32,
        now: Instant,
        irqs: &dyn IrqSink,
    ) -> bool {
        let Some(block) = self.blocks.get_mut(index) else {
            return false;
        };
        if value & IRQ_KEEP_INTERVAL != IRQ_KEEP_INTERVAL {
            let steps = value >> IRQ_INTERVAL_SHIFT & IRQ_INTERVAL_MASK;
            block.interval = Duration::from_nanos(u64::from(steps) * IRQ_INTERVAL_UNIT_NS);
            // A shorter interval takes effect at once, even for an interrupt that already waits.
            block.not_before = block.not_before.min(now + block.interval);
        }
        // Clearing the pending bit must not discard a remembered event, so only the enable bit matters.
        block.enabled = value & IRQ_ENABLE != 0;
        block.settle(now, irqs);
        true
    }

    /// Interrupts for a block, now or as soon as it is enabled and its interval is over.
    #[inline]
    pub(crate) fn raise(&mut self, index: u16, now: Instant, irqs: &dyn IrqSink) {
        if let Some(block) = self.blocks.get_mut(usize::from(index)) {
            block.pending = true;
            block.settle(now, irqs);
        }
    }

    /// Fires interrupts with an interval that is over.
    pub(crate) fn poll(&mut self, now: Instant, irqs: &dyn IrqSink) {
        for block in &mut self.blocks {
            block.settle(now, irqs);
        }
    }

    /// Returns when the interval of the next waiting interrupt is over.
    pub(crate) fn poll_at(&self) -> Option<Instant> {
        let waiting = self
            .blocks
            .iter()
            .filter(|block| block.enabled && block.pending);
        waiting.map(|block| block.not_before).min()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[derive(Default)]
    struct Fired(RefCell<Vec<u16>>);

    impl IrqSink for Fired {
        fn fire(&self, vector: u16) {
            self.0.borrow_mut().push(vector);
        }
    }

    impl Fired {
        fn take(&self) -> Vec<u16> {
            self.0.take()
        }
    }

    const KEEP: u32 = IRQ_ENABLE | IRQ_KEEP_INTERVAL;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    fn two_blocks() -> (Notify, Fired) {
        let mut notify = Notify::default();
        notify.configure(2, 0);
        (notify, Fired::default())
    }

    #[test]
    fn a_masked_block_remembers_and_fires_when_it_is_enabled() {
        let (mut notify, fired) = two_blocks();
        notify.raise(1, at(0), &fired);
        assert_eq!(fired.take(), []);
        assert!(notify.doorbell(1, KEEP, at(1), &fired));
        assert_eq!(fired.take(), [1]);
    }

    #[test]
    fn an_interrupt_masks_its_block() {
        let (mut notify, fired) = two_blocks();
        notify.doorbell(0, KEEP, at(0), &fired);
        notify.raise(0, at(0), &fired);
        notify.raise(0, at(0), &fired);
        assert_eq!(fired.take(), [0]);
        notify.doorbell(0, KEEP, at(0), &fired);
        assert_eq!(fired.take(), [0]);
        notify.doorbell(0, KEEP, at(0), &fired);
        assert_eq!(fired.take(), []);
    }

    #[test]
    fn two_interrupts_are_an_interval_apart() {
        let (mut notify, fired) = two_blocks();
        let interval_20us = IRQ_ENABLE | 10 << IRQ_INTERVAL_SHIFT;
        notify.doorbell(0, interval_20us, at(100), &fired);
        notify.raise(0, at(100), &fired);
        assert_eq!(fired.take(), [0]);
        notify.doorbell(0, KEEP, at(101), &fired);
        notify.raise(0, at(102), &fired);
        assert_eq!(notify.poll_at(), Some(at(120)));
        notify.poll(at(119), &fired);
        assert_eq!(fired.take(), []);
        notify.poll(at(120), &fired);
        assert_eq!(fired.take(), [0]);
        assert_eq!(notify.poll_at(), None);
    }

    #[test]
    fn a_shorter_interval_ends_a_longer_wait() {
        let (mut notify, fired) = two_blocks();
        let longest = IRQ_ENABLE | IRQ_INTERVAL_MASK << IRQ_INTERVAL_SHIFT;
        notify.doorbell(0, longest, at(0), &fired);
        notify.raise(0, at(0), &fired);
        notify.raise(0, at(1), &fired);
        notify.doorbell(0, KEEP, at(1), &fired);
        assert_eq!(notify.poll_at(), Some(at(8190)));
        assert_eq!(fired.take(), [0]);
        notify.doorbell(0, IRQ_ENABLE, at(2), &fired);
        assert_eq!(fired.take(), [0]);
    }

    #[test]
    fn a_missing_notification_block_is_reported() {
        let (mut notify, fired) = two_blocks();
        assert!(!notify.doorbell(2, KEEP, at(0), &fired));
        notify.raise(2, at(0), &fired);
        assert_eq!(fired.take(), []);
    }
}
