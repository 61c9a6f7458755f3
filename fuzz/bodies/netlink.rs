//! What the kernel answers over netlink and by the ethtool ioctl: the parsers are private to their crate, which has the body.
//!
//! Input: datagrams, each with its length in words, a byte of switches and its bytes.

/// Checks that whatever the kernel answers is read, or is an error.
pub fn run(data: &[u8]) {
    devmem_linux::fuzz::netlink(data);
}
