//! The link of a user-space NIC, as text: `tap:NAME`, `packet:NAME`, `macvtap:NAME`, `unix:PATH`, `unix-listen:PATH` or
//! `mem:NAME`, with options after commas; and addresses on it.

mod kind;
mod mode;
mod options;
mod prefix;

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

pub use kind::LinkKind;
pub use mode::MacvtapMode;
pub(crate) use options::LinkOptions;
pub use prefix::Prefix;

use crate::error::Error;

/// The link of a user-space NIC, with its options.
///
/// [`LinkKind`] lists the links, and which options each of them has as text. `Display` writes the text that parses to it again.
///
/// ```
/// use devmem_tcp::LinkSpec;
/// use devmem_tcp::link::LinkKind;
///
/// let link: LinkSpec = "packet:eth0,ports=5201-5210".parse()?;
/// assert_eq!(link.kind(), &LinkKind::Packet("eth0".to_owned()));
/// assert_eq!(link.shared_ports(), Some(5201..=5210));
/// assert_eq!(LinkSpec::from(LinkKind::Tap("dm0".to_owned())).to_string(), "tap:dm0");
/// assert!("eth0".parse::<LinkSpec>().is_err());
/// # Ok::<(), devmem_tcp::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LinkSpec {
    pub(crate) kind: LinkKind,
    pub(crate) options: LinkOptions,
}

impl LinkSpec {
    /// Returns the link without its options.
    pub fn kind(&self) -> &LinkKind {
        &self.kind
    }

    /// Returns the TCP ports of a NIC that shares the addresses of an interface, if the text names some.
    pub fn shared_ports(&self) -> Option<RangeInclusive<u16>> {
        self.options.ports.clone()
    }

    /// Returns the addresses for the kernel's end of a TAP that the text names.
    pub fn peer_addresses(&self) -> &[Prefix] {
        &self.options.peers
    }
}

/// The link without options.
impl From<LinkKind> for LinkSpec {
    fn from(kind: LinkKind) -> Self {
        Self {
            kind,
            options: LinkOptions::default(),
        }
    }
}

impl FromStr for LinkSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (link, options) = options::split(text);
        let kind = LinkKind::parse(link)?;
        let options = options.map(|options| LinkOptions::parse(&kind, options));
        Ok(Self {
            options: options.transpose()?.unwrap_or_default(),
            kind,
        })
    }
}

impl TryFrom<&str> for LinkSpec {
    type Error = Error;

    fn try_from(text: &str) -> Result<Self, Error> {
        text.parse()
    }
}

impl TryFrom<&String> for LinkSpec {
    type Error = Error;

    fn try_from(text: &String) -> Result<Self, Error> {
        text.parse()
    }
}

impl TryFrom<String> for LinkSpec {
    type Error = Error;

    fn try_from(text: String) -> Result<Self, Error> {
        text.parse()
    }
}

impl fmt::Display for LinkSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.kind, self.options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Remedy;

    #[test]
    fn text_and_link_convert_both_ways() {
        for text in [
            "tap:dm0",
            "tap:dm0,10.77.0.1/24,fd77::1/64",
            "tap:dm0,10.77.0.1/24,mac=02:00:00:00:00:02",
            "mem:lab",
            "mem:a,b",
            "tap:abcdefghijklmno",
            "packet:eth0.100",
            "packet:eth0,mac=02:00:00:00:00:0a,ports=5201-5210",
            "macvtap:eth0",
            "macvtap:eth0,mode=passthru",
            "unix:/run/wire",
            "unix:/run/a,b",
            "unix:/run/a,b,share=send",
            "unix-listen:/run/wire",
            "unix-listen:/run/wire,share=send",
        ] {
            let link: LinkSpec = text.parse().expect(text);
            assert_eq!(link.to_string(), text);
            assert_eq!(LinkSpec::try_from(text.to_owned()).expect(text), link);
        }
        let one: LinkSpec = "packet:eth0,ports=80".parse().expect("one port");
        assert_eq!(one.shared_ports(), Some(80..=80));
    }

    #[test]
    fn an_invalid_link_is_refused_with_the_valid_forms() {
        for text in [
            "",
            "dm0",
            "tap:",
            "mem:",
            "unix:",
            "unix-listen:",
            "tap:abcdefghijklmnop",
            "tap:a/b",
            "tap:a b",
            "packet:",
            "macvtap:",
            "packet:abcdefghijklmnop",
            "eth:x",
        ] {
            let error = text.parse::<LinkSpec>().expect_err(text);
            assert_eq!(error.remedy(), Some(Remedy::WriteLink), "{error}");
        }
    }

    #[test]
    fn an_option_that_the_link_does_not_have_is_refused() {
        for text in [
            "packet:eth0,speed=9",
            "packet:eth0,10.77.0.1/24",
            "tap:dm0,10.77.0.0/24",
            "macvtap:eth0,mode=fast",
        ] {
            let error = text.parse::<LinkSpec>().expect_err(text);
            assert!(error.remedy().is_some(), "{error}");
        }
    }
}
