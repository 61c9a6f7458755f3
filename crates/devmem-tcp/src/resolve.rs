//! Names of hosts, and the order in which their addresses are tried.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
#[cfg(feature = "tokio")]
use std::time::Duration;

use crate::error::Error;

/// Most addresses of one name that are tried: a resolver may return thousands.
const MAX_ADDRESSES: usize = 16;

/// Time after which the next address is tried beside those before (RFC 8305 8, "Connection Attempt Delay").
#[cfg(feature = "tokio")]
pub(crate) const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Returns the first address, for what can use only one.
pub(crate) fn resolve(address: impl ToSocketAddrs) -> io::Result<SocketAddr> {
    address.to_socket_addrs()?.next().ok_or_else(nothing)
}

fn nothing() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the name has no address")
}

/// The error for a name without an address.
pub(crate) fn no_address() -> Error {
    not_an_address(nothing())
}

/// The error for a text that cannot be resolved.
pub(crate) fn not_an_address(error: io::Error) -> Error {
    Error::of_io(format!("not an address: {error}"), &error)
        .with_remedy("write it as 10.77.0.2:5201 or [fd77::2]:5201")
}

/// Calls `connect` for each address of `to` in the order of the resolver, until one succeeds.
///
/// # Errors
/// The error of the last one; the name cannot be resolved.
pub(crate) fn each_in_turn<T>(
    to: impl ToSocketAddrs,
    mut connect: impl FnMut(SocketAddr) -> Result<T, Error>,
) -> Result<T, Error> {
    let found = to.to_socket_addrs().map_err(not_an_address)?;
    let mut failed = None;
    for address in found.take(MAX_ADDRESSES) {
        match connect(address) {
            Ok(connected) => return Ok(connected),
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.unwrap_or_else(no_address))
}

/// Returns the addresses with the two families in turn, that of the first one first (RFC 8305 4).
#[cfg(feature = "tokio")]
pub(crate) fn in_turns(found: impl IntoIterator<Item = SocketAddr>) -> Vec<SocketAddr> {
    let mut found: Vec<_> = found.into_iter().take(MAX_ADDRESSES).collect();
    let is_v6 = found.first().is_some_and(SocketAddr::is_ipv6);
    let mut of_family = [0; 2];
    found.sort_by_cached_key(|address| {
        let is_second = address.is_ipv6() != is_v6;
        let turn = &mut of_family[usize::from(is_second)];
        *turn += 1;
        (*turn, is_second)
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        let address = |text: &&str| text.parse().expect(text);
        texts.iter().map(address).collect()
    }

    #[cfg(feature = "tokio")]
    #[test]
    fn the_families_of_addresses_take_turns() {
        let found = addresses(&["[::1]:1", "[::2]:1", "[::3]:1", "10.0.0.1:1", "10.0.0.2:1"]);
        let expected = addresses(&["[::1]:1", "10.0.0.1:1", "[::2]:1", "10.0.0.2:1", "[::3]:1"]);
        assert_eq!(in_turns(found), expected);
        let one = addresses(&["10.0.0.1:1"]);
        assert_eq!(in_turns(one.clone()), one);
        assert_eq!(in_turns([]), []);
    }

    #[test]
    fn each_address_is_tried_until_one_succeeds() {
        let found = addresses(&["10.0.0.1:1", "10.0.0.2:2", "10.0.0.3:3"]);
        let mut tried = Vec::new();
        let connected = each_in_turn(&found[..], |to| {
            tried.push(to);
            match to.port() {
                2 => Ok(to.port()),
                _ => Err(Error::no_answer()),
            }
        });
        assert_eq!((connected.ok(), tried), (Some(2), found[..2].to_vec()));
        let none = each_in_turn(&found[..], |_| Err::<(), _>(Error::no_answer()));
        assert_eq!(none.unwrap_err().kind(), ErrorKind::TimedOut);
        let empty = each_in_turn(&[][..], |_| Ok(()));
        assert_eq!(empty.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}
