//! The listeners of a NIC: one for all connections; or with a pool, a second one for payload, whose port is steered to the pool.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use devmem_tcp::{Error, ErrorKind, Listener, Netdev, Poller, Stream};

use crate::log::warn;
use crate::status::text_of;
use crate::wire::LISTENERS;

/// Key of the second listener. Those of connections are greater.
pub(super) const PAYLOAD_LISTENER: u64 = LISTENERS + 1;

/// The listeners.
#[derive(Debug)]
pub(super) struct Listening {
    control: Listener,
    payload: Option<Listener>,
    port: u16,
    payload_port: u16,
}

impl Listening {
    /// Listens at a port of all addresses of the NIC, 0 for any; with `has_payload` also at the next one, for payload.
    pub(super) fn new(nic: &Netdev, port: u16, has_payload: bool) -> Result<Self, Error> {
        let control = listen(nic, port)?;
        let next = match port {
            0 => 0,
            // The last port has no next one.
            port => port.checked_add(1).unwrap_or(0),
        };
        let payload = has_payload.then(|| listen(nic, next)).transpose()?;
        let port = control.local_addr()?.port();
        let payload_port = match &payload {
            Some(listener) => listener.local_addr()?.port(),
            None => port,
        };
        Ok(Self {
            control,
            payload,
            port,
            payload_port,
        })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn payload_port(&self) -> u16 {
        self.payload_port
    }

    fn each(&self) -> impl Iterator<Item = (u64, &Listener)> {
        let payload = self.payload.iter();
        let payload = payload.map(|listener| (PAYLOAD_LISTENER, listener));
        [(LISTENERS, &self.control)].into_iter().chain(payload)
    }

    pub(super) fn watch(&self, poller: &Poller) -> io::Result<()> {
        self.each()
            .try_for_each(|(key, listener)| poller.add(key, &listener.watch()))
    }

    /// Returns the next connection of a peer, if there is one.
    pub(super) fn accept(&self, poller: &Poller) -> Option<Stream> {
        self.each()
            .find_map(|(key, listener)| match listener.accept() {
                Ok((stream, _)) => Some(stream),
                Err(error) if error.kind() == ErrorKind::WouldBlock => None,
                Err(error) => {
                    // It would be reported without end.
                    poller.remove(key);
                    let error = text_of(&error);
                    warn(&format!("no agent can connect any more: {error}"));
                    None
                }
            })
    }
}

fn listen(nic: &Netdev, port: u16) -> Result<Listener, Error> {
    // Both families on one socket; a kernel without IPv6 has IPv4.
    let any = |ip: SocketAddr| nic.listen(ip);
    let listener = any((Ipv6Addr::UNSPECIFIED, port).into())
        .or_else(|_| any((Ipv4Addr::UNSPECIFIED, port).into()))?;
    listener.set_nonblocking(true);
    Ok(listener)
}
