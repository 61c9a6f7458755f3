//! How much of a binding is free.

/// How many net_iovs a binding has, and how many are home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetIovCount {
    /// All net_iovs: the size of the memory divided by the net_iov size.
    pub total: usize,
    /// Free net_iovs: neither in a queue (posted, or cached in its page pool), nor in a packet, nor lent to the
    /// application.
    pub home: usize,
}
