//! Router advertisements (RFC 4861 4.2, 4.6.2): what a host takes from them.

use std::net::Ipv6Addr;

use crate::offer::UnusableAdvertisement;

/// Length of the prefixes: the rest of an address is an EUI-64.
pub(crate) const PREFIX_LEN: u8 = 64;
/// Most options of an advertisement that are looked at.
const MAX_OPTIONS: usize = 64;
/// Most prefixes that are taken from one.
const MAX_PREFIXES: usize = 16;

/// A router advertisement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Advertisement {
    /// Seconds for which the router is a default router; 0 if it is none.
    pub(crate) lifetime: u16,
    /// The prefixes for addresses.
    pub(crate) prefixes: Vec<Prefix>,
    /// Why there is no address to be made, if there is none.
    pub(crate) unusable: Option<UnusableAdvertisement>,
}

/// A prefix for addresses, with its lifetimes in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Prefix {
    /// The first 64 bits of addresses.
    pub(crate) bits: u64,
    pub(crate) is_on_link: bool,
    pub(crate) valid: u32,
    pub(crate) preferred: u32,
}

impl Advertisement {
    /// Type of the message (RFC 4861 4.2).
    pub(crate) const KIND: u8 = 134;

    /// Parses a message of this type; `None` if it is malformed.
    pub(crate) fn parse(message: &[u8]) -> Option<Self> {
        const OPTIONS: usize = 16;
        const MANAGED: u8 = 0x80;
        let flags = *message.get(5)?;
        let lifetime = u16::from_be_bytes(*message.get(6..)?.first_chunk()?);
        let mut unusable = match flags & MANAGED {
            0 => UnusableAdvertisement::NoPrefix,
            _ => UnusableAdvertisement::Managed,
        };
        let mut prefixes = Vec::new();
        let mut rest = message.get(OPTIONS..)?;
        for _ in 0..MAX_OPTIONS {
            let [kind, units, ..] = *rest else {
                break;
            };
            if units == 0 {
                return None;
            }
            let (option, after) = rest.split_at_checked(usize::from(units) * 8)?;
            if (kind, units) == (3, 4) && prefixes.len() < MAX_PREFIXES {
                match Prefix::parse(option)? {
                    Ok(prefix) => prefixes.push(prefix),
                    Err(Some(why)) => unusable = why,
                    Err(None) => {}
                }
            }
            rest = after;
        }
        if !prefixes.is_empty() {
            unusable = UnusableAdvertisement::Dead;
        }
        let has_live = prefixes.iter().any(|prefix| prefix.valid > 0);
        Some(Self {
            lifetime,
            prefixes,
            unusable: (!has_live).then_some(unusable),
        })
    }
}

impl Prefix {
    /// Parses an option (RFC 4861 4.6.2); `None` if it is cut short. An error if it is not usable for addresses (RFC 4862 5.5.3 a to
    /// d), with the reason if it is meant for them.
    fn parse(option: &[u8]) -> Option<Result<Self, Option<UnusableAdvertisement>>> {
        const ON_LINK: u8 = 0x80;
        const FOR_ADDRESSES: u8 = 0x40;
        let number = |at: usize| Some(u32::from_be_bytes(*option.get(at..)?.first_chunk()?));
        let (len, flags) = (*option.get(2)?, *option.get(3)?);
        let (valid, preferred) = (number(4)?, number(8)?);
        let bits = u64::from_be_bytes(*option.get(16..)?.first_chunk()?);
        let first = Ipv6Addr::from_bits(u128::from(bits) << 64);
        // The first 64 bits of ::, ::1 and addresses with IPv4 ones in them are 0.
        let is_special = first.is_unicast_link_local() || first.is_multicast() || bits == 0;
        Some(if flags & FOR_ADDRESSES == 0 {
            Err(None)
        } else if len != PREFIX_LEN {
            Err(Some(UnusableAdvertisement::Length(len)))
        } else if is_special || preferred > valid {
            Err(Some(UnusableAdvertisement::Malformed))
        } else {
            Ok(Self {
                bits,
                is_on_link: flags & ON_LINK != 0,
                valid,
                preferred,
            })
        })
    }
}
