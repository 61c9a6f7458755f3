//! The ring of the admin queue.

use gve_defs::adminq::ENTRY_BYTES;

use crate::env::GuestAddr;

/// The admin queue of a running driver.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Adminq {
    base: GuestAddr,
    /// A power of two.
    entries: u32,
    /// Number of executed commands, modulo 2^32.
    done: u32,
}

impl Adminq {
    /// Returns a queue of `bytes` bytes; `None` if the number of entries is not a power of two, or if the queue reaches
    /// past the address space.
    pub(crate) fn new(base: GuestAddr, bytes: u16) -> Option<Self> {
        let usable = bytes.is_power_of_two() && usize::from(bytes) >= ENTRY_BYTES;
        let entries = u32::from(bytes) / ENTRY_BYTES as u32;
        let end = base.checked_add(bytes.into());
        (usable && end.is_some()).then_some(Self {
            base,
            entries,
            done: 0,
        })
    }

    /// Returns the event counter.
    pub(crate) const fn done(&self) -> u32 {
        self.done
    }

    /// Counts the commands up to `announced` as executed, and returns their number, `None` if they are more than the ring has. Counts them also then,
    /// so that the driver does not wait for these commands.
    pub(super) fn take(&mut self, announced: u32) -> Option<u32> {
        let count = announced.wrapping_sub(self.done);
        self.done = announced;
        (count <= self.entries).then_some(count)
    }

    /// Returns the address of an entry.
    pub(super) fn addr(&self, index: u32) -> GuestAddr {
        let at = u64::from(index % self.entries) * ENTRY_BYTES as u64;
        // Cannot wrap: `new` has checked that the queue ends within the address space.
        GuestAddr(self.base.0 + at)
    }
}
