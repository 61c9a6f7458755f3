//! Local ports: those that this stack has, and the choice of one for an outgoing connection by RFC 6056 3.3.4, the double-hash
//! algorithm.
//!
//! A keyed hash of the addresses and the remote port determines where the search for a free port begins, so
//! that attackers cannot guess the next port. A second hash chooses one of several counters: two connections
//! to the same peer begin at different ports, and a peer learns nothing about connections to others.

use std::hash::{BuildHasher, Hash, Hasher};
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use crate::random::KeyedState;

/// First port of the dynamic range (RFC 6335 6).
pub const EPHEMERAL_FIRST: u16 = 49_152;

/// The local ports of a stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LocalPorts {
    /// All ports. It chooses those of the dynamic range.
    #[default]
    All,
    /// Only the ports from `first` to `last`; all others at the same addresses belong to another stack.
    Range {
        /// The first port, not 0.
        first: u16,
        /// The last port.
        last: u16,
    },
}

impl LocalPorts {
    /// Returns whether a program may use `port`.
    pub(crate) fn contains(self, port: u16) -> bool {
        match self {
            Self::All => true,
            Self::Range { first, last } => (first..=last).contains(&port),
        }
    }

    /// Returns the ports that the stack chooses from.
    pub(crate) fn to_choose(self) -> RangeInclusive<u16> {
        match self {
            Self::All => EPHEMERAL_FIRST..=u16::MAX,
            Self::Range { first, last } => first..=last,
        }
    }
}

/// Number of counters. RFC 6056 3.3.4 suggests ten or more; a power of two avoids a division.
const COUNTERS: usize = 64;

/// Chooses local ports.
pub(crate) struct EphemeralPorts {
    offset_key: KeyedState,
    counter_key: KeyedState,
    counters: [u16; COUNTERS],
    range: RangeInclusive<u16>,
}

impl EphemeralPorts {
    pub(crate) fn new(
        offset_key: [u8; 16],
        counter_key: [u8; 16],
        range: RangeInclusive<u16>,
    ) -> Self {
        Self {
            offset_key: KeyedState::new(offset_key),
            counter_key: KeyedState::new(counter_key),
            counters: [0; COUNTERS],
            range,
        }
    }

    /// Returns the port at which a search for a port to listen on begins: a different one each time.
    pub(crate) fn begin(&mut self, local: IpAddr) -> u16 {
        let nowhere = SocketAddr::new(local, 0);
        // The closure accepts every port, so there is always one.
        self.choose(local, nowhere, |_| true)
            .unwrap_or(*self.range.start())
    }

    /// Returns a port for a connection from `local` to `remote` for which `is_free` returns true; `None` if there is
    /// none.
    pub(crate) fn choose(
        &mut self,
        local: IpAddr,
        remote: SocketAddr,
        is_free: impl Fn(u16) -> bool,
    ) -> Option<u16> {
        let count = self.range.len() as u32;
        let offset = (hash(&self.offset_key, local, remote) as u32).checked_rem(count)?;
        let counter =
            &mut self.counters[hash(&self.counter_key, local, remote) as usize % COUNTERS];
        let first = *self.range.start();
        (0..count).find_map(|_| {
            let step = (offset + u32::from(*counter)) % count;
            *counter = counter.wrapping_add(1);
            // Less than the length of the range, which ends at 65,535 or before.
            let port = first + step as u16;
            is_free(port).then_some(port)
        })
    }
}

fn hash(key: &KeyedState, local: IpAddr, remote: SocketAddr) -> u64 {
    let mut hasher = key.build_hasher();
    local.hash(&mut hasher);
    remote.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn ports(seed: u8) -> EphemeralPorts {
        EphemeralPorts::new([seed; 16], [seed ^ 0xff; 16], LocalPorts::All.to_choose())
    }

    fn addresses() -> (IpAddr, SocketAddr) {
        (
            "10.0.0.1".parse().unwrap(),
            "10.0.0.2:5201".parse().unwrap(),
        )
    }

    #[test]
    fn connections_to_one_place_take_every_port_once_before_any_twice() {
        let (local, remote) = addresses();
        let mut ports = ports(1);
        let mut taken = BTreeSet::new();
        for _ in EPHEMERAL_FIRST..=u16::MAX {
            let port = ports
                .choose(local, remote, |port| !taken.contains(&port))
                .unwrap();
            assert!(port >= EPHEMERAL_FIRST && taken.insert(port));
        }
        assert_eq!(
            ports.choose(local, remote, |port| !taken.contains(&port)),
            None
        );
    }

    #[test]
    fn a_range_is_used_whole_and_not_left() {
        let (local, remote) = addresses();
        let range = LocalPorts::Range {
            first: 65_500,
            last: 65_535,
        };
        let mut ports = EphemeralPorts::new([1; 16], [2; 16], range.to_choose());
        let mut taken = BTreeSet::new();
        while let Some(port) = ports.choose(local, remote, |port| !taken.contains(&port)) {
            assert!(range.contains(port) && taken.insert(port));
        }
        assert_eq!(taken.len(), 36);
        assert!(!range.contains(65_499) && LocalPorts::All.contains(1));
    }

    #[test]
    fn the_first_port_depends_on_the_key_and_on_the_place() {
        let (local, remote) = addresses();
        let first: BTreeSet<_> = (0..16)
            .map(|seed| ports(seed).choose(local, remote, |_| true))
            .collect();
        assert!(first.len() > 12, "{first:?}");
        let elsewhere: BTreeSet<_> = (1..17)
            .map(|port| ports(1).choose(local, SocketAddr::new(remote.ip(), port), |_| true))
            .collect();
        assert!(elsewhere.len() > 12, "{elsewhere:?}");
    }
}
