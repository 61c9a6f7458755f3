//! Other stations that have used an address of a NIC.

use std::fmt;
use std::net::IpAddr;

use stack::ConflictOutcome;

use crate::netdev::Netdev;

/// Another station of the network has used an address of the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AddressConflict {
    /// The address.
    pub address: IpAddr,
    /// MAC address of the station.
    pub station: [u8; 6],
    /// The NIC has given the address up: its sockets have failed. Otherwise it has announced the address once more, and uses it on.
    pub is_lost: bool,
}

impl fmt::Display for AddressConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let station = wire::MacAddr(self.station);
        let address = self.address;
        write!(f, "the station {station} uses our address {address}")?;
        f.write_str(match self.is_lost {
            true => ", which is given up",
            false => ", which was announced again",
        })
    }
}

impl Netdev {
    /// Returns the latest 64 conflicts with other stations about addresses of a user-space NIC: the first one in ten seconds is
    /// answered by an announcement (RFC 5227), at the second one the address is given up, and sockets that use it fail with
    /// EADDRNOTAVAIL. Empty for an interface of the kernel, and in a child of fork(2).
    pub fn address_conflicts(&self) -> Vec<AddressConflict> {
        let told = |conflict: stack::AddressConflict| AddressConflict {
            address: conflict.ip,
            station: conflict.by.0,
            is_lost: conflict.outcome != ConflictOutcome::Defended,
        };
        let all = self.nic().address_conflicts();
        all.into_iter().map(told).collect()
    }
}
