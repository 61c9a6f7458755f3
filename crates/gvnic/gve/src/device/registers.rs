//! The bytes of the registers.

use gve_defs::registers::Bar0;
use zerocopy::FromZeros;

/// The registers as written by the driver; those of the device are filled in on a read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Registers(pub(super) Bar0);

impl Default for Registers {
    fn default() -> Self {
        Self(Bar0::new_zeroed())
    }
}
