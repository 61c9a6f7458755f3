//! BAR 2: the doorbells.

use gve_defs::doorbell::{
    DOORBELL_BYTES, DOORBELLS_PER_KIND, IRQ_DOORBELLS, RX_DOORBELLS, TX_DOORBELLS,
};

use crate::device::Gve;
use crate::env::Env;
use crate::rx::RxQueue;
use crate::tx::TxQueue;

/// Owner of a doorbell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doorbell {
    /// Notification block.
    Irq(usize),
    /// TX queue.
    Tx(usize),
    /// RX queue.
    Rx(usize),
}

impl Doorbell {
    fn at(index: u64) -> Option<Self> {
        let index = u32::try_from(index).ok()?;
        let number = index.wrapping_rem(DOORBELLS_PER_KIND) as usize;
        match index - number as u32 {
            IRQ_DOORBELLS => Some(Self::Irq(number)),
            TX_DOORBELLS => Some(Self::Tx(number)),
            RX_DOORBELLS => Some(Self::Rx(number)),
            _ => None,
        }
    }
}

impl Gve {
    /// Handles a write of one or more doorbells.
    pub(crate) fn ring_doorbells(&mut self, offset: u64, bytes: &[u8], env: &mut Env<'_>) {
        let (values, odd) = bytes.as_chunks::<4>();
        if !odd.is_empty() || values.is_empty() || !offset.is_multiple_of(DOORBELL_BYTES) {
            self.stats.bad_doorbells += 1;
            return;
        }
        let first = offset / DOORBELL_BYTES;
        for (index, value) in (first..).zip(values) {
            self.doorbell(index, u32::from_le_bytes(*value), env);
        }
    }

    fn doorbell(&mut self, index: u64, value: u32, env: &mut Env<'_>) {
        let good = match Doorbell::at(index) {
            Some(Doorbell::Irq(block)) => self.notify.doorbell(block, value, env.now, env.irqs),
            Some(Doorbell::Tx(number)) => self.tx_doorbell(number, value, env),
            Some(Doorbell::Rx(number)) => self.rx_doorbell(number, value, env),
            None => false,
        };
        self.stats.bad_doorbells += u64::from(!good);
    }

    fn tx_doorbell(&mut self, number: usize, tail: u32, env: &mut Env<'_>) -> bool {
        let queue: Option<&mut TxQueue> = self.tx.get_mut(number).and_then(Option::as_mut);
        let good = queue.is_some_and(|queue| queue.doorbell(tail));
        if good {
            self.run_tx(number, env);
        }
        good
    }

    fn rx_doorbell(&mut self, number: usize, tail: u32, env: &mut Env<'_>) -> bool {
        let queue: Option<&mut RxQueue> = self.rx.get_mut(number).and_then(Option::as_mut);
        let good = queue.is_some_and(|queue| queue.doorbell(tail));
        if good {
            self.run_rx(number, env);
        }
        good
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doorbells_lie_in_three_groups() {
        assert_eq!(Doorbell::at(0), Some(Doorbell::Irq(0)));
        assert_eq!(Doorbell::at(255), Some(Doorbell::Irq(255)));
        assert_eq!(Doorbell::at(256), Some(Doorbell::Tx(0)));
        assert_eq!(Doorbell::at(515), Some(Doorbell::Rx(3)));
        assert_eq!(Doorbell::at(768), None);
        assert_eq!(Doorbell::at(u64::MAX), None);
    }
}
