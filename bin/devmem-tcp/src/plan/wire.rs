//! A run of `wire`.

use std::time::Duration;

use nic::Impairment;

use super::{Prefix, check_mtu, parse_impairment, parse_tap};
use crate::args;
use crate::output::Failure;

/// A run of `wire`.
#[derive(Clone, Debug)]
pub struct WirePlan {
    /// The ends.
    pub ends: [WireEnd; 2],
    /// Largest IP packet.
    pub mtu: u16,
    /// What is wrong with the cable.
    pub impairment: Impairment,
    /// When to end by itself.
    pub limit: Option<Duration>,
    /// Print JSON.
    pub json: bool,
}

/// One end of a wire.
#[derive(Clone, Debug)]
pub struct WireEnd {
    /// The TAP interface's name.
    pub tap: String,
    /// Its network namespace.
    pub netns: Option<String>,
    /// The address to give the kernel's end.
    pub address: Option<Prefix>,
}

impl WirePlan {
    /// Judges the command line.
    ///
    /// # Errors
    ///
    /// A usage error that names the option.
    pub fn new(args: args::Wire) -> Result<Self, Failure> {
        let args::Wire {
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
        let address = |text: Option<String>| text.as_deref().map(str::parse).transpose();
        let a = WireEnd {
            tap: parse_tap("--a", &a)?,
            netns: a_netns,
            address: address(a_addr)?,
        };
        let b = WireEnd {
            tap: parse_tap("--b", &b)?,
            netns: b_netns,
            address: address(b_addr)?,
        };
        if a.tap == b.tap && a.netns == b.netns {
            return Err(Failure::usage(format!(
                "--a and --b are the same interface, {}",
                a.tap
            )));
        }
        let ipv6 = [&a, &b]
            .iter()
            .any(|end| end.address.is_some_and(|p| p.address.is_ipv6()));
        check_mtu(mtu, ipv6)?;
        Ok(Self {
            ends: [a, b],
            mtu,
            impairment: parse_impairment(&impair)?,
            limit: seconds.map(Duration::from_secs),
            json: output.json,
        })
    }
}
