//! The right to access memory as a device does.

/// The right of a NIC, required as an argument for access to memory that the stack may not read (`PagePool::dma_port` of
/// `netmem`).
///
/// [`DmaRight::of_a_nic`] is the only function that returns one, and only a crate with this one among its dependencies can
/// name it. The type has no public fields and implements no trait that creates values
/// (`Default`, `From`), so other crates cannot obtain one by type inference either.
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
    /// Returns the right of a NIC, or of a benchmark in the place of one.
    pub const fn of_a_nic() -> Self {
        Self { _private: () }
    }
}
