//! Replies of netlink and of the ethtool ioctl. The body is in the crate, because its parsers are private.
//!
//! Input: datagrams, each with its length in words, a byte of flags and its bytes.

/// Checks that any reply is parsed or an error.
pub fn run(data: &[u8]) {
    devmem_linux::fuzz::netlink(data);
}
