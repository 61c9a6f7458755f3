//! The ticket of a listener: what the other side needs to connect, in 128 bytes.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::error::SAME_RELEASE;
use crate::record::VERSION;
use crate::remedy::Remedy;

/// Bytes of a ticket: those of an NCCL connection handle (`NCCL_NET_HANDLE_MAXSIZE`).
pub const TICKET_BYTES: usize = 128;

const MAGIC: [u8; 8] = *b"devmemXT";

/// Tells another process how to connect to a [`Listener`](crate::Listener). It is plain data: send its bytes by any means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    pub(crate) cookie: u64,
    pub(crate) control: SocketAddr,
    pub(crate) data: SocketAddr,
}

#[derive(FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct RawAddress {
    /// An IPv4 address is mapped into IPv6.
    ip: [u8; 16],
    port: U16,
}

#[derive(FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    magic: [u8; 8],
    version: U32,
    cookie: U64,
    control: RawAddress,
    data: RawAddress,
    zero: [u8; 72],
}

const _: () = assert!(size_of::<Raw>() == TICKET_BYTES);

/// Bytes that are not a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTicket {
    /// They do not begin as a ticket does.
    #[error("the bytes are no ticket of an exchange listener")]
    Magic,
    /// A ticket of another release.
    #[error("the ticket has version {0}, this side version {VERSION}")]
    Version(u32),
}

impl BadTicket {
    /// Returns what helps.
    pub fn remedy(self) -> Remedy {
        match self {
            Self::Magic => Remedy::WholeTicket,
            Self::Version(_) => SAME_RELEASE.into(),
        }
    }
}

impl Ticket {
    /// Returns the bytes to send to the other process.
    pub fn to_bytes(&self) -> [u8; TICKET_BYTES] {
        let raw = Raw {
            magic: MAGIC,
            version: VERSION.into(),
            cookie: self.cookie.into(),
            control: self.control.into(),
            data: self.data.into(),
            zero: [0; 72],
        };
        zerocopy::transmute!(raw)
    }

    /// Reads a ticket.
    ///
    /// # Errors
    /// [`BadTicket`] if another program wrote the bytes, or another version of this library.
    pub fn from_bytes(bytes: &[u8; TICKET_BYTES]) -> Result<Self, BadTicket> {
        let raw: Raw = zerocopy::transmute!(*bytes);
        if raw.magic != MAGIC {
            return Err(BadTicket::Magic);
        }
        if raw.version.get() != VERSION {
            return Err(BadTicket::Version(raw.version.get()));
        }
        Ok(Self {
            cookie: raw.cookie.get(),
            control: raw.control.into(),
            data: raw.data.into(),
        })
    }
}

impl From<SocketAddr> for RawAddress {
    fn from(address: SocketAddr) -> Self {
        let ip = match address.ip() {
            IpAddr::V4(ip) => ip.to_ipv6_mapped(),
            IpAddr::V6(ip) => ip,
        };
        Self {
            ip: ip.octets(),
            port: address.port().into(),
        }
    }
}

impl From<RawAddress> for SocketAddr {
    fn from(raw: RawAddress) -> Self {
        Self::new(Ipv6Addr::from(raw.ip).to_canonical(), raw.port.get())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_survives_as_bytes() {
        for (control, data) in [
            ("10.77.0.2:4000", "10.77.0.2:4001"),
            ("[fd77::2]:4000", "[fd77::2]:4001"),
        ] {
            let ticket = Ticket {
                cookie: 0x0123_4567_89ab_cdef,
                control: control.parse().unwrap(),
                data: data.parse().unwrap(),
            };
            assert_eq!(Ticket::from_bytes(&ticket.to_bytes()), Ok(ticket));
        }
    }

    #[test]
    fn other_bytes_are_refused() {
        assert_eq!(Ticket::from_bytes(&[0; 128]), Err(BadTicket::Magic));
        let mut bytes = Ticket {
            cookie: 1,
            control: "10.77.0.2:4000".parse().unwrap(),
            data: "10.77.0.2:4001".parse().unwrap(),
        }
        .to_bytes();
        bytes[8] = 9;
        assert_eq!(Ticket::from_bytes(&bytes), Err(BadTicket::Version(9)));
    }
}
