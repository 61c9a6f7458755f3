//! Socket addresses as bytes (linux include/uapi/linux/in.h `sockaddr_in`, in6.h `sockaddr_in6`).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use devmem_uapi::Errno;

use crate::abi::{AF_INET, AF_INET6, AF_UNSPEC};

/// Bytes of the family, with which every address begins.
pub(crate) const FAMILY_LEN: usize = 2;
/// Bytes of a `sockaddr_in`.
const IN_LEN: usize = 16;
/// Bytes of a `sockaddr_in6`.
pub const IN6_LEN: usize = 28;
/// Bytes of a `sockaddr_in6` without its scope, as RFC 2133 had it (linux `SIN6_LEN_RFC2133`).
const IN6_LEN_SHORT: usize = 24;

/// The family of a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// AF_INET.
    V4,
    /// AF_INET6; IPv4 addresses are mapped into it (RFC 4291 2.5.5.2).
    V6,
}

impl Family {
    /// Returns the family with this number.
    pub const fn from_domain(domain: i32) -> Option<Self> {
        match domain {
            2 => Some(Self::V4),
            10 => Some(Self::V6),
            _ => None,
        }
    }

    /// Returns its number.
    pub const fn domain(self) -> u16 {
        match self {
            Self::V4 => AF_INET,
            Self::V6 => AF_INET6,
        }
    }

    /// Returns the fewest bytes of an address.
    const fn shortest(self) -> usize {
        match self {
            Self::V4 => IN_LEN,
            Self::V6 => IN6_LEN_SHORT,
        }
    }

    /// Returns the address of "any".
    pub const fn unspecified(self) -> IpAddr {
        match self {
            Self::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Self::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        }
    }
}

/// Meaning of an address that a caller passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParsedAddress {
    /// An address; a mapped one is converted to IPv4.
    Address(SocketAddr),
    /// AF_UNSPEC: none.
    Unspec,
}

/// Parses the address that a caller passed for a socket of `family`.
///
/// # Errors
/// EINVAL if it is too short, EAFNOSUPPORT if it is of another family.
pub fn parse(bytes: &[u8], family: Family) -> Result<ParsedAddress, Errno> {
    let word = bytes.first_chunk::<2>().ok_or(Errno::EINVAL)?;
    let given = u16::from_ne_bytes(*word);
    if given == AF_UNSPEC {
        return Ok(ParsedAddress::Unspec);
    }
    if given != family.domain() {
        // Linux checks the length first.
        return Err(match bytes.len() < family.shortest() {
            true => Errno::EINVAL,
            false => Errno::EAFNOSUPPORT,
        });
    }
    let address = match family {
        Family::V4 => parse_v4(bytes),
        Family::V6 => parse_v6(bytes),
    };
    address.map(ParsedAddress::Address).ok_or(Errno::EINVAL)
}

fn parse_v4(bytes: &[u8]) -> Option<SocketAddr> {
    let bytes = bytes.get(..IN_LEN)?;
    let port = u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?);
    let ip: [u8; 4] = *bytes.get(4..)?.first_chunk()?;
    Some(SocketAddr::new(IpAddr::from(ip), port))
}

fn parse_v6(bytes: &[u8]) -> Option<SocketAddr> {
    if bytes.len() < IN6_LEN_SHORT {
        return None;
    }
    let port = u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?);
    let ip: [u8; 16] = *bytes.get(8..)?.first_chunk()?;
    Some(SocketAddr::new(Ipv6Addr::from(ip).to_canonical(), port))
}

/// Returns the bytes of `address` as a socket of `family` shows it.
pub fn emit(address: SocketAddr, family: Family) -> Vec<u8> {
    let ip = match (family, address.ip()) {
        (Family::V4, IpAddr::V4(ip)) => return emit_v4(ip, address.port()),
        (Family::V6, IpAddr::V4(ip)) if ip.is_unspecified() => Ipv6Addr::UNSPECIFIED,
        (Family::V6, IpAddr::V4(ip)) => ip.to_ipv6_mapped(),
        // An IPv4 socket has only IPv4 addresses; any other would be returned as sockaddr_in6.
        (_, IpAddr::V6(ip)) => ip,
    };
    emit_v6(SocketAddrV6::new(ip, address.port(), 0, 0))
}

fn emit_v4(ip: Ipv4Addr, port: u16) -> Vec<u8> {
    let mut bytes = vec![0; IN_LEN];
    bytes[..2].copy_from_slice(&AF_INET.to_ne_bytes());
    bytes[2..4].copy_from_slice(&port.to_be_bytes());
    bytes[4..8].copy_from_slice(&ip.octets());
    bytes
}

fn emit_v6(address: SocketAddrV6) -> Vec<u8> {
    let mut bytes = vec![0; IN6_LEN];
    bytes[..2].copy_from_slice(&AF_INET6.to_ne_bytes());
    bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
    bytes[8..24].copy_from_slice(&address.ip().octets());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_emitted_address_is_parsed_again() {
        for (text, family) in [
            ("192.0.2.1:80", Family::V4),
            ("[2001:db8::1]:80", Family::V6),
            ("192.0.2.1:80", Family::V6),
        ] {
            let bytes = emit(addr(text), family);
            assert_eq!(
                parse(&bytes, family),
                Ok(ParsedAddress::Address(addr(text))),
                "{text}"
            );
        }
    }

    #[test]
    fn an_ipv4_address_is_mapped_on_an_ipv6_socket() {
        let bytes = emit(addr("192.0.2.1:80"), Family::V6);
        assert_eq!(
            bytes[8..24],
            "::ffff:192.0.2.1".parse::<Ipv6Addr>().unwrap().octets()
        );
        assert_eq!(bytes.len(), IN6_LEN);
    }

    #[test]
    fn short_addresses_and_other_families_are_refused_as_in_linux() {
        let v4 = emit(addr("192.0.2.1:80"), Family::V4);
        let v6 = emit(addr("[2001:db8::1]:80"), Family::V6);
        assert_eq!(parse(&v4[..15], Family::V4), Err(Errno::EINVAL));
        assert_eq!(parse(&v6[..23], Family::V6), Err(Errno::EINVAL));
        assert!(parse(&v6[..24], Family::V6).is_ok());
        assert_eq!(parse(&[], Family::V4), Err(Errno::EINVAL));
        assert_eq!(parse(&v4, Family::V6), Err(Errno::EINVAL));
        let long = [&v4[..], &[0; 8]].concat();
        assert_eq!(parse(&long, Family::V6), Err(Errno::EAFNOSUPPORT));
        assert_eq!(parse(&v6, Family::V4), Err(Errno::EAFNOSUPPORT));
        assert_eq!(parse(&[0, 0], Family::V4), Ok(ParsedAddress::Unspec));
    }
}
