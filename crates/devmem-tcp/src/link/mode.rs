//! The mode of a macvtap interface.

use std::fmt;

use devmem_uapi::text::Printable;

use crate::error::Error;

/// Which other stations of this machine a NIC on a macvtap link reaches, beside the network of its interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MacvtapMode {
    /// Other macvlan and macvtap interfaces of the same interface.
    #[default]
    Bridge,
    /// None.
    Private,
    /// Those of the same interface, if the switch sends frames back to the port that they came from.
    Vepa,
    /// The NIC takes the place of this machine: it has the MAC address of the interface and gets all its frames. No other
    /// macvlan or macvtap interface can be made over it.
    Passthru,
}

impl MacvtapMode {
    /// Parses the value of the option `mode`.
    pub(super) fn parse(text: &str) -> Result<Self, Error> {
        match text {
            "bridge" => Ok(Self::Bridge),
            "private" => Ok(Self::Private),
            "vepa" => Ok(Self::Vepa),
            "passthru" => Ok(Self::Passthru),
            _ => {
                let reason = format!("'{}' is not a mode of a macvtap interface", Printable(text));
                Err(Error::invalid(reason)
                    .with_remedy("write mode=bridge, mode=private, mode=vepa or mode=passthru"))
            }
        }
    }
}

impl fmt::Display for MacvtapMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Bridge => "bridge",
            Self::Private => "private",
            Self::Vepa => "vepa",
            Self::Passthru => "passthru",
        })
    }
}
