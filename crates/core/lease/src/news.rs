//! What happens to the addresses of a host.

use std::net::IpAddr;

use stack::LeasedAddress;

/// What happened to an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressEvent {
    /// The host has it, or other facts about it.
    Has(LeasedAddress),
    /// The host may no longer use it.
    Lost(IpAddr),
}

impl AddressEvent {
    /// Changes a list of addresses as the news say; returns whether that is a change.
    pub(crate) fn apply_to(&self, addresses: &mut Vec<LeasedAddress>) -> bool {
        let (ip, now) = match self {
            Self::Has(address) => (address.ip, Some(address)),
            Self::Lost(ip) => (*ip, None),
        };
        let at = addresses.iter().position(|address| address.ip == ip);
        let before = at.map(|at| addresses.remove(at));
        addresses.extend(now.cloned());
        before.as_ref() != now
    }
}
