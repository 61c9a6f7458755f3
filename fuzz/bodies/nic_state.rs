//! The state file of a NIC's set-up that a crashed process has left.
//!
//! Input: the file.

/// Checks that a record is refused, or does not change when it is written again and can be restored from.
pub fn run(data: &[u8]) {
    devmem_linux::fuzz::nic_state(data);
}
