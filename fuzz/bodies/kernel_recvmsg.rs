//! Results of the kernel's recvmsg: data in host memory, control messages, the error queue.
//!
//! Input: recvmsg's return value (2 bytes), `msg_flags` (1), length of the control buffer (1), the control buffer, data.

/// Checks that every byte is accounted for, or the receive is an error.
pub fn run(data: &[u8]) {
    devmem_linux::fuzz::cmsg(data);
}
