//! Options of a link, which follow it as text, each after a comma.

use std::fmt;
use std::ops::RangeInclusive;

use devmem_uapi::text::Printable;

use super::kind::LinkKind;
use super::mode::MacvtapMode;
use super::prefix::Prefix;
use crate::error::Error;

/// The option of a UNIX wire with which the other end may read the send queues.
const SHARE_SEND: &str = "share=send";

/// What a link's text says about the NIC; the methods of a builder say the same.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct LinkOptions {
    /// Addresses of the kernel's end of a TAP.
    pub(crate) peers: Vec<Prefix>,
    pub(crate) mac: Option<[u8; 6]>,
    /// The TCP ports of a NIC that shares the addresses of an interface.
    pub(crate) ports: Option<RangeInclusive<u16>>,
    pub(crate) mode: Option<MacvtapMode>,
    /// The other end of a UNIX wire may read the send queues.
    pub(crate) shares_send_memory: bool,
}

/// Splits a link from the options that follow it after a comma, if there are any. A path may contain commas, so that a UNIX wire has
/// an option only if the text ends as one; the name of an in-memory wire may, too.
pub(super) fn split(text: &str) -> (&str, Option<&str>) {
    let is_one_of = |kinds: &[&str]| kinds.iter().any(|kind| text.starts_with(kind));
    let found = if is_one_of(&["unix:", "unix-listen:"]) {
        let last = text.rsplit_once(',');
        last.filter(|(_, option)| *option == SHARE_SEND)
    } else {
        let first = text.split_once(',');
        first.filter(|_| is_one_of(&["tap:", "packet:", "macvtap:"]))
    };
    found.map_or((text, None), |(link, options)| (link, Some(options)))
}

impl LinkOptions {
    /// Parses the options of a link of this kind.
    pub(super) fn parse(kind: &LinkKind, text: &str) -> Result<Self, Error> {
        let mut options = Self::default();
        text.split(',')
            .try_for_each(|option| options.set(kind, option))?;
        Ok(options)
    }

    /// Sets one of them. Whether the link has ports or a mode is checked when it is opened, where a builder may have set them, too.
    fn set(&mut self, kind: &LinkKind, text: &str) -> Result<(), Error> {
        let is_unix = matches!(kind, LinkKind::Unix(_) | LinkKind::UnixListen(_));
        match (kind, text.split_once('=')) {
            _ if is_unix && text == SHARE_SEND => self.shares_send_memory = true,
            (_, Some(("mac", mac))) => self.mac = Some(parse_mac(mac)?),
            (_, Some(("ports", ports))) => self.ports = Some(parse_ports(ports)?),
            (_, Some(("mode", mode))) => self.mode = Some(MacvtapMode::parse(mode)?),
            (LinkKind::Tap(_), _) => self.peers.push(text.parse()?),
            _ => {
                let reason = format!("'{}' is not an option of {kind}", Printable(text));
                let remedy = "write packet:eth0,mac=02:00:00:00:00:02, packet:eth0,ports=5201-5210 or macvtap:eth0,mode=private";
                return Err(Error::invalid(reason).with_remedy(remedy));
            }
        }
        Ok(())
    }
}

/// Writes the options as text, each after a comma.
impl fmt::Display for LinkOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            peers,
            mac,
            ports,
            mode,
            shares_send_memory,
        } = self;
        for peer in peers {
            write!(f, ",{peer}")?;
        }
        if let Some([a, b, c, d, e, last]) = mac {
            write!(f, ",mac={a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{last:02x}")?;
        }
        if let Some(ports) = ports {
            write!(f, ",ports={}-{}", ports.start(), ports.end())?;
        }
        if let Some(mode) = mode {
            write!(f, ",mode={mode}")?;
        }
        match shares_send_memory {
            true => write!(f, ",{SHARE_SEND}"),
            false => Ok(()),
        }
    }
}

/// Parses a MAC address: six bytes in hexadecimal, with colons between them.
fn parse_mac(text: &str) -> Result<[u8; 6], Error> {
    let byte = |part: &str| match part.len() {
        1 | 2 if part.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            u8::from_str_radix(part, 16).ok()
        }
        _ => None,
    };
    let bytes: Option<Vec<u8>> = text.split(':').map(byte).collect();
    let mac = bytes.and_then(|bytes| bytes.try_into().ok());
    mac.ok_or_else(|| {
        Error::invalid(format!("'{}' is not a MAC address", Printable(text)))
            .with_remedy("write it as 02:00:00:00:00:02")
    })
}

/// Parses a range of ports: one number, or two with a hyphen between them, the lower one first.
fn parse_ports(text: &str) -> Result<RangeInclusive<u16>, Error> {
    let shown = Printable(text);
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (reason, remedy) = match (first.parse::<u16>(), last.parse::<u16>()) {
        (Ok(0), Ok(_)) => (
            format!("'{shown}': port 0 is no port"),
            "write a range from 1 on, as 5201-5210".to_owned(),
        ),
        (Ok(first), Ok(last)) if first > last => (
            format!("'{shown}' is not a range of ports: its first port is above its last"),
            format!("write it as {last}-{first}"),
        ),
        (Ok(first), Ok(last)) => return Ok(first..=last),
        _ => (
            format!("'{shown}' is not a range of ports"),
            "write it as 5201-5210".to_owned(),
        ),
    };
    Err(Error::invalid(reason).with_remedy(remedy))
}

#[cfg(test)]
mod tests {
    use super::parse_mac;

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
            "+2:0:0:0:0:0",
            "002:0:0:0:0:0",
        ] {
            assert!(parse_mac(text).is_err(), "{text}");
        }
    }
}
