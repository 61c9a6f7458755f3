//! The backend's parameters (`create_backend(name, params)`).

use std::net::IpAddr;
use std::time::Duration;

use crate::status::{Failure, Status};

/// How bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// `Unix` with peers on the same machine that allow it, else `Sockets`.
    Auto,
    /// TCP of the kernel, over plain sockets.
    Sockets,
    /// Copies from the memory of the other process. Peers that cannot be reached by it are not connected.
    Unix,
}

impl Way {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Sockets => "sockets",
            Self::Unix => "unix",
        }
    }
}

/// What the program insists on. A way that does less is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Require {
    /// Whatever works.
    Any,
    /// Payload is received straight into registered memory, and sent from there.
    Direct,
    /// No CPU copies payload.
    Device,
}

/// All parameters, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) way: Way,
    pub(crate) require: Require,
    /// Connections for payload, per peer and direction of calling.
    pub(crate) connections: u16,
    /// The only addresses to listen on and to tell peers; empty: all of the machine.
    pub(crate) addresses: Vec<IpAddr>,
    /// 0: any.
    pub(crate) port: u16,
    /// After this time without an answer a peer is gone.
    pub(crate) timeout: Duration,
}

/// Names, defaults and meaning of the parameters, as NIXL shows them.
pub const PARAMETERS: &[(&str, &str)] = &[
    ("way", "auto"),
    ("require", "any"),
    ("connections", "2"),
    ("address", ""),
    ("port", "0"),
    ("timeout", "30"),
];

/// Most connections for payload to one peer.
pub(crate) const MAX_CONNECTIONS: u16 = 64;

impl Default for Settings {
    fn default() -> Self {
        Self {
            way: Way::Auto,
            require: Require::Any,
            connections: 2,
            addresses: Vec::new(),
            port: 0,
            timeout: Duration::from_secs(30),
        }
    }
}

impl Settings {
    /// Reads parameters. An unknown one is refused: it may be a misspelled `require`.
    pub(crate) fn parse<'a>(
        given: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, Failure> {
        let mut settings = Self::default();
        for (key, value) in given {
            settings.set(key, value.trim())?;
        }
        match settings.require {
            Require::Device => Err(Failure::new(
                Status::NotSupported,
                "require=device, but the ways sockets and unix copy payload by the CPU; use require=direct or require=any",
            )),
            Require::Direct | Require::Any => Ok(settings),
        }
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), Failure> {
        match key {
            "way" => self.way = way(value)?,
            "require" => self.require = require(value)?,
            "connections" => {
                self.connections = number(key, value, 1..=u64::from(MAX_CONNECTIONS))?;
            }
            "address" => self.addresses = addresses(value)?,
            "port" => self.port = number(key, value, 0..=u64::from(u16::MAX))?,
            "timeout" => {
                self.timeout = Duration::from_secs(u64::from(number(key, value, 1..=3600)?));
            }
            _ => {
                let known: Vec<_> = PARAMETERS.iter().map(|(name, _)| *name).collect();
                return Err(bad(key, value, &format!("known are {}", known.join(", "))));
            }
        }
        Ok(())
    }
}

fn bad(key: &str, value: &str, remedy: &str) -> Failure {
    let what = format!(
        "parameter {}={}: {remedy}",
        key.escape_debug(),
        value.escape_debug()
    );
    Failure::new(Status::InvalidParam, what)
}

fn way(value: &str) -> Result<Way, Failure> {
    match value {
        "auto" => Ok(Way::Auto),
        "sockets" => Ok(Way::Sockets),
        "unix" => Ok(Way::Unix),
        _ => Err(bad(
            "way",
            value,
            "this release has the ways auto, sockets and unix",
        )),
    }
}

fn require(value: &str) -> Result<Require, Failure> {
    match value {
        "any" => Ok(Require::Any),
        "direct" => Ok(Require::Direct),
        "device" => Ok(Require::Device),
        _ => Err(bad("require", value, "use any, direct or device")),
    }
}

fn number(key: &str, value: &str, range: std::ops::RangeInclusive<u64>) -> Result<u16, Failure> {
    let parsed = value.parse().ok().filter(|value| range.contains(value));
    let parsed = parsed.and_then(|value| u16::try_from(value).ok());
    let remedy = || format!("use a number from {} to {}", range.start(), range.end());
    parsed.ok_or_else(|| bad(key, value, &remedy()))
}

fn addresses(value: &str) -> Result<Vec<IpAddr>, Failure> {
    let parts = value
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty());
    let parsed = parts.map(|part| {
        let refused = |_| {
            bad(
                "address",
                part,
                "use IP addresses of this machine, separated by commas",
            )
        };
        part.parse().map_err(refused)
    });
    parsed.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_that_nixl_shows_are_those_in_use() {
        assert_eq!(
            Settings::parse(PARAMETERS.iter().copied()).unwrap(),
            Settings::default()
        );
    }

    #[test]
    fn parameters_are_read() {
        let given = [
            ("way", "sockets"),
            ("require", "direct"),
            ("connections", "8"),
            ("address", "10.0.0.1, fd00::1"),
            ("port", "4000"),
            ("timeout", "5"),
        ];
        let settings = Settings::parse(given).unwrap();
        assert_eq!(settings.require, Require::Direct);
        assert_eq!(settings.connections, 8);
        assert_eq!(settings.addresses.len(), 2);
        assert_eq!(
            (settings.port, settings.timeout),
            (4000, Duration::from_secs(5))
        );
    }

    #[test]
    fn wrong_parameters_are_refused_with_a_remedy() {
        for (key, value, remedy) in [
            ("requires", "device", "known are"),
            ("require", "gpu", "any, direct or device"),
            ("require", "device", "require=direct"),
            ("way", "pigeon", "sockets"),
            ("connections", "0", "1 to 64"),
            ("connections", "65", "1 to 64"),
            ("port", "-1", "0 to 65535"),
            ("address", "localhost", "IP addresses"),
            ("timeout", "0", "1 to 3600"),
        ] {
            let refused = Settings::parse([(key, value)]).unwrap_err();
            assert!(
                refused.to_string().contains(remedy),
                "{key}={value}: {refused}"
            );
        }
    }
}
