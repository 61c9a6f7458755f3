//! Cookies: a keyed hash of the peer's address and ours (RFC 7413 4.1.2).

use core::hash::Hasher;
use core::net::IpAddr;

use siphasher::sip::SipHasher24;
use wire::FastOpenCookie;

use crate::isn::Endpoints;

/// The keys of a server's cookies. New cookies are made with the first; the second is the key before it, so that cookies
/// stay valid while the key changes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FastOpenKeys {
    primary: [u8; 16],
    backup: Option<[u8; 16]>,
}

/// The key that a cookie was made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyAge {
    Current,
    /// The peer should get a new cookie.
    Previous,
}

impl FastOpenKeys {
    /// Returns the keys.
    #[must_use]
    pub const fn new(primary: [u8; 16], backup: Option<[u8; 16]>) -> FastOpenKeys {
        FastOpenKeys { primary, backup }
    }

    /// Returns the key of new cookies.
    #[must_use]
    pub const fn primary(&self) -> [u8; 16] {
        self.primary
    }

    /// Returns the key before it, if there is one.
    #[must_use]
    pub const fn backup(&self) -> Option<[u8; 16]> {
        self.backup
    }

    /// Returns the peer's cookie.
    pub(super) fn cookie(&self, endpoints: &Endpoints) -> Option<FastOpenCookie> {
        cookie_of(self.primary, endpoints)
    }

    /// Returns which key made `cookie` for this peer, if one did.
    pub(super) fn check(&self, endpoints: &Endpoints, cookie: FastOpenCookie) -> Option<KeyAge> {
        if self.cookie(endpoints) == Some(cookie) {
            return Some(KeyAge::Current);
        }
        let backup = cookie_of(self.backup?, endpoints);
        (backup == Some(cookie)).then_some(KeyAge::Previous)
    }
}

impl core::fmt::Debug for FastOpenKeys {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("FastOpenKeys(..)")
    }
}

/// Returns SipHash-2-4 of the peer's address and ours, as linux `__tcp_fastopen_cookie_gen_cipher`.
fn cookie_of(key: [u8; 16], endpoints: &Endpoints) -> Option<FastOpenCookie> {
    let mut hasher = SipHasher24::new_with_key(&key);
    for end in [endpoints.remote, endpoints.local] {
        match end.ip() {
            IpAddr::V4(ip) => hasher.write(&ip.octets()),
            IpAddr::V6(ip) => hasher.write(&ip.octets()),
        }
    }
    FastOpenCookie::new(&hasher.finish().to_le_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints(host: u8) -> Endpoints {
        Endpoints {
            local: ([192, 168, 0, 1], 8080).into(),
            remote: ([192, 0, 2, host], 4000).into(),
        }
    }

    /// The key a1a1a1a1-b2b2b2b2-c3c3c3c3-d4d4d4d4.
    fn key() -> [u8; 16] {
        core::array::from_fn(|at| [0xa1, 0xb2, 0xc3, 0xd4][at / 4])
    }

    #[test]
    fn cookies_are_those_of_linux_with_the_same_key() {
        let cookie = |key| FastOpenKeys::new(key, None).cookie(&endpoints(1)).unwrap();
        let expected = [0x30, 0x21, 0xb9, 0xd8, 0x89, 0x01, 0x7e, 0xeb];
        assert_eq!(cookie(key()).as_bytes(), expected);
        let expected = [0xb7, 0xc1, 0x23, 0x50, 0xa9, 0x0d, 0xc8, 0xf5];
        assert_eq!(cookie([0; 16]).as_bytes(), expected);
    }

    #[test]
    fn a_cookie_is_valid_for_one_address_until_its_key_is_changed_twice() {
        let first = FastOpenKeys::new(key(), None);
        let cookie = first.cookie(&endpoints(1)).unwrap();
        assert_eq!(first.check(&endpoints(1), cookie), Some(KeyAge::Current));
        assert_eq!(first.check(&endpoints(2), cookie), None);
        let second = FastOpenKeys::new([1; 16], Some(key()));
        assert_eq!(second.check(&endpoints(1), cookie), Some(KeyAge::Previous));
        let third = FastOpenKeys::new([2; 16], Some([1; 16]));
        assert_eq!(third.check(&endpoints(1), cookie), None);
    }
}
