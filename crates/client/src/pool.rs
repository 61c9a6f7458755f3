//! Connections that wait for their next request, and the addresses of hosts that were looked up: what the requests of all files of a load share.

use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use devmem_tcp::Netdev;

use crate::connection_key::ConnectionKey;
use crate::dial::{self, CancelCheck};
use crate::error::LoadError;
use crate::transport::Transport;

/// Most connections that wait.
const MAX_IDLE: usize = 64;

/// Connections and addresses.
#[derive(Debug, Default)]
pub struct Pool {
    shared: Mutex<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// The one that was used last is at the end: servers end those first that wait longest.
    idle: Vec<(ConnectionKey, Netdev, Transport)>,
    /// Those of hosts, of which there are few: each one's name, and the port.
    addresses: Vec<(String, u16, Vec<SocketAddr>)>,
}

impl Shared {
    fn addresses_of(&self, key: &ConnectionKey) -> Option<Vec<SocketAddr>> {
        let mut known = self.addresses.iter();
        let known = known.find(|(host, port, _)| *host == key.host && *port == key.port);
        known.map(|(.., addresses)| addresses.clone())
    }
}

impl Pool {
    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a connection of `nic` to `key` that the server has not ended.
    pub fn take(&self, nic: &Netdev, key: &ConnectionKey) -> Option<Transport> {
        loop {
            let mut shared = self.shared();
            let is_one =
                |(to, home, _): &(ConnectionKey, Netdev, Transport)| to == key && home.is_same(nic);
            let at = shared.idle.iter().rposition(is_one)?;
            let (_, _, mut transport) = shared.idle.remove(at);
            drop(shared);
            // A server sends nothing before a request.
            if transport.is_idle() {
                return Some(transport);
            }
        }
    }

    /// Keeps a connection whose last response is complete.
    pub fn keep(&self, nic: &Netdev, key: &ConnectionKey, transport: Transport) {
        let mut shared = self.shared();
        if shared.idle.len() < MAX_IDLE {
            shared.idle.push((key.clone(), nic.clone(), transport));
        }
    }

    /// Returns the addresses of a host, which is looked up once.
    ///
    /// # Errors
    /// Those of [`dial::resolve`].
    pub(crate) fn addresses(
        &self,
        nic: &Netdev,
        key: &ConnectionKey,
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<Vec<SocketAddr>, LoadError> {
        if let Some(known) = self.shared().addresses_of(key) {
            return Ok(known);
        }
        let found = dial::resolve(nic, &key.host, key.port, cancel_check)?;
        let mut shared = self.shared();
        // Another thread may have looked it up meanwhile.
        if shared.addresses_of(key).is_none() {
            let (host, found) = (key.host.clone(), found.clone());
            shared.addresses.push((host, key.port, found));
        }
        Ok(found)
    }
}
