//! The backend's parameters (`create_backend(name, params)`).

mod given;
mod nic;
mod pool;
mod require;

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use crate::status::{Failure, Status};
pub use given::PARAMETERS;
use given::{Given, bad};
pub(crate) use nic::{Nic, NicKind};
pub(crate) use pool::PoolSettings;
pub(crate) use require::Require;

/// How bytes travel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// `Unix` with peers on the same machine that allow it, else `Sockets`.
    Auto,
    /// TCP of the kernel, over plain sockets.
    Sockets,
    /// Copies from the memory of the other process. Peers that cannot be reached by it are not connected.
    Unix,
    /// TCP of a NIC of the library.
    Nic(Nic),
}

impl Way {
    /// Returns whether agents of the same machine may copy from each other's memory.
    pub(crate) fn is_near(&self) -> bool {
        matches!(self, Self::Auto | Self::Unix)
    }

    /// Returns whether addresses of the loopback interface lead to this machine: a stack in user space does not reach that interface.
    pub(crate) fn has_loopback(&self) -> bool {
        match self {
            Self::Nic(nic) => matches!(nic.kind, NicKind::Kernel(_)),
            Self::Auto | Self::Sockets | Self::Unix => true,
        }
    }
}

impl fmt::Display for Way {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Sockets => f.write_str("sockets"),
            Self::Unix => f.write_str("unix"),
            Self::Nic(nic) => nic.fmt(f),
        }
    }
}

/// All parameters, checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) way: Way,
    pub(crate) require: Require,
    /// Connections for payload, per peer and direction of calling.
    pub(crate) connections: u16,
    /// Without a NIC of the library: the only addresses to listen on and to tell peers; empty: all of the machine.
    pub(crate) addresses: Vec<IpAddr>,
    /// 0: any.
    pub(crate) port: u16,
    /// After this time without an answer a peer is gone.
    pub(crate) timeout: Duration,
}

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
    /// Reads parameters.
    pub(crate) fn parse<'a>(
        given: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, Failure> {
        let given = Given::new(given)?;
        let defaults = Self::default();
        let require = given.get("require").map(Require::parse).transpose()?;
        let require = require.unwrap_or(defaults.require);
        let way = given.get("way").map(|value| way(value, require, &given));
        let way = way.transpose()?.unwrap_or(defaults.way);
        let addresses = match &way {
            Way::Nic(_) => Vec::new(),
            Way::Auto | Way::Sockets | Way::Unix => {
                let text = "only a stack in user space has it, such as way=packet:eth1";
                given.refuse(&["gateway", "impair"], text)?;
                let text = "only a NIC has it, such as way=kernel:eth1";
                given.refuse(&["pool", "queues", "gpu"], text)?;
                addresses(&given)?
            }
        };
        let number = |key, range| given.get(key).map(|value| number(key, value, range));
        let connections = number("connections", 1..=u64::from(MAX_CONNECTIONS)).transpose()?;
        let port = number("port", 0..=u64::from(u16::MAX)).transpose()?;
        let timeout = number("timeout", 1..=3600).transpose()?;
        let timeout = timeout.map(|seconds| Duration::from_secs(seconds.into()));
        let settings = Self {
            require,
            way,
            connections: connections.unwrap_or(defaults.connections),
            addresses,
            port: port.unwrap_or(defaults.port),
            timeout: timeout.unwrap_or(defaults.timeout),
        };
        settings.check_requirement()?;
        Ok(settings)
    }

    /// Returns the pool of the NIC, if there is one.
    pub(crate) fn pool(&self) -> Option<&PoolSettings> {
        match &self.way {
            Way::Nic(nic) => nic.pool.as_ref(),
            Way::Auto | Way::Sockets | Way::Unix => None,
        }
    }

    /// Refuses a way that does less than what is required.
    fn check_requirement(&self) -> Result<(), Failure> {
        let copies = match &self.way {
            Way::Nic(nic) => nic.copies(),
            Way::Auto | Way::Sockets | Way::Unix => 1,
        };
        let way = &self.way;
        let refused = match self.require {
            Require::Direct if matches!(way, Way::Nic(nic) if matches!(nic.kind, NicKind::User(_))) =>
            {
                format!(
                    "require=direct, but the stack of way={way} copies payload between its own memory and registered memory; use way=sockets or \
                     require=any"
                )
            }
            Require::Device if copies > 0 => format!(
                "require=device, but way={way} copies payload by the CPU; use way=kernel:INTERFACE, of a NIC that supports device memory TCP \
                 (devmem-tcp doctor), or require=direct or require=any"
            ),
            Require::Any | Require::Direct | Require::Device => return Ok(()),
        };
        Err(Failure::new(Status::NotSupported, refused))
    }
}

fn way(value: &str, require: Require, given: &Given<'_>) -> Result<Way, Failure> {
    match value {
        "auto" => Ok(Way::Auto),
        "sockets" => Ok(Way::Sockets),
        "unix" => Ok(Way::Unix),
        _ => Ok(Way::Nic(Nic::parse(value, require, given)?)),
    }
}

fn number(key: &str, value: &str, range: std::ops::RangeInclusive<u64>) -> Result<u16, Failure> {
    let parsed = value.parse().ok().filter(|value| range.contains(value));
    let parsed = parsed.and_then(|value| u16::try_from(value).ok());
    let remedy = || format!("use a number from {} to {}", range.start(), range.end());
    parsed.ok_or_else(|| bad(key, value, &remedy()))
}

fn addresses(given: &Given<'_>) -> Result<Vec<IpAddr>, Failure> {
    let parsed = given.list("address").map(|part| {
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
    fn the_nic_of_a_way_has_its_own_parameters() {
        let given = [
            ("way", "packet:eth1,mac=02:00:00:00:00:02"),
            ("address", "10.0.0.2/24, fd00::2/64"),
            ("gateway", "10.0.0.1"),
            ("impair", "loss=1%,seed=7"),
        ];
        let settings = Settings::parse(given).unwrap();
        assert_eq!(settings.way.to_string(), given[0].1);
        let Way::Nic(Nic {
            kind: NicKind::User(nic),
            pool: None,
        }) = settings.way
        else {
            panic!("a stack in user space");
        };
        assert_eq!(nic.addresses, ["10.0.0.2/24", "fd00::2/64"]);
        assert_eq!(nic.gateway, Some("10.0.0.1".parse().unwrap()));
        assert_ne!(nic.impairment, devmem_tcp::Impairment::NONE);
        let kernel = Settings::parse([("way", "kernel:eth1"), ("require", "direct")]).unwrap();
        let kind = NicKind::Kernel("eth1".to_owned());
        assert_eq!(kernel.way, Way::Nic(Nic { kind, pool: None }));
    }

    #[test]
    fn a_pool_is_there_if_it_is_given_or_required() {
        let pool = |more: &[(&'static str, &'static str)]| {
            let given = [("way", "kernel:eth1")]
                .into_iter()
                .chain(more.iter().copied());
            let settings = Settings::parse(given).unwrap();
            settings.pool().cloned()
        };
        assert_eq!(pool(&[]), None);
        let given = pool(&[("pool", "8192"), ("queues", "2"), ("gpu", "3")]);
        let expected = PoolSettings {
            bytes: 8192,
            queues: 2,
            gpu: Some(3),
            is_strict: false,
        };
        assert_eq!(given.unwrap(), expected);
        let required = pool(&[("require", "device")]).unwrap();
        assert!(required.is_strict && required.bytes >= 16 << 20);
    }

    #[test]
    fn parameters_that_a_way_does_not_have_are_refused() {
        let tap = [("way", "tap:dm0"), ("address", "10.0.0.2/24")];
        for (more, remedy) in [
            (&[("way", "tap:dm0")][..], "address=10.0.0.2/24"),
            (&[tap[0], tap[1], ("require", "direct")], "way=sockets"),
            (
                &[tap[0], tap[1], ("require", "device")],
                "way=kernel:INTERFACE",
            ),
            (&[tap[0], tap[1], ("gpu", "0")], "pool=67108864"),
            (&[("way", "kernel:eth1"), ("pool", "0")], "4096"),
            (&[("way", "kernel:eth1"), ("pool", "5000")], "4096"),
            (&[("way", "sockets"), ("pool", "4096")], "way=kernel:eth1"),
            (&[tap[0], tap[1], ("gateway", "router")], "a router"),
            (&[tap[0], tap[1], ("impair", "loss=lots")], "loss"),
            (
                &[("way", "kernel:eth1"), ("address", "10.0.0.2")],
                "leave it out",
            ),
            (
                &[("way", "sockets"), ("gateway", "10.0.0.1")],
                "leave it out",
            ),
        ] {
            let refused = Settings::parse(more.iter().copied()).unwrap_err();
            assert!(refused.to_string().contains(remedy), "{more:?}: {refused}");
        }
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
