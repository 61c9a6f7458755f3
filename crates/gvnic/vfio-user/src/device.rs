//! What a client sees behind its socket.

use crate::bus::Bus;
use crate::regions::{REGION_COUNT, Region};

/// A PCI device.
///
/// Calls come one at a time from [`Server::on_ready`](crate::Server::on_ready). Ranges were checked against
/// [`regions`](Self::regions) and are not empty; everything else about an access is hostile.
pub trait Device {
    /// Returns the sizes of all regions, by region number. They never change.
    fn regions(&self) -> [Region; REGION_COUNT];

    /// Returns the number of MSI-X vectors. It never changes.
    fn vectors(&self) -> u16;

    /// Reads `out.len()` bytes of a region at `offset`.
    ///
    /// # Errors
    /// The device cannot be read so; the client gets `EINVAL`.
    fn region_read(
        &mut self,
        bus: &mut Bus,
        region: u32,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), DeviceError>;

    /// Writes `bytes` to a region at `offset`.
    ///
    /// # Errors
    /// The device cannot be written so; the client gets `EINVAL`, if it waits for an answer at all.
    fn region_write(
        &mut self,
        bus: &mut Bus,
        region: u32,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), DeviceError>;

    /// Goes back to how the machine would find it when it is switched on. When this returns, nothing of the
    /// guest's memory is in use. Called on the client's wish, before a client's first message, and after its last.
    fn reset(&mut self, bus: &mut Bus);
}

/// A device does not take an access of this width at this place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device has nothing to read or write there in this width")]
pub struct DeviceError;
