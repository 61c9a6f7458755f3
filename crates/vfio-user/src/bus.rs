//! What a device reaches its guest by.

use crate::irqs::Irqs;
use crate::windows::DmaWindows;

/// The guest's memory and the guest's interrupts. Empty, and harmless, while there is no client.
#[derive(Debug, Default)]
pub struct Bus {
    /// Guest memory.
    pub dma: DmaWindows,
    /// Interrupts to the guest.
    pub irqs: Irqs,
}

impl Bus {
    /// Returns the bus of a device with `vectors` MSI-X vectors, which no client is on.
    pub fn new(vectors: u16) -> Self {
        Self {
            dma: DmaWindows::default(),
            irqs: Irqs::new(vectors),
        }
    }

    /// Forgets a client: unmaps its memory, closes its descriptors.
    pub(crate) fn clear(&mut self) {
        self.dma.clear();
        self.irqs.detach_all();
    }
}
