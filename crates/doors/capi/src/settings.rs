//! Parser of the settings of `dmt_open`.

use std::fmt;
use std::net::IpAddr;

use devmem_tcp::tcp::TcpOptions;
use devmem_tcp::{Error, Netdev, NetdevBuilder};

/// Why a link or a setting is refused.
#[derive(Debug)]
pub enum SettingsError {
    /// A sentence that lists the valid settings.
    Setting(String),
    /// What the library says of the link, or of an address.
    Library(Error),
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setting(text) => f.write_str(text),
            Self::Library(error) => fmt::Display::fmt(error, f),
        }
    }
}

impl std::error::Error for SettingsError {}

impl From<Error> for SettingsError {
    fn from(error: Error) -> Self {
        Self::Library(error)
    }
}

/// Parses `link` (`tap:NAME`, `mem:NAME`) and settings (`name=value`, separated by commas): `address`, which may be repeated,
/// `peer` (of a TAP's kernel end), `gateway`, `mtu`, `rx_queues`, `congestion` (of connections that set none by TCP_CONGESTION).
///
/// # Errors
/// [`SettingsError`].
pub fn parse(link: &str, settings: &str) -> Result<NetdevBuilder, SettingsError> {
    let mut builder = Netdev::builder(link)?;
    for setting in settings
        .split(',')
        .map(str::trim)
        .filter(|text| !text.is_empty())
    {
        let (name, value) = setting.split_once('=').ok_or_else(|| {
            SettingsError::Setting(format!("{setting:?} is not of the form name=value"))
        })?;
        builder = set(builder, name.trim(), value.trim())?;
    }
    Ok(builder)
}

fn set(builder: NetdevBuilder, name: &str, value: &str) -> Result<NetdevBuilder, SettingsError> {
    let bad =
        |what: &str| SettingsError::Setting(format!("{name} cannot be {value:?}; give {what}"));
    match name {
        "address" => Ok(builder.address(value)?),
        "peer" => Ok(builder.peer_address(value)?),
        "gateway" => {
            let router: IpAddr = value.parse().map_err(|_| bad("an address"))?;
            Ok(builder.gateway(router))
        }
        "mtu" => Ok(builder.mtu(value.parse().map_err(|_| bad("576 to 65535 bytes"))?)),
        "rx_queues" => Ok(builder.rx_queues(value.parse().map_err(|_| bad("a number of queues"))?)),
        "congestion" => {
            let mut tcp = TcpOptions::default();
            tcp.congestion = value
                .parse()
                .map_err(|_| bad("cubic, reno, bbr or dctcp"))?;
            Ok(builder.tcp(tcp))
        }
        _ => Err(SettingsError::Setting(format!(
            "no setting is called {name:?}; there are address, peer, gateway, mtu, rx_queues and congestion"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn settings_are_read_or_refused_with_what_may_be_given() {
        assert!(
            parse(
                "mem:a",
                "address=10.0.0.1/24, mtu=1500,rx_queues=2,congestion=dctcp"
            )
            .is_ok()
        );
        for (link, settings, says) in [
            (
                "mem:a",
                "mtu=big",
                "mtu cannot be \"big\"; give 576 to 65535 bytes",
            ),
            (
                "mem:a",
                "congestion=vegas",
                "congestion cannot be \"vegas\"; give cubic, reno, bbr or dctcp",
            ),
            ("mem:a", "mtu", "\"mtu\" is not of the form name=value"),
            (
                "mem:a",
                "speed=9",
                "no setting is called \"speed\"; there are address, peer, gateway, mtu, rx_queues and congestion",
            ),
        ] {
            assert_eq!(parse(link, settings).unwrap_err().to_string(), says);
        }
        assert!(parse("wire", "").is_err());
    }
}
