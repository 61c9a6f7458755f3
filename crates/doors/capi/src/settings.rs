//! Parser of the settings of `dmt_open`.

use std::fmt;
use std::net::IpAddr;

use devmem_tcp::tcp::TcpOptions;
use devmem_tcp::{Netdev, NetdevBuilder};

/// An invalid setting, as a sentence.
#[derive(Debug)]
pub struct SettingsError(String);

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SettingsError {}

/// Parses `link` (`tap:NAME`, `mem:NAME`) and settings (`name=value`, separated by commas): `address`, which may be repeated,
/// `peer` (of a TAP's kernel end), `gateway`, `mtu`, `rx_queues`, `congestion` (of connections that set none by TCP_CONGESTION).
///
/// # Errors
/// [`SettingsError`], a sentence that lists the valid settings.
pub fn parse(link: &str, settings: &str) -> Result<NetdevBuilder, SettingsError> {
    let mut builder = Netdev::builder(link).map_err(|error| SettingsError(error.to_string()))?;
    for setting in settings
        .split(',')
        .map(str::trim)
        .filter(|text| !text.is_empty())
    {
        let (name, value) = setting
            .split_once('=')
            .ok_or_else(|| SettingsError(format!("{setting:?} is not of the form name=value")))?;
        builder = set(builder, name.trim(), value.trim())?;
    }
    Ok(builder)
}

fn set(builder: NetdevBuilder, name: &str, value: &str) -> Result<NetdevBuilder, SettingsError> {
    let bad = |what: &str| SettingsError(format!("{name} cannot be {value:?}; give {what}"));
    match name {
        "address" => builder
            .address(value)
            .map_err(|error| SettingsError(error.to_string())),
        "peer" => builder
            .peer_address(value)
            .map_err(|error| SettingsError(error.to_string())),
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
        _ => Err(SettingsError(format!(
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
