//! Connections that wait for their next request, and the addresses of hosts that were looked up: what the requests of all files of a load share.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use devmem_tcp::Netdev;

use super::dial::{self, GoOn};
use super::error::LoadError;
use super::hop::Hop;
use super::transport::Transport;

/// Most connections that wait.
const MAX_IDLE: usize = 64;

/// Connections and addresses.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    shared: Mutex<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// The one that was used last is at the end: servers end those first that wait longest.
    idle: Vec<(Hop, Netdev, Transport)>,
    /// By host and port.
    addresses: BTreeMap<(String, u16), Vec<SocketAddr>>,
}

impl Pool {
    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a connection of `nic` to `hop` that the server has not ended.
    pub(crate) fn take(&self, nic: &Netdev, hop: &Hop) -> Option<Transport> {
        loop {
            let mut shared = self.shared();
            let is_one = |(to, home, _): &(Hop, Netdev, Transport)| to == hop && home.is_same(nic);
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
    pub(crate) fn keep(&self, nic: &Netdev, hop: &Hop, transport: Transport) {
        let mut shared = self.shared();
        if shared.idle.len() < MAX_IDLE {
            shared.idle.push((hop.clone(), nic.clone(), transport));
        }
    }

    /// Returns the addresses of a host, which is looked up once.
    ///
    /// # Errors
    /// Those of [`dial::resolve`].
    pub(crate) fn addresses(
        &self,
        nic: &Netdev,
        hop: &Hop,
        go_on: &mut GoOn<'_>,
    ) -> Result<Vec<SocketAddr>, LoadError> {
        let end = (hop.host.clone(), hop.port);
        let known = self.shared().addresses.get(&end).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let found = dial::resolve(nic, &hop.host, hop.port, go_on)?;
        let addresses = &mut self.shared().addresses;
        addresses.insert(end, found.clone());
        Ok(found)
    }
}
