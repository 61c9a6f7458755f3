//! Access of a device to its guest.

use rustix::io::Errno;

use crate::irqs::Irqs;
use crate::windows::DmaWindows;

/// Guest memory and interrupts. Both are empty while no client is connected.
#[derive(Debug)]
pub struct Bus {
    /// Guest memory.
    pub dma: DmaWindows,
    /// Interrupts to the guest.
    pub irqs: Irqs,
}

impl Bus {
    /// Returns the bus of a device with `vectors` MSI-X vectors, without a client.
    ///
    /// # Errors
    /// The kernel provides no context for asynchronous I/O, which is needed to signal eventfds: `AGAIN` if the limit
    /// fs.aio-max-nr is reached, `NOSYS` or `PERM` if the kernel or a seccomp filter does not allow it.
    pub fn new(vectors: u16) -> Result<Self, Errno> {
        Ok(Self {
            dma: DmaWindows::default(),
            irqs: Irqs::new(vectors)?,
        })
    }

    /// Removes a client: unmaps its memory and closes its descriptors.
    pub(crate) fn clear(&mut self) {
        self.dma.clear();
        self.irqs.detach_all();
    }
}
