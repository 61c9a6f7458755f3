//! An address and the network that it is in.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use devmem_uapi::text::Printable;

use crate::error::Error;

/// The address of one host, with the length of the prefix of its network: `10.77.0.2/24`, `fd77::2/64`.
///
/// ```
/// use devmem_tcp::link::Prefix;
///
/// let ours: Prefix = "10.77.0.2/24".parse()?;
/// ours.check_router("10.77.0.1".parse()?)?;
/// assert!("10.77.0.0/24".parse::<Prefix>().is_err(), "the address of the network");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Prefix {
    address: IpAddr,
    len: u8,
}

impl Prefix {
    /// Returns an address in a network with a prefix of `len` bits.
    ///
    /// # Errors
    /// The prefix is longer than the address, or the address is not that of one host: that of the network, or its broadcast address, a
    /// multicast, loopback, unspecified or reserved one.
    pub fn new(address: IpAddr, len: u8) -> Result<Self, Error> {
        stack::check_address(address, len)?;
        Ok(Self { address, len })
    }

    /// Returns the address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns the length of the network's prefix in bits.
    #[expect(
        clippy::len_without_is_empty,
        reason = "a length in bits, of no container"
    )]
    pub fn len(&self) -> u8 {
        self.len
    }

    /// Checks that `router` can be the router of a NIC with this address, as [`NetdevBuilder::open`](crate::NetdevBuilder::open) does.
    ///
    /// # Errors
    /// It is not the address of one host, is that of the NIC, or is not on the link.
    pub fn check_router(&self, router: IpAddr) -> Result<(), Error> {
        Ok(stack::check_gateway(self.address, self.len, router)?)
    }
}

impl FromStr for Prefix {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let refuse = || {
            let shown = Printable(text);
            Error::invalid(format!("'{shown}' is not an address with a prefix length"))
                .with_remedy("write it as 10.77.0.2/24 or fd77::2/64")
        };
        let (address, len) = text.split_once('/').ok_or_else(refuse)?;
        let address: IpAddr = address.parse().map_err(|_| refuse())?;
        let len: u8 = len.parse().map_err(|_| refuse())?;
        Self::new(address, len)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_prefix_length_that_fits() {
        let parsed: Prefix = "10.77.0.2/24".parse().expect("valid");
        assert_eq!(
            (parsed.address().to_string(), parsed.len()),
            ("10.77.0.2".to_owned(), 24)
        );
        let alone: Prefix = "fd77::2/128".parse().expect("valid");
        assert_eq!(Prefix::new(alone.address(), 128).ok(), Some(alone));
        assert_eq!(alone.to_string(), "fd77::2/128");
        for text in [
            "10.77.0.2",
            "10.77.0.2/33",
            "fd77::/129",
            "/24",
            "10.77.0.2/",
            "10.77.0/24",
            "a/b",
            "10.77.0.255/24",
            "127.0.0.1/8",
        ] {
            assert!(text.parse::<Prefix>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_router_is_on_the_link() {
        let ours: Prefix = "10.77.0.2/24".parse().expect("valid");
        let check = |text: &str| ours.check_router(text.parse().expect(text));
        check("10.77.0.1").expect("a host of the network");
        for text in ["10.77.0.2", "10.77.0.255", "10.78.0.1", "224.0.0.1"] {
            assert!(check(text).is_err(), "{text}");
        }
    }
}
