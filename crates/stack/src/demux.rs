//! Which socket a segment is for.
//!
//! Connections are found by their four-tuple in a hash table with a secret key, because peers
//! choose the keys. The last answer is remembered: in a bulk transfer nearly every segment is for
//! the connection of the one before.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use wire::FourTuple;

use crate::random::KeyedState;

/// Who answers for a four-tuple.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The connection in this slot of the socket table.
    Connection(u32),
    /// The listener in this slot.
    Listener(u32),
}

/// The address is taken (EADDRINUSE).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AddrInUse;

/// Four-tuples and listening addresses. Four-tuples are as received packets bear them: the peer is
/// the source.
#[derive(Debug)]
pub(crate) struct Demux {
    connections: HashMap<FourTuple, u32, KeyedState>,
    /// By port: the addresses somebody listens on, the wildcard (`None`) among them.
    listeners: HashMap<u16, Vec<(Option<IpAddr>, u32)>, KeyedState>,
    last: Option<(FourTuple, u32)>,
}

impl Demux {
    pub(crate) fn new(hash_key: [u8; 16]) -> Self {
        Self {
            connections: HashMap::with_hasher(KeyedState::new(hash_key)),
            listeners: HashMap::with_hasher(KeyedState::new(hash_key)),
            last: None,
        }
    }

    /// Returns who answers for a packet: its connection, else a listener on exactly that address,
    /// else one on any.
    pub(crate) fn lookup(&mut self, tuple: &FourTuple) -> Option<Owner> {
        if let Some((last, slot)) = &self.last
            && last == tuple
        {
            return Some(Owner::Connection(*slot));
        }
        if let Some(&slot) = self.connections.get(tuple) {
            self.last = Some((*tuple, slot));
            return Some(Owner::Connection(slot));
        }
        self.listener(SocketAddr::new(tuple.dst_ip, tuple.dst_port))
            .map(Owner::Listener)
    }

    /// Returns the connection with this four-tuple.
    pub(crate) fn connection(&self, tuple: &FourTuple) -> Option<u32> {
        self.connections.get(tuple).copied()
    }

    /// Returns who listens on `local`: on exactly that address first, then on any.
    pub(crate) fn listener(&self, local: SocketAddr) -> Option<u32> {
        let on_port = self.listeners.get(&local.port())?;
        let find = |ip: Option<IpAddr>| {
            on_port
                .iter()
                .find(|&&(bound, _)| bound == ip)
                .map(|&(_, slot)| slot)
        };
        find(Some(local.ip())).or_else(|| find(None))
    }

    /// Returns whether no connection has this four-tuple.
    pub(crate) fn is_free(&self, tuple: &FourTuple) -> bool {
        !self.connections.contains_key(tuple)
    }

    /// Adds a connection.
    pub(crate) fn insert(&mut self, tuple: FourTuple, slot: u32) -> Result<(), AddrInUse> {
        if !self.is_free(&tuple) {
            return Err(AddrInUse);
        }
        self.connections.insert(tuple, slot);
        Ok(())
    }

    /// Forgets a connection.
    pub(crate) fn remove(&mut self, tuple: &FourTuple) {
        self.connections.remove(tuple);
        self.last = None;
    }

    /// Adds a listener; an unspecified address means any of ours, of either family (linux:
    /// `IPV6_V6ONLY` off).
    pub(crate) fn listen(&mut self, local: SocketAddr, slot: u32) -> Result<(), AddrInUse> {
        let ip = (!local.ip().is_unspecified()).then_some(local.ip());
        let on_port = self.listeners.entry(local.port()).or_default();
        // As in Linux without SO_REUSEADDR: a wildcard and a specific listener do not share a port.
        if on_port
            .iter()
            .any(|&(bound, _)| bound == ip || bound.is_none() || ip.is_none())
        {
            return Err(AddrInUse);
        }
        on_port.push((ip, slot));
        Ok(())
    }

    /// Forgets the listener in `slot` on `port`.
    pub(crate) fn unlisten(&mut self, port: u16, slot: u32) {
        if let Some(on_port) = self.listeners.get_mut(&port) {
            on_port.retain(|&(_, other)| other != slot);
            if on_port.is_empty() {
                self.listeners.remove(&port);
            }
        }
    }

    /// Returns whether a connection has the port of `local` at its address, or at any if that is unspecified.
    pub(crate) fn is_port_in_use(&self, local: SocketAddr) -> bool {
        let covers = |ip: IpAddr| local.ip().is_unspecified() || ip == local.ip();
        self.connections
            .keys()
            .any(|tuple| tuple.dst_port == local.port() && covers(tuple.dst_ip))
    }

    /// Returns how many connections there are.
    pub(crate) fn connections(&self) -> usize {
        self.connections.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demux() -> Demux {
        Demux::new([1; 16])
    }

    fn tuple(src: &str, dst: &str) -> FourTuple {
        let (src, dst) = (addr(src), addr(dst));
        FourTuple {
            src_ip: src.ip(),
            dst_ip: dst.ip(),
            src_port: src.port(),
            dst_port: dst.port(),
        }
    }

    fn addr(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_connection_comes_before_its_listener_and_the_exact_address_before_any() {
        let mut demux = demux();
        let ours = tuple("10.0.0.1:9", "10.0.0.2:80");
        demux.listen(addr("10.0.0.2:80"), 2).unwrap();
        assert_eq!(demux.lookup(&ours), Some(Owner::Listener(2)));
        demux.insert(ours, 3).unwrap();
        assert_eq!(demux.lookup(&ours), Some(Owner::Connection(3)));
        assert_eq!(
            demux.lookup(&tuple("10.0.0.1:10", "10.0.0.2:80")),
            Some(Owner::Listener(2))
        );
        assert_eq!(demux.lookup(&tuple("10.0.0.1:9", "10.0.0.2:81")), None);
        assert_eq!(demux.lookup(&tuple("10.0.0.1:9", "10.0.0.3:80")), None);
    }

    #[test]
    fn a_removed_connection_is_not_remembered() {
        let mut demux = demux();
        let ours = tuple("10.0.0.1:9", "10.0.0.2:80");
        demux.insert(ours, 3).unwrap();
        assert_eq!(demux.lookup(&ours), Some(Owner::Connection(3)));
        demux.remove(&ours);
        assert_eq!(demux.lookup(&ours), None);
        demux.insert(ours, 4).unwrap();
        assert_eq!(demux.lookup(&ours), Some(Owner::Connection(4)));
    }

    #[test]
    fn taken_names_are_refused() {
        let mut demux = demux();
        let ours = tuple("10.0.0.1:9", "10.0.0.2:80");
        demux.insert(ours, 3).unwrap();
        assert_eq!(demux.insert(ours, 4), Err(AddrInUse));
        demux.listen(addr("10.0.0.2:80"), 1).unwrap();
        assert_eq!(demux.listen(addr("10.0.0.2:80"), 2), Err(AddrInUse));
        assert_eq!(demux.listen(addr("0.0.0.0:80"), 2), Err(AddrInUse));
        demux.listen(addr("10.0.0.3:80"), 2).unwrap();
        demux.unlisten(80, 1);
        demux.unlisten(80, 2);
        demux.listen(addr("[::]:80"), 5).unwrap();
        assert_eq!(demux.listener(addr("10.0.0.2:80")), Some(5));
        assert_eq!(demux.listener(addr("[2001:db8::1]:80")), Some(5));
    }
}
