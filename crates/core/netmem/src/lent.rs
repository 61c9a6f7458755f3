//! Memory that a device's library has mapped for the CPU.

use mapped::Mapping;

/// Device memory that the device's library has mapped for the CPU, and keeps mapped while this exists: see
/// [`Exporter::mapping`](crate::Exporter::mapping). Only a crate that depends on `mapped` can make one.
#[derive(Debug)]
pub struct LentMemory(pub(crate) Mapping);

impl From<Mapping> for LentMemory {
    fn from(mapping: Mapping) -> Self {
        LentMemory(mapping)
    }
}
