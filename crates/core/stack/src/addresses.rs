//! Changes of the local addresses while the stack runs: a DHCP server lends them for a time.

use std::net::IpAddr;

use tcp::TcpError;
use wire::Instant;

use crate::Stack;
use crate::route::{AddressError, LentAddress};
use crate::socket::ConnectionSocket;
use crate::stack::Burst;

impl Stack {
    /// Adds a local address, or changes its prefix and gateway; announces all addresses to the link.
    ///
    /// # Errors
    /// [`AddressError`]; nothing has changed then.
    pub fn add_address(&mut self, lent: LentAddress, now: Instant) -> Result<(), AddressError> {
        let mac = self.network.nic().mac();
        self.network.routes_mut().add(mac, lent)?;
        self.network.announce(now);
        Ok(())
    }

    /// Removes a local address, and the gateway that was added with it. Connections from and to it fail with
    /// [`TcpError::Aborted`]. Their resets are the last packets from the address.
    pub fn remove_address(&mut self, ip: IpAddr, now: Instant) {
        self.network.routes_mut().remove(ip);
        let from_it = |connection: &ConnectionSocket| connection.tuple.dst_ip == ip;
        for slot in self.sockets.connections(from_it) {
            let Some(mut connection) = self.sockets.connection_at(slot) else {
                continue;
            };
            connection.conn.fail(TcpError::Aborted);
            drop(connection);
            self.serve(slot, Burst::GoesOn, now);
        }
    }
}
