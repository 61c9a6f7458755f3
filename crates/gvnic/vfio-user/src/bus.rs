//! What a device reaches its guest by.

use rustix::io::Errno;

use crate::irqs::Irqs;
use crate::windows::DmaWindows;

/// The guest's memory and the guest's interrupts. Empty, and harmless, while there is no client.
#[derive(Debug)]
pub struct Bus {
    /// Guest memory.
    pub dma: DmaWindows,
    /// Interrupts to the guest.
    pub irqs: Irqs,
}

impl Bus {
    /// Returns the bus of a device with `vectors` MSI-X vectors, which no client is on.
    ///
    /// # Errors
    /// The kernel has no context for asynchronous I/O to give, by which eventfds are signalled: `AGAIN` if there are
    /// as many as fs.aio-max-nr allows, `NOSYS` or `PERM` if it has none or a seccomp filter keeps it away.
    pub fn new(vectors: u16) -> Result<Self, Errno> {
        Ok(Self {
            dma: DmaWindows::default(),
            irqs: Irqs::new(vectors)?,
        })
    }

    /// Forgets a client: unmaps its memory, closes its descriptors.
    pub(crate) fn clear(&mut self) {
        self.dma.clear();
        self.irqs.detach_all();
    }
}
