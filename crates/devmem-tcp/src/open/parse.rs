//! Texts of addresses and ports.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use devmem_uapi::text::Printable;

use crate::error::Error;

/// Parses an address with its prefix length.
pub(super) fn parse_prefix(text: &str) -> Result<(IpAddr, u8), Error> {
    let refuse = || {
        Error::invalid(format!(
            "'{}' is not an address with a prefix length",
            Printable(text)
        ))
        .with_remedy("write it as 10.77.0.2/24 or fd77::2/64")
    };
    let (address, prefix) = text.split_once('/').ok_or_else(refuse)?;
    let address: IpAddr = address.parse().map_err(|_| refuse())?;
    let prefix: u8 = prefix.parse().map_err(|_| refuse())?;
    let longest = if address.is_ipv6() { 128 } else { 32 };
    if prefix <= longest {
        Ok((address, prefix))
    } else {
        Err(refuse())
    }
}

/// Parses a MAC address: six bytes in hexadecimal, with colons between them.
pub(super) fn parse_mac(text: &str) -> Result<[u8; 6], Error> {
    let byte = |part: &str| match part.len() {
        1 | 2 => u8::from_str_radix(part, 16).ok(),
        _ => None,
    };
    let bytes: Option<Vec<u8>> = text.split(':').map(byte).collect();
    let mac = bytes.and_then(|bytes| bytes.try_into().ok());
    mac.ok_or_else(|| {
        let reason = format!("'{text}' is not a MAC address");
        Error::invalid(reason).with_remedy("write it as 02:00:00:00:00:02")
    })
}

/// Parses a range of ports: one number, or two with a hyphen between them, the lower one first.
pub(super) fn parse_ports(text: &str) -> Result<RangeInclusive<u16>, Error> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (reason, remedy) = match (first.parse::<u16>(), last.parse::<u16>()) {
        (Ok(0), Ok(_)) => (
            format!("'{text}': port 0 is no port"),
            "write a range from 1 on, as 5201-5210".to_owned(),
        ),
        (Ok(first), Ok(last)) if first > last => (
            format!("'{text}' is not a range of ports: its first port is above its last"),
            format!("write it as {last}-{first}"),
        ),
        (Ok(first), Ok(last)) => return Ok(first..=last),
        _ => (
            format!("'{text}' is not a range of ports"),
            "write it as 5201-5210".to_owned(),
        ),
    };
    let refusal = Error::invalid(reason);
    Err(refusal.with_remedy(remedy))
}

#[cfg(test)]
mod tests {
    use super::{parse_mac, parse_prefix};

    #[test]
    fn a_mac_address_has_six_bytes_in_hexadecimal() {
        let parsed = parse_mac("02:0:aB:00:00:2").expect("valid");
        assert_eq!(parsed, [2, 0, 0xab, 0, 0, 2]);
        for text in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:00:01",
            "02:00:00:00:00:g0",
            "+2:0:0:0:0:0x",
            "002:0:0:0:0:0",
        ] {
            assert!(parse_mac(text).is_err(), "{text}");
        }
    }

    #[test]
    fn addresses_have_a_prefix_length_that_fits() {
        assert_eq!(
            parse_prefix("10.77.0.2/24").expect("valid"),
            ("10.77.0.2".parse().expect("valid"), 24)
        );
        assert_eq!(parse_prefix("fd77::2/128").expect("valid").1, 128);
        for text in [
            "10.77.0.2",
            "10.77.0.2/33",
            "fd77::/129",
            "/24",
            "10.77.0.2/",
            "10.77.0/24",
            "a/b",
        ] {
            assert!(parse_prefix(text).is_err(), "{text}");
        }
    }
}
