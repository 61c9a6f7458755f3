//! The interface of a served device.

use crate::bus::Bus;
use crate::regions::{REGION_COUNT, Region};

/// A PCI device.
///
/// [`Server::on_ready`](crate::Server::on_ready) makes the calls, one at a time. Ranges are checked against
/// [`regions`](Self::regions) and are not empty; everything else about an access is untrusted.
pub trait Device {
    /// Returns the sizes of all regions, by region number. They never change.
    fn regions(&self) -> [Region; REGION_COUNT];

    /// Returns the number of MSI-X vectors. It never changes.
    fn vectors(&self) -> u16;

    /// Reads `out.len()` bytes of a region at `offset`.
    ///
    /// # Errors
    /// The device does not support this read; the client gets `EINVAL`.
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
    /// The device does not support this write; the client gets `EINVAL`, unless the write was posted.
    fn region_write(
        &mut self,
        bus: &mut Bus,
        region: u32,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), DeviceError>;

    /// Resets the device to its power-on state. When this returns, the device no longer uses guest memory. Called at
    /// the request of the client, before the first message of a client, and after its last.
    fn reset(&mut self, bus: &mut Bus);
}

/// The device has no register of this width at this offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device has no register of this width at this offset")]
pub struct DeviceError;
