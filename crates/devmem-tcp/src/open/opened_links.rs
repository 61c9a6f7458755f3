//! What opening the link of a NIC returns.

use lease::LeasePort;
use nic::Link;

/// An open link.
pub(super) struct OpenedLinks {
    /// A queue of it for each shard.
    pub(super) links: Vec<Box<dyn Link>>,
    /// A socket to get addresses, if it is needed.
    pub(super) port: Option<LeasePort>,
    /// It is a TAP that did not exist before.
    pub(super) created: bool,
}
