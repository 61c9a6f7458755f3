//! The right to reach bytes as a device does.

/// What a NIC presents where another crate hands out access to memory that the CPU is kept from (`PagePool::dma_port`
/// of `netmem`).
///
/// [`DmaRight::of_a_nic`] is the only way to get one, and only a crate that lists this one under its dependencies can
/// name it: cargo refuses the others. The type has no public fields and implements no trait that makes values
/// (`Default`, `From`), so that a crate which cannot name it cannot obtain one by type inference either.
///
/// ```compile_fail,E0277
/// let right: mapped::DmaRight = Default::default();
/// ```
///
/// ```compile_fail,E0451
/// let right = mapped::DmaRight { _private: () };
/// ```
#[derive(Debug)]
pub struct DmaRight {
    _private: (),
}

impl DmaRight {
    /// Returns the right of a NIC, or of a benchmark that stands for one.
    pub const fn of_a_nic() -> Self {
        Self { _private: () }
    }
}
