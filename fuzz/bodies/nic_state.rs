//! The state file of a NIC's set-up, which a crashed process left.
//!
//! Input: the file.

/// Checks that a record is refused, or is written back to the same and can be restored from.
pub fn run(data: &[u8]) {
    devmem_linux::fuzz::nic_state(data);
}
