//! Path MTUs below the link's MTU (RFC 1191 6.2, RFC 8201 5.2).
//!
//! A connection discovers the MTU of its path; later connections to the same peer begin with the result.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use wire::Instant;

/// Lifetime of an entry (linux `ip_rt_mtu_expires`).
const ENTRY_LIFETIME: Duration = Duration::from_secs(600);

/// Maximum number of entries. Peers create entries, and so do attackers that can forge ICMP for an existing connection.
const MAX_PATHS: usize = 1024;

/// What is known about a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PathMtu {
    /// Maximum segment size.
    pub(crate) mss: u16,
    /// Some links of the path carry less: routers fragment the packets, which must have DF clear.
    pub(crate) routers_fragment: bool,
}

/// Paths by peer, each with the time of the entry.
type Known = HashMap<IpAddr, (PathMtu, Instant)>;

/// The path MTUs that the connections of a NIC have discovered. Clones share them: the shards of a NIC do.
///
/// The lock is taken when a connection begins, and when one discovers a path MTU, not per packet. No other lock is taken while
/// it is held.
#[derive(Debug, Clone, Default)]
pub struct PathMtus {
    known: Arc<Mutex<Known>>,
}

impl PathMtus {
    /// A map is consistent between any two operations, so poisoning by a panic can be ignored.
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes what was discovered about the path to `peer`.
    pub(crate) fn note(&self, peer: IpAddr, path: PathMtu, now: Instant) {
        let mut known = self.known();
        if known.len() >= MAX_PATHS && !known.contains_key(&peer) {
            known.retain(|_, (_, told)| now.saturating_since(*told) < ENTRY_LIFETIME);
            if known.len() >= MAX_PATHS {
                return;
            }
        }
        known.insert(peer, (path, now));
    }

    /// Returns what is known about the path to `peer`, if there is an entry.
    pub(crate) fn get(&self, peer: IpAddr, now: Instant) -> Option<PathMtu> {
        let (path, told) = *self.known().get(&peer)?;
        (now.saturating_since(told) < ENTRY_LIFETIME).then_some(path)
    }
}

/// Bytes of IP and TCP header without options, over IPv4.
const HEADERS_V4: u16 = 40;
/// Bytes of IP and TCP header without options, over IPv6.
const HEADERS_V6: u16 = 60;

/// Returns the bytes of IP and TCP header without options.
pub(crate) fn headers_for(peer: IpAddr) -> u16 {
    if peer.is_ipv4() {
        HEADERS_V4
    } else {
        HEADERS_V6
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn path(mss: u16) -> PathMtu {
        PathMtu {
            mss,
            routers_fragment: mss == 512,
        }
    }

    #[test]
    fn shards_that_share_the_paths_begin_with_what_one_has_discovered() {
        let one = PathMtus::default();
        let other = one.clone();
        let (peer, now) = (IpAddr::from([10, 0, 0, 1]), Instant::from_millis(1));
        one.note(peer, path(512), now);
        assert_eq!(other.get(peer, now), Some(path(512)));
    }

    #[test]
    fn a_path_is_remembered_for_ten_minutes_and_memory_is_bounded() {
        let paths = PathMtus::default();
        let peer = |n: u32| IpAddr::from(n.to_be_bytes());
        let at = |secs: u64| Instant::from_millis(secs * 1000);
        paths.note(peer(1), path(1160), at(5));
        assert_eq!(paths.get(peer(1), at(604)), Some(path(1160)));
        assert_eq!(paths.get(peer(1), at(605)), None);
        assert_eq!(paths.get(peer(2), at(6)), None);
        (0..5000).for_each(|n| paths.note(peer(n), path(500), at(600)));
        assert_eq!(paths.known().len(), MAX_PATHS);
        paths.note(peer(9000), path(600), at(1300));
        assert_eq!(paths.known().len(), 1, "the old ones made room");
    }
}
