//! Why an offer of the network gives no address.

use std::fmt;
use std::net::Ipv4Addr;

use stack::AddressError;

/// An offer of a DHCP server that the client did not take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnusableOffer {
    /// The server as the offer names it.
    pub(crate) server: Option<Ipv4Addr>,
    pub(crate) address: Ipv4Addr,
    pub(crate) why: Unusable,
}

/// What an offer lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unusable {
    NoServer,
    BadServer(Ipv4Addr),
    /// The server lends its own address.
    OfServer,
    NoMask,
    BadMask(Ipv4Addr),
    NoHost(AddressError),
    NoTime,
    /// Of so many seconds.
    ShortTime(u32),
    /// This machine has the address.
    Own,
    /// Another station has it.
    InUse,
}

impl fmt::Display for UnusableOffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            server,
            address,
            why,
        } = self;
        match server {
            Some(server) => write!(f, "the DHCP server {server} offered {address}")?,
            None => write!(f, "a DHCP server offered {address}")?,
        }
        match why {
            Unusable::NoServer => f.write_str(" without its own address (option 54)"),
            Unusable::BadServer(server) => {
                write!(f, " as {server}, which no host can have (option 54)")
            }
            Unusable::OfServer => f.write_str(", its own address"),
            Unusable::NoMask => f.write_str(" without a subnet mask (option 1)"),
            Unusable::BadMask(mask) => {
                write!(f, " with the subnet mask {mask}, which is none (option 1)")
            }
            Unusable::NoHost(error) => {
                let text = error.to_string();
                let (reason, _) = text.split_once(';').unwrap_or((&text, ""));
                write!(f, ": {reason}")
            }
            Unusable::NoTime => f.write_str(" without a time (option 51)"),
            Unusable::ShortTime(seconds) => {
                write!(f, " for {seconds} s, too short to be renewed (option 51)")
            }
            Unusable::Own => f.write_str(", which this machine has itself"),
            Unusable::InUse => f.write_str(", which another station has"),
        }
    }
}

/// Why the advertisements of routers give no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnusableAdvertisement {
    /// There is no prefix for addresses, and hosts are told to use DHCPv6.
    Managed,
    /// There is no prefix for addresses.
    NoPrefix,
    /// The prefix has this length.
    Length(u8),
    /// No address of the prefix may be used any more.
    Dead,
    /// The prefix is that of special addresses, or is preferred for longer than it is valid.
    Malformed,
    /// Another station has the address.
    InUse,
}

impl fmt::Display for UnusableAdvertisement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Managed => f.write_str(
                "a router advertised no prefix for addresses, and hosts are to use DHCPv6, which is not supported",
            ),
            Self::NoPrefix => f.write_str("a router advertised no prefix for addresses"),
            Self::Length(len) => write!(
                f,
                "a router advertised a prefix of /{len}, and addresses are made of prefixes of /64"
            ),
            Self::Dead => f.write_str("a router advertised only prefixes that are not valid any more"),
            Self::Malformed => f.write_str("a router advertised a prefix that no address can have"),
            Self::InUse => {
                f.write_str("another station has the address of the prefix that a router advertised")
            }
        }
    }
}
