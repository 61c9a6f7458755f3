//! Changes of the local addresses while the stack runs: they are leased for a time, and another station may have them.

use std::net::IpAddr;

use tcp::TcpError;
use wire::Instant;

use super::Stack;
use crate::claims::{AddressConflict, AddressConflicts};
use crate::route::{AddressError, LeasedAddress};
use crate::socket::connection::ConnectionSocket;
use crate::socket::error::AcceptError;

impl Stack {
    /// Adds a local address that no other station has, or changes its prefix and routes; announces all addresses to the link.
    ///
    /// # Errors
    /// [`AddressError`]; nothing has changed then.
    pub fn add_address(
        &mut self,
        leased: &LeasedAddress,
        now: Instant,
    ) -> Result<(), AddressError> {
        self.network.add_address(&mut self.nic, leased, now)
    }

    /// Removes a local address, and the routes that were added with it. Connections from and to it fail with
    /// [`TcpError::Aborted`]. Their resets are the last packets from the address.
    pub fn remove_address(&mut self, ip: IpAddr, now: Instant) {
        self.network.remove_address(ip);
        let from_it = |connection: &ConnectionSocket| connection.tuple().dst_ip == ip;
        let slots = self.sockets.connections(from_it);
        self.end_connections(slots, |conn| conn.fail(TcpError::Aborted), now);
    }

    /// Returns whether an address is not used yet because other stations are asked whether they have it
    /// ([`AddressCheck::AskFirst`](crate::AddressCheck::AskFirst)). [`Stack::poll`] asks, while the link is up.
    pub fn is_checking_addresses(&self) -> bool {
        self.network.claims.is_checking()
    }

    /// Uses all addresses from now on, for instance because the link is down; those that were not asked about are asked about when
    /// it is up.
    pub fn use_addresses_now(&mut self) {
        self.network.use_addresses_now();
    }

    /// Returns the conflicts with other stations about the addresses of this NIC.
    pub fn address_conflicts(&self) -> &AddressConflicts {
        self.network.claims.conflicts()
    }

    /// Ends the use of addresses that other stations have. Nothing is sent from them any more, so peers are not told.
    pub(crate) fn give_up_addresses(&mut self, now: Instant) {
        for AddressConflict { ip, .. } in self.network.take_lost() {
            let from_it = |connection: &ConnectionSocket| connection.tuple().dst_ip == ip;
            let slots = self.sockets.connections(from_it);
            self.end_connections(slots, |conn| conn.on_unusable(TcpError::AddressTaken), now);
            let is_homeless = self.network.is_homeless();
            let is_over = |local: IpAddr| local == ip || is_homeless;
            self.sockets
                .end_listeners(AcceptError::AddressTaken, is_over);
        }
    }
}
