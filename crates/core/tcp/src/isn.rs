//! Initial sequence numbers that an attacker off the path cannot guess (RFC 6528).

use core::hash::Hasher;
use core::net::{IpAddr, SocketAddr};

use siphasher::sip::SipHasher24;
use wire::Instant;

use crate::seqnum::SeqNum;

/// Nanoseconds per tick of RFC 6528's clock M: 4 microseconds.
const TICK_NS: u64 = 4_000;

/// Addresses and ports of both ends of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoints {
    /// This side.
    pub local: SocketAddr,
    /// The peer.
    pub remote: SocketAddr,
}

/// Chooses initial sequence numbers and timestamp offsets from a secret and the endpoints of a connection.
///
/// The ISNs of one pair of endpoints grow with the clock, so that a new connection does not accept segments of the previous
/// one. They reveal nothing about the ISNs of other endpoints.
#[derive(Debug, Clone)]
pub struct IsnGenerator {
    key: SecretKey,
}

impl IsnGenerator {
    /// Returns a generator with this secret, which must be random and stay the same while the
    /// stack runs.
    #[must_use]
    pub fn new(key: [u8; 16]) -> IsnGenerator {
        IsnGenerator {
            key: SecretKey::new(key),
        }
    }

    /// Returns the ISN of a connection that opens at `now`: M + F(endpoints, key).
    #[must_use]
    pub fn isn(&self, endpoints: &Endpoints, now: Instant) -> SeqNum {
        let clock = (now.as_nanos() / TICK_NS) as u32;
        SeqNum(clock.wrapping_add(self.key.hash(endpoints, Purpose::Isn) as u32))
    }

    /// Returns the offset for `Config::timestamp_offset` (RFC 7323 5.4; linux `secure_tcp_ts_off`).
    ///
    /// It depends on secret and endpoints only: the timestamps of successive connections between the same endpoints grow,
    /// which RFC 6191 needs to end TIME-WAIT early.
    #[must_use]
    pub fn timestamp_offset(&self, endpoints: &Endpoints) -> u32 {
        self.key.hash(endpoints, Purpose::TimestampOffset) as u32
    }
}

/// Purpose of a keyed hash, part of its input: each purpose gets different numbers from the same secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Isn,
    TimestampOffset,
    CookieBase,
    Cookie { irs: SeqNum, count: u32 },
}

/// A SipHash-2-4 key.
#[derive(Clone)]
pub(crate) struct SecretKey {
    words: (u64, u64),
}

impl SecretKey {
    pub(crate) fn new(key: [u8; 16]) -> SecretKey {
        let key = u128::from_le_bytes(key);
        SecretKey {
            words: (key as u64, (key >> 64) as u64),
        }
    }

    pub(crate) fn hash(&self, endpoints: &Endpoints, purpose: Purpose) -> u64 {
        let mut hasher = SipHasher24::new_with_keys(self.words.0, self.words.1);
        for end in [endpoints.local, endpoints.remote] {
            match end.ip() {
                IpAddr::V4(ip) => hasher.write(&ip.octets()),
                IpAddr::V6(ip) => hasher.write(&ip.octets()),
            }
            hasher.write(&end.port().to_le_bytes());
        }
        let (tag, irs, count) = match purpose {
            Purpose::Isn => (0, 0, 0),
            Purpose::TimestampOffset => (1, 0, 0),
            Purpose::CookieBase => (2, 0, 0),
            Purpose::Cookie { irs, count } => (3, irs.0, count),
        };
        hasher.write(&[tag]);
        hasher.write(&irs.to_le_bytes());
        hasher.write(&count.to_le_bytes());
        hasher.finish()
    }
}

impl core::fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("SecretKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;
    use crate::test_config::endpoints;

    #[test]
    fn isns_of_one_connection_grow_with_the_clock() {
        let isns = IsnGenerator::new([7; 16]);
        let first = isns.isn(&endpoints(1), Instant::ZERO);
        assert_eq!(isns.isn(&endpoints(1), Instant::from_nanos(3_999)), first);
        assert_eq!(
            isns.isn(&endpoints(1), Instant::from_nanos(4_000)),
            first + 1
        );
        assert_eq!(
            isns.isn(&endpoints(1), Instant::ZERO + Duration::from_secs(1)),
            first + 250_000
        );
    }

    #[test]
    fn endpoints_direction_key_and_purpose_each_change_the_number() {
        let isns = IsnGenerator::new([7; 16]);
        let isn = isns.isn(&endpoints(1), Instant::ZERO);
        let turned = Endpoints {
            local: endpoints(1).remote,
            remote: endpoints(1).local,
        };
        assert_ne!(isn, isns.isn(&endpoints(2), Instant::ZERO));
        assert_ne!(isn, isns.isn(&turned, Instant::ZERO));
        assert_ne!(
            isn,
            IsnGenerator::new([8; 16]).isn(&endpoints(1), Instant::ZERO)
        );
        assert_ne!(isn.0, isns.timestamp_offset(&endpoints(1)));
    }

    #[test]
    fn the_secret_is_not_printed() {
        assert_eq!(
            format!("{:?}", IsnGenerator::new([7; 16])),
            "IsnGenerator { key: SecretKey(..) }"
        );
    }
}
