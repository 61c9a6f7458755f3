//! A message of a broker's client, or of a broker, over their socket.
//!
//! Input: the bytes of a packet.

/// Checks that a message is refused, or does not change when it is written again.
pub fn run(data: &[u8]) {
    devmem_linux::fuzz::broker(data);
}
