//! BAR 2: doorbells, an array of little-endian words of 32 bits.
//!
//! The device assigns a word to each queue and notification block, and returns its index in the admin command that
//! creates the queue or configures the blocks. The assignment below is ours.

/// Bytes of one doorbell.
pub const DOORBELL_BYTES: u64 = 4;
/// Index of the interrupt doorbell of notification block 0; those of the others follow.
pub const IRQ_DOORBELLS: u32 = 0;
/// Index of the doorbell of TX queue 0; those of the others follow.
pub const TX_DOORBELLS: u32 = 256;
/// Index of the doorbell of RX queue 0; those of the others follow.
pub const RX_DOORBELLS: u32 = 512;
/// Maximum number of doorbells of each kind.
pub const DOORBELLS_PER_KIND: u32 = 256;

/// Interrupt doorbell: unmask the block.
#[doc(alias = "GVE_ITR_ENABLE_BIT_DQO")]
pub const IRQ_ENABLE: u32 = 1 << 0;
/// Interrupt doorbell: clear the pending bit of the MSI-X capability.
#[doc(alias = "GVE_ITR_CLEAR_PBA_BIT_DQO")]
pub const IRQ_CLEAR_PBA: u32 = 1 << 1;
/// Interrupt doorbell: if both bits are set, the interval is not changed.
#[doc(alias = "GVE_ITR_NO_UPDATE_DQO")]
pub const IRQ_KEEP_INTERVAL: u32 = 3 << 3;
/// Interrupt doorbell: lowest bit of the interval.
#[doc(alias = "GVE_ITR_INTERVAL_DQO_SHIFT")]
pub const IRQ_INTERVAL_SHIFT: u32 = 5;
/// Interrupt doorbell: bits of the interval, once shifted down.
#[doc(alias = "GVE_ITR_INTERVAL_DQO_MASK")]
pub const IRQ_INTERVAL_MASK: u32 = (1 << 12) - 1;
/// Interrupt doorbell: nanoseconds of one step of the interval.
pub const IRQ_INTERVAL_UNIT_NS: u64 = 2000;
