//! Plan of a run of `wire`.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use nic::Impairment;

use super::nic::parse_wire;
use tool::parse::{Prefix, check_mtu, parse_impairment};

use super::WirePort;
use crate::args;
use tool::output::Failure;

/// Plan of a run of `wire`.
#[derive(Clone, Debug)]
pub struct WirePlan {
    /// The ends.
    pub ends: [WireEnd; 2],
    /// Largest IP packet.
    pub mtu: u16,
    /// Impairments of the cable.
    pub impairment: Impairment,
    /// Time after which the run ends.
    pub limit: Option<Duration>,
    /// Print JSON.
    pub json: bool,
    /// What happens to frames that are due while the cable does not run.
    pub lateness: Lateness,
}

/// What happens to frames that are due while the cable does not run, because others have the processor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lateness {
    /// They leave at once afterwards, all together.
    #[default]
    CatchesUp,
    /// They leave afterwards, as far apart as they were: no time passes on the cable meanwhile. A burst would have no room in a short
    /// queue.
    KeepsApart,
}

/// One end of a wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireEnd {
    /// Kind of the end.
    pub port: WirePort,
    /// The network namespace of the interface.
    pub netns: Option<String>,
}

impl WirePlan {
    /// Validates the command line.
    ///
    /// # Errors
    ///
    /// A usage error that names the option.
    pub fn new(args: args::WireArgs) -> Result<Self, Failure> {
        let args::WireArgs {
            a,
            b,
            a_netns,
            b_netns,
            a_addr,
            b_addr,
            mtu,
            impair,
            seconds,
            output,
        } = args;
        let a = WireEnd::new("--a", &a, a_netns, a_addr)?;
        let b = WireEnd::new("--b", &b, b_netns, b_addr)?;
        if a.is_same(&b) {
            return Err(Failure::usage(format!(
                "--a and --b are the same end, {}",
                a.port
            )));
        }
        let addresses = [&a, &b].map(|end| end.address().map(|prefix| prefix.address));
        let v6 = addresses.into_iter().flatten().find(IpAddr::is_ipv6);
        check_mtu(mtu, v6.unwrap_or(Ipv4Addr::UNSPECIFIED.into()))?;
        Ok(Self {
            ends: [a, b],
            mtu,
            impairment: parse_impairment(&impair)?,
            limit: seconds.map(Duration::from_secs),
            json: output.json,
            lateness: Lateness::default(),
        })
    }
}

/// Returns the error of `option` with a suffix that does not fit its link.
fn only_for(suffix: &str, kind: &str, option: &str, link: &str) -> Failure {
    Failure::usage(format!(
        "{option}-{suffix} is for {kind}, and {option} is {link}"
    ))
}

impl WireEnd {
    fn new(
        option: &str,
        link: &str,
        netns: Option<String>,
        address: Option<String>,
    ) -> Result<Self, Failure> {
        let mut port = parse_wire(option, link)?;
        let given = address.as_deref().map(str::parse).transpose()?;
        match &mut port {
            WirePort::Tap { address, .. } if address.is_none() => *address = given,
            WirePort::Tap { .. } if given.is_some() => {
                return Err(Failure::usage(format!(
                    "{option}-addr: {option} {link} has an address already"
                )));
            }
            WirePort::Packet { .. } if given.is_some() => {
                return Err(only_for("addr", "a TAP", option, link));
            }
            WirePort::Listen(_) | WirePort::Connect(_) if netns.is_some() => {
                return Err(only_for("netns", "an interface", option, link));
            }
            WirePort::Listen(_) | WirePort::Connect(_) if given.is_some() => {
                return Err(only_for("addr", "a TAP", option, link));
            }
            _ => {}
        }
        Ok(Self { port, netns })
    }

    /// Returns the address to set on the interface.
    fn address(&self) -> Option<Prefix> {
        match self.port {
            WirePort::Tap { address, .. } => address,
            WirePort::Packet { .. } | WirePort::Listen(_) | WirePort::Connect(_) => None,
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        match (&self.port, &other.port) {
            (WirePort::Tap { name: a, .. }, WirePort::Tap { name: b, .. }) => {
                a == b && self.netns == other.netns
            }
            (WirePort::Packet { .. }, WirePort::Packet { .. }) => self == other,
            (a, b) => a == b,
        }
    }
}
