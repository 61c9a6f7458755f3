//! Finds the socket of a received segment.
//!
//! Connections are found by their four-tuple in a hash table with a secret hash key, because peers
//! choose the four-tuples. The last result is cached: in a bulk transfer nearly every segment belongs to
//! the same connection as the segment before.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::net::IpAddr;

use smallvec::SmallVec;
use wire::FourTuple;

use crate::bind_addr::BindAddr;
use crate::random::KeyedState;

/// The socket that receives the segments of a four-tuple.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TupleOwner {
    /// The connection in this slot of the socket table.
    Connection(u32),
    /// The listener in this slot.
    Listener(u32),
}

/// The address is taken (EADDRINUSE).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AddrInUse;

/// Four-tuples of connections, and addresses of listeners. Four-tuples are those of received packets: the
/// peer is the source.
#[derive(Debug)]
pub(crate) struct Demux {
    connections: HashMap<FourTuple, u32, KeyedState>,
    /// By local port: the local addresses of its connections, with the number of connections.
    ports: HashMap<u16, SmallVec<[(IpAddr, u32); 1]>, KeyedState>,
    /// Listeners by port.
    listeners: HashMap<u16, Vec<Listening>, KeyedState>,
    last: Option<(FourTuple, u32)>,
}

/// The address of a listener, and its slot in the socket table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Listening {
    local: BindAddr,
    slot: u32,
}

impl Demux {
    pub(super) fn new(hash_key: [u8; 16]) -> Self {
        Self {
            connections: HashMap::with_hasher(KeyedState::new(hash_key)),
            ports: HashMap::with_hasher(KeyedState::new(hash_key)),
            listeners: HashMap::with_hasher(KeyedState::new(hash_key)),
            last: None,
        }
    }

    /// Returns the connection of a packet, else a listener on exactly its destination address, else a listener
    /// on all addresses of the family, else a listener on all addresses of both families.
    pub(crate) fn lookup(&mut self, tuple: &FourTuple) -> Option<TupleOwner> {
        if let Some((last, slot)) = &self.last
            && last == tuple
        {
            return Some(TupleOwner::Connection(*slot));
        }
        if let Some(&slot) = self.connections.get(tuple) {
            self.last = Some((*tuple, slot));
            return Some(TupleOwner::Connection(slot));
        }
        self.listener(tuple).map(TupleOwner::Listener)
    }

    /// Returns the connection with this four-tuple.
    pub(crate) fn connection(&self, tuple: &FourTuple) -> Option<u32> {
        self.connections.get(tuple).copied()
    }

    /// Returns the slot of the listener for a packet. Several listeners on one address (SO_REUSEPORT) share the
    /// peers: the same peer finds the same listener until one is added or removed.
    pub(crate) fn listener(&self, tuple: &FourTuple) -> Option<u32> {
        let on_port = self.listeners.get(&tuple.dst_port)?;
        let takers = || on_port.iter().filter(|it| it.local.takes(tuple.dst_ip));
        let scope = takers()
            .map(|it| it.local.scope())
            .max_by_key(|scope| scope.closeness())?;
        let mut closest = takers().filter(|it| it.local.scope() == scope);
        let first = closest.next()?.slot;
        match closest.clone().count() as u64 {
            0 => Some(first),
            others => {
                // Less than the number of others, plus one.
                let which = self.connections.hasher().hash_one(tuple) % (others + 1);
                let skipped = usize::try_from(which).unwrap_or(0).checked_sub(1);
                Some(skipped.map_or(first, |n| closest.nth(n).map_or(first, |it| it.slot)))
            }
        }
    }

    /// Returns whether a listener has an address that overlaps with `local`, at the same port.
    pub(crate) fn is_listened_on(&self, local: &BindAddr) -> bool {
        let on_port = self.listeners.get(&local.address.port());
        on_port.is_some_and(|all| all.iter().any(|it| it.local.overlaps(local)))
    }

    /// Returns whether no connection has this four-tuple.
    pub(crate) fn is_free(&self, tuple: &FourTuple) -> bool {
        !self.connections.contains_key(tuple)
    }

    /// Adds a connection.
    pub(super) fn insert(&mut self, tuple: FourTuple, slot: u32) -> Result<(), AddrInUse> {
        if !self.is_free(&tuple) {
            return Err(AddrInUse);
        }
        self.connections.insert(tuple, slot);
        let addresses = self.ports.entry(tuple.dst_port).or_default();
        match addresses.iter_mut().find(|(ip, _)| *ip == tuple.dst_ip) {
            Some((_, count)) => *count += 1,
            None => addresses.push((tuple.dst_ip, 1)),
        }
        Ok(())
    }

    /// Removes a connection.
    pub(super) fn remove(&mut self, tuple: &FourTuple) {
        self.last = None;
        if self.connections.remove(tuple).is_none() {
            return;
        }
        if let Some(addresses) = self.ports.get_mut(&tuple.dst_port) {
            addresses.retain(|(ip, count)| {
                *count -= u32::from(*ip == tuple.dst_ip);
                *count > 0
            });
            if addresses.is_empty() {
                self.ports.remove(&tuple.dst_port);
            }
        }
    }

    /// Adds a listener, unless another listener has an address that overlaps. As in Linux, SO_REUSEADDR does not
    /// allow two listeners on one address; SO_REUSEPORT does if both listeners set it.
    pub(super) fn listen(&mut self, local: BindAddr, slot: u32) -> Result<(), AddrInUse> {
        let on_port = self.listeners.entry(local.address.port()).or_default();
        let is_taken = |other: &Listening| {
            other.local.overlaps(&local) && !(other.local.reuse_port && local.reuse_port)
        };
        if on_port.iter().any(is_taken) {
            return Err(AddrInUse);
        }
        on_port.push(Listening { local, slot });
        Ok(())
    }

    /// Removes the listener in `slot` from `port`.
    pub(super) fn unlisten(&mut self, port: u16, slot: u32) {
        if let Some(on_port) = self.listeners.get_mut(&port) {
            on_port.retain(|other| other.slot != slot);
            if on_port.is_empty() {
                self.listeners.remove(&port);
            }
        }
    }

    /// Returns whether a connection has the port of `local` at a local address that `local` covers.
    pub(crate) fn is_port_in_use(&self, local: &BindAddr) -> bool {
        let addresses = self.ports.get(&local.address.port());
        addresses.is_some_and(|all| all.iter().any(|(ip, _)| local.takes(*ip)))
    }

    /// Returns how many connections there are.
    pub(crate) fn connections(&self) -> usize {
        self.connections.len()
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

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

    fn listen(demux: &mut Demux, text: &str, slot: u32) -> Result<(), AddrInUse> {
        demux.listen(addr(text).into(), slot)
    }

    fn listener(demux: &Demux, local: &str) -> Option<u32> {
        let peer = if local.starts_with('[') {
            "[2001:db8::9]:9"
        } else {
            "10.0.0.9:9"
        };
        demux.listener(&tuple(peer, local))
    }

    #[test]
    fn a_connection_comes_before_its_listener_and_the_exact_address_before_any() {
        let mut demux = demux();
        let ours = tuple("10.0.0.1:9", "10.0.0.2:80");
        listen(&mut demux, "10.0.0.2:80", 2).unwrap();
        assert_eq!(demux.lookup(&ours), Some(TupleOwner::Listener(2)));
        demux.insert(ours, 3).unwrap();
        assert_eq!(demux.lookup(&ours), Some(TupleOwner::Connection(3)));
        assert_eq!(
            demux.lookup(&tuple("10.0.0.1:10", "10.0.0.2:80")),
            Some(TupleOwner::Listener(2))
        );
        assert_eq!(demux.lookup(&tuple("10.0.0.1:9", "10.0.0.2:81")), None);
        assert_eq!(demux.lookup(&tuple("10.0.0.1:9", "10.0.0.3:80")), None);
    }

    #[test]
    fn a_removed_connection_is_not_remembered() {
        let mut demux = demux();
        let ours = tuple("10.0.0.1:9", "10.0.0.2:80");
        demux.insert(ours, 3).unwrap();
        assert_eq!(demux.lookup(&ours), Some(TupleOwner::Connection(3)));
        demux.remove(&ours);
        assert_eq!(demux.lookup(&ours), None);
        demux.insert(ours, 4).unwrap();
        assert_eq!(demux.lookup(&ours), Some(TupleOwner::Connection(4)));
    }

    #[test]
    fn taken_names_are_refused() {
        let mut demux = demux();
        let ours = tuple("10.0.0.1:9", "10.0.0.2:80");
        demux.insert(ours, 3).unwrap();
        assert_eq!(demux.insert(ours, 4), Err(AddrInUse));
        listen(&mut demux, "10.0.0.2:80", 1).unwrap();
        assert_eq!(listen(&mut demux, "10.0.0.2:80", 2), Err(AddrInUse));
        assert_eq!(listen(&mut demux, "0.0.0.0:80", 2), Err(AddrInUse));
        assert_eq!(listen(&mut demux, "[::]:80", 2), Err(AddrInUse));
        listen(&mut demux, "10.0.0.3:80", 2).unwrap();
        demux.unlisten(80, 1);
        demux.unlisten(80, 2);
        listen(&mut demux, "[::]:80", 5).unwrap();
        assert_eq!(listener(&demux, "10.0.0.2:80"), Some(5));
        assert_eq!(listener(&demux, "[2001:db8::1]:80"), Some(5));
        assert_eq!(listen(&mut demux, "0.0.0.0:80", 6), Err(AddrInUse));
    }

    #[test]
    fn each_wildcard_takes_its_family_and_ipv6s_may_take_both() {
        let mut demux = demux();
        listen(&mut demux, "0.0.0.0:80", 4).unwrap();
        assert_eq!(listener(&demux, "[2001:db8::1]:80"), None);
        let v6_only = BindAddr {
            v6_only: true,
            ..addr("[::]:80").into()
        };
        demux.listen(v6_only, 6).unwrap();
        assert_eq!(listener(&demux, "10.0.0.2:80"), Some(4));
        assert_eq!(listener(&demux, "[2001:db8::1]:80"), Some(6));
    }

    #[test]
    fn listeners_that_all_allow_it_share_an_address_and_each_peer_finds_one() {
        let mut demux = demux();
        let shared = BindAddr {
            reuse_port: true,
            ..addr("10.0.0.2:80").into()
        };
        assert_eq!(demux.listen(shared, 1), Ok(()));
        assert_eq!(listen(&mut demux, "10.0.0.2:80", 9), Err(AddrInUse));
        for slot in 2..=4 {
            assert_eq!(demux.listen(shared, slot), Ok(()));
        }
        let mut found = [0; 5];
        for port in 1000..2000 {
            let peer = tuple(&format!("10.0.0.9:{port}"), "10.0.0.2:80");
            let slot = demux.listener(&peer).unwrap();
            assert_eq!(demux.listener(&peer), Some(slot));
            found[slot as usize] += 1;
        }
        assert!(found[1..].iter().all(|count| *count > 150), "{found:?}");
    }

    #[test]
    fn a_port_is_in_use_where_a_connection_has_it() {
        let mut demux = demux();
        let in_use = |demux: &Demux, text: &str| demux.is_port_in_use(&addr(text).into());
        let (first, second) = (
            tuple("10.0.0.1:9", "10.0.0.2:80"),
            tuple("10.0.0.1:10", "10.0.0.2:80"),
        );
        demux.insert(first, 3).unwrap();
        demux.insert(second, 4).unwrap();
        demux.remove(&first);
        demux.remove(&first);
        for (text, expected) in [
            ("10.0.0.2:80", true),
            ("0.0.0.0:80", true),
            ("[::]:80", true),
            ("10.0.0.3:80", false),
            ("10.0.0.2:81", false),
            ("[2001:db8::1]:80", false),
        ] {
            assert_eq!(in_use(&demux, text), expected, "{text}");
        }
        demux.remove(&second);
        assert!(!in_use(&demux, "0.0.0.0:80") && demux.ports.is_empty());
    }
}
