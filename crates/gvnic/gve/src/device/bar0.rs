//! BAR 0: the registers.

use gve_defs::registers::{
    ADMINQ_DOORBELL, DRIVER_RESET, DRIVER_RUN, DRIVER_STATUS, DRIVER_VERSION,
    STATUS_DEVICE_IS_RESET, STATUS_LINK_UP, STATUS_REPORT_STATS, STATUS_RESET_REQUESTED,
};
use zerocopy::IntoBytes;

use super::adminq::ring::Adminq;
use crate::device::{Gve, LinkState, Requests};
use crate::env::{Env, GuestAddr};

impl Gve {
    pub(crate) fn read_registers(&self, offset: u64, out: &mut [u8]) {
        let mut registers = self.registers.0;
        let queues = u32::from(self.config.queue_pairs);
        registers.device_status = self.device_status().into();
        registers.max_tx_queues = queues.into();
        registers.max_rx_queues = queues.into();
        let done = self.adminq.as_ref().map_or(0, Adminq::done);
        registers.adminq_event_counter = done.into();
        let bytes = usize::try_from(offset)
            .ok()
            .and_then(|offset| registers.as_bytes().get(offset..));
        for (out, byte) in out.iter_mut().zip(bytes.unwrap_or_default()) {
            *out = *byte;
        }
    }

    fn device_status(&self) -> u32 {
        let Requests {
            reset,
            stats,
            is_reset,
        } = self.requests;
        let link = self.link == LinkState::Up;
        let bits = [
            (reset, STATUS_RESET_REQUESTED),
            (link, STATUS_LINK_UP),
            (stats, STATUS_REPORT_STATS),
            (is_reset, STATUS_DEVICE_IS_RESET),
        ];
        let set = bits.into_iter().filter(|(is_set, _)| *is_set);
        set.fold(0, |status, (_, bit)| status | bit)
    }

    /// Handles a write of any width at any offset: stores the bytes; a register takes effect when its last byte is written.
    pub(crate) fn write_registers(&mut self, offset: u64, bytes: &[u8], env: &mut Env<'_>) {
        let end = offset.saturating_add(bytes.len() as u64);
        let file = self.registers.0.as_mut_bytes();
        for (at, byte) in (offset..end).zip(bytes) {
            // The driver writes its version byte by byte to this register; it is ignored.
            let register = usize::try_from(at).ok().filter(|_| at != DRIVER_VERSION);
            if let Some(place) = register.and_then(|at| file.get_mut(at)) {
                *place = *byte;
            }
        }
        let wrote = |register: u64| (offset..end).contains(&(register + 3));
        if wrote(DRIVER_STATUS) {
            self.on_driver_status();
        }
        if wrote(ADMINQ_DOORBELL) {
            self.run_adminq(self.registers.0.adminq_doorbell.get(), env);
        }
    }

    fn on_driver_status(&mut self) {
        let status = self.registers.0.driver_status.get();
        if status & DRIVER_RESET != 0 {
            self.reset_by_driver();
        } else if status & DRIVER_RUN != 0 {
            let registers = &self.registers.0;
            let hi = u64::from(registers.adminq_base_address_hi.get());
            let lo = u64::from(registers.adminq_base_address_lo.get());
            let base = GuestAddr(hi << 32 | lo);
            self.adminq = Adminq::new(base, registers.adminq_length.get());
            self.requests.is_reset = false;
        }
    }
}
