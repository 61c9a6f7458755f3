//! The NIC of the ways of the library.

use std::fmt;
use std::net::IpAddr;

use devmem_tcp::{Impairment, LinkSpec};

use super::given::{Given, bad};
use super::pool::PoolSettings;
use super::require::Require;
use crate::status::{Failure, text_of};

/// A NIC of the library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Nic {
    pub(crate) kind: NicKind,
    pub(crate) pool: Option<PoolSettings>,
}

/// Whose stack a NIC has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NicKind {
    User(Box<UserNic>),
    /// An interface of the kernel, by its name.
    Kernel(String),
}

/// A stack in user space on a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UserNic {
    pub(crate) link: LinkSpec,
    /// With their prefix lengths; or `auto`.
    pub(crate) addresses: Vec<String>,
    pub(crate) gateway: Option<IpAddr>,
    pub(crate) impairment: Impairment,
}

impl Nic {
    /// Reads the NIC that a way names.
    pub(super) fn parse(way: &str, require: Require, given: &Given<'_>) -> Result<Self, Failure> {
        Ok(Self {
            kind: NicKind::parse(way, given)?,
            pool: PoolSettings::parse(require, given)?,
        })
    }

    /// How often the CPU copies each byte on this side: with a pool, each byte of memory of its GPU.
    pub(crate) fn copies(&self) -> u32 {
        let by_gpus = u32::from(self.pool.is_some());
        match self.kind {
            // Between registered memory and the stack, and between the stack and the link.
            NicKind::User(_) => 2 - by_gpus,
            NicKind::Kernel(_) => 1 - by_gpus,
        }
    }
}

impl NicKind {
    /// What stands before the colon is the kind of its link, or `kernel`.
    fn parse(way: &str, given: &Given<'_>) -> Result<Self, Failure> {
        if let Some(interface) = way.strip_prefix("kernel:") {
            given.refuse(
                &["address", "gateway", "impair"],
                "the interface of the kernel has its own",
            )?;
            return Ok(Self::Kernel(interface.to_owned()));
        }
        let link = way.parse::<LinkSpec>();
        let link = link.map_err(|error| {
            bad(
                "way",
                way,
                &format!(
                    "{}; or use auto, sockets, unix or kernel:INTERFACE",
                    text_of(&error)
                ),
            )
        })?;
        let addresses: Vec<_> = given.list("address").map(str::to_owned).collect();
        if addresses.is_empty() {
            let remedy = "its stack needs an address: give address=10.0.0.2/24, or address=auto to ask the network for one";
            return Err(bad("way", way, remedy));
        }
        let gateway = given.get("gateway").map(|value| {
            let refused = |_| bad("gateway", value, "use the IP address of a router");
            value.parse().map_err(refused)
        });
        let impairment = given.get("impair").map(|value| {
            let parsed = value.parse::<Impairment>();
            parsed.map_err(|error| bad("impair", value, &text_of(&error)))
        });
        Ok(Self::User(Box::new(UserNic {
            link,
            addresses,
            gateway: gateway.transpose()?,
            impairment: impairment.transpose()?.unwrap_or(Impairment::NONE),
        })))
    }
}

impl fmt::Display for Nic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            NicKind::User(user) => user.link.fmt(f),
            NicKind::Kernel(interface) => write!(f, "kernel:{interface}"),
        }
    }
}
