//! The stack of a run, and its link.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;

use devmem_linux::packet::SharedStation;
use devmem_tcp::internals::{check_address, check_gateway};
use devmem_tcp::{LinkSpec, Netdev, NetdevBuilder, tcp::TcpOptions};

use tool::parse::{Prefix, check_interface_name, check_pair, parse_tap};

use super::tcp::tcp_options;
use crate::args::{BackendChoice, DEFAULT_LINK, LinkArgs};
use tool::output::Failure;

/// The option of a UNIX wire with which the other end may read the send queues.
const SHARE_SEND: &str = "share=send";

/// Our default address on a TAP.
const TAP_ADDRESS: &str = "10.77.0.2/24";

/// Value of `--addr` for an address of a DHCP server.
const AUTO: &str = "auto";

/// The stack, its link and its addresses.
#[derive(Clone, Debug)]
pub struct LinkPlan {
    /// The backend.
    pub backend: BackendChoice,
    /// The kernel's interface.
    pub interface: Option<String>,
    /// An agent has set that interface up: nothing is written to it.
    pub configured: bool,
    /// Our address on that interface; by default its first.
    pub address: Option<IpAddr>,
    /// Link and addresses for the user backend.
    pub tap: TapPlan,
}

/// Our NIC on a TAP, or on the wire of an emulated NIC.
#[derive(Clone, Debug)]
pub struct TapPlan {
    /// `tap:NAME`, `packet:NAME`, `macvtap:NAME`, `unix:PATH` or `unix-listen:PATH`.
    pub link: LinkSpec,
    /// Options of the link, as the library takes them after a comma.
    pub options: Option<String>,
    /// The ports that the link shares with the kernel: no other is ours.
    pub shared_ports: Option<RangeInclusive<u16>>,
    /// Our address; the unspecified one, with a prefix of length 0, for one that a DHCP server lends.
    pub ours: Prefix,
    /// The address for the kernel's end.
    pub peers: Option<Prefix>,
    /// The router to other networks.
    pub gateway: Option<IpAddr>,
    /// Shards of our NIC.
    pub shards: u16,
    /// Options of its TCP.
    pub tcp: TcpOptions,
}

impl LinkPlan {
    pub(super) fn new(args: &LinkArgs) -> Result<Self, Failure> {
        let LinkArgs {
            backend,
            interface,
            configured,
            link,
            addr,
            peer_addr,
            gateway,
            shards,
            tcp,
        } = args;
        let backend = backend_of(*backend, interface.as_deref())?;
        if let Some(name) = interface {
            check_interface_name("--if", name)?;
        }
        let (ours, address) = addresses(addr.as_deref(), interface.as_deref())?;
        let peers = peer_addr.as_deref().map(str::parse::<Prefix>).transpose()?;
        if let Some(peers) = peers {
            check_pair(ours, peers)?;
        }
        if let Some(gateway) = *gateway {
            check_router(ours, gateway)?;
        }
        let (link, options) = parse_link(link)?;
        let shared_ports = shared_ports(&link, options.as_deref())?;
        check_presence(&link, addr.as_deref())?;
        if *shards != 1 && matches!(link, LinkSpec::Unix(_) | LinkSpec::UnixListen(_)) {
            let text = format!("--shards {shards}: {link} has one queue, and so one shard");
            return Err(Failure::usage(text)
                .with_remedy("several shards are for tap:NAME, packet:NAME and macvtap:NAME"));
        }
        if peers.is_some() && !matches!(link, LinkSpec::Tap(_)) {
            return Err(Failure::usage(format!(
                "--peer-addr is for the kernel's end of a TAP, and {link} has none"
            )));
        }
        Ok(Self {
            backend,
            interface: interface.clone(),
            configured: *configured,
            address,
            tap: TapPlan {
                link,
                options,
                shared_ports,
                ours,
                peers,
                gateway: *gateway,
                shards: *shards,
                tcp: tcp_options(tcp)?,
            },
        })
    }
}

/// Returns the backend that options choose.
fn backend_of(
    backend: Option<BackendChoice>,
    interface: Option<&str>,
) -> Result<BackendChoice, Failure> {
    match (backend, interface) {
        (Some(BackendChoice::Kernel), None) => {
            Err(Failure::usage("--backend kernel needs --if NAME")
                .with_remedy("`devmem-tcp doctor` lists the interfaces"))
        }
        (Some(BackendChoice::Sockets), Some(_)) => Err(Failure::usage(
            "--if: --backend sockets uses the interface of the route to the server",
        )),
        (Some(backend), _) => Ok(backend),
        (None, Some(_)) => Ok(BackendChoice::Auto),
        (None, None) => Ok(BackendChoice::User),
    }
}

impl LinkPlan {
    /// Opens the interface `name` of the kernel.
    ///
    /// # Errors
    ///
    /// There is no such interface.
    pub fn open_kernel(&self, name: &str) -> Result<Netdev, Failure> {
        Ok(match self.configured {
            true => Netdev::configured(name)?,
            false => Netdev::kernel(name)?,
        })
    }
}

impl TapPlan {
    /// Returns whether our addresses are those that the network gives.
    pub fn is_auto(&self) -> bool {
        self.ours.address.is_unspecified()
    }

    /// Returns the address to listen on: for addresses that the network gives, any of both IP versions.
    pub fn local(&self, port: u16) -> SocketAddr {
        let ip = match self.is_auto() {
            true => Ipv6Addr::UNSPECIFIED.into(),
            false => self.ours.address,
        };
        SocketAddr::new(ip, port)
    }

    /// Returns a builder for our NIC on the link.
    ///
    /// # Errors
    ///
    /// None in practice: the plan has validated the link and the addresses.
    pub fn builder(&self) -> Result<NetdevBuilder, Failure> {
        let link = match &self.options {
            Some(options) => format!("{},{options}", self.link),
            None => self.link.to_string(),
        };
        let ours = match self.is_auto() {
            true => AUTO.to_owned(),
            false => self.ours.to_string(),
        };
        let builder = Netdev::builder(&link)?.address(&ours)?.shards(self.shards);
        let mut builder = builder.tcp(self.tcp.clone());
        // `kernels_end` warns also of interfaces that exist already, and names the options of the tool.
        builder = builder.on_warning(|_| {});
        if let Some(peers) = self.peers {
            builder = builder.peer_address(&peers.to_string())?;
        }
        if let Some(gateway) = self.gateway {
            builder = builder.gateway(gateway);
        }
        Ok(builder)
    }

    /// Returns whether a host can be reached.
    pub(super) fn reaches(&self, host: IpAddr) -> bool {
        let by_gateway = self
            .gateway
            .is_some_and(|gateway| gateway.is_ipv4() == host.is_ipv4());
        // What the network gives is known later.
        self.is_auto() || by_gateway || self.ours.contains(host)
    }
}

/// Refuses a router that our NIC cannot have.
fn check_router(ours: Prefix, gateway: IpAddr) -> Result<(), Failure> {
    let Prefix { address, len } = ours;
    let is_alone = len == bits(address);
    let is_near = ours.contains(gateway) || is_link_local(gateway) && address.is_ipv6();
    if !is_alone && !is_near && !address.is_unspecified() {
        let text = format!("--gateway {gateway} is not in the network {ours}");
        return Err(Failure::usage(text).with_remedy(format!(
            "if the router is on the link but outside of the network of our address, write --addr {address}/{}",
            bits(address)
        )));
    }
    let checked = match address.is_unspecified() {
        // The network is known later. It is a host in any case.
        true => check_address(gateway, bits(gateway)),
        false => check_gateway(address, len, gateway),
    };
    checked.map_err(|refusal| {
        Failure::usage(format!("--gateway {gateway}: {}", refusal.reason()))
            .with_remedy_of(refusal.remedy())
    })
}

/// Returns the number of bits of an address of this IP version.
fn bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

/// Refuses `--addr` where it does not fit the link, and its absence where there is no default.
fn check_presence(link: &LinkSpec, addr: Option<&str>) -> Result<(), Failure> {
    match addr {
        None if is_on_lan(link) => {
            let text = format!("--link {link} needs --addr ADDR/LEN, or --addr auto");
            Err(Failure::usage(text).with_remedy(
                "take a free address of the interface's network, which `ip address` shows, or auto for one of its DHCP server",
            ))
        }
        Some(AUTO) if !is_on_lan(link) => Err(Failure::usage(format!(
            "--addr auto is for the links packet:NAME and macvtap:NAME, and --link is {link}"
        ))),
        _ => Ok(()),
    }
}

/// Returns whether the link leads to the network of an interface, so that there is no default address.
fn is_on_lan(link: &LinkSpec) -> bool {
    matches!(link, LinkSpec::Packet(_) | LinkSpec::Macvtap(_))
}

fn is_unix(text: &str) -> bool {
    text.starts_with("unix:") || text.starts_with("unix-listen:")
}

/// Parses `tap:NAME`, or `packet:NAME`, `macvtap:NAME`, `unix:PATH` or `unix-listen:PATH` with or without options.
fn parse_link(text: &str) -> Result<(LinkSpec, Option<String>), Failure> {
    let (bare, options) = match text.split_once(',') {
        Some((bare, options)) if bare.parse().is_ok_and(|link| is_on_lan(&link)) => {
            (bare, Some(options.to_owned()))
        }
        // A path may contain commas.
        Some(_) if is_unix(text) => match text.rsplit_once(',') {
            Some((bare, SHARE_SEND)) => (bare, Some(SHARE_SEND.to_owned())),
            _ => (text, None),
        },
        _ => (text, None),
    };
    match bare.parse() {
        Ok(link) if is_on_lan(&link) || is_unix(text) => Ok((link, options)),
        _ => parse_tap("--link", text)
            .map(|name| (LinkSpec::Tap(name), None))
            .map_err(|failure| {
                failure.with_remedy(
                    "write tap:NAME, packet:NAME or macvtap:NAME, the interface's name of at most 15 bytes, unix:PATH or unix-listen:PATH",
                )
            }),
    }
}

/// Validates the options of a link, and returns the ports that it shares with the kernel, if it does.
fn shared_ports(
    link: &LinkSpec,
    options: Option<&str>,
) -> Result<Option<RangeInclusive<u16>>, Failure> {
    let Some(options) = options else {
        return Ok(None);
    };
    let builder = Netdev::builder(&format!("{link},{options}"));
    let builder = builder.map_err(|error| Failure::usage(format!("--link: {error}")))?;
    let ports = builder.shared_ports();
    let most = SharedStation::MAX_PORTS;
    match ports.clone().map_or(0, Iterator::count) {
        count if count > most => Err(Failure::usage(format!(
            "--link: {options} are {count} ports, and at most {most} can be shared"
        ))),
        _ => Ok(ports),
    }
}

/// Returns the first given option that only our NIC supports, if any: of the link, of the NIC (MTU and impairment), or
/// of the `others`, each with whether it was given.
pub(super) fn users_alone(
    link: &LinkArgs,
    mtu: Option<u16>,
    impair: &str,
    others: &[(&'static str, bool)],
) -> Option<&'static str> {
    let common = [
        ("--link", link.link != DEFAULT_LINK),
        ("--peer-addr", link.peer_addr.is_some()),
        ("--gateway", link.gateway.is_some()),
        ("--shards", link.shards != 1),
        ("--mtu", mtu.is_some_and(|mtu| mtu != super::MTU)),
        ("--impair", impair != super::UNIMPAIRED),
    ];
    let mut all = common.iter().chain(others);
    let given = all.find(|(_, given)| *given).map(|(option, _)| *option);
    given.or_else(|| super::tcp::given(&link.tcp))
}

/// Returns our address on a TAP, and the requested address of the kernel's `interface`.
fn addresses(
    addr: Option<&str>,
    interface: Option<&str>,
) -> Result<(Prefix, Option<IpAddr>), Failure> {
    let Some(text) = addr else {
        return Ok((TAP_ADDRESS.parse()?, None));
    };
    if text == AUTO && interface.is_none() {
        let address = IpAddr::from([0; 4]);
        return Ok((Prefix { address, len: 0 }, None));
    }
    // The prefix length is optional, because the interface has one already.
    let bare = text.parse::<IpAddr>().ok().filter(|_| interface.is_some());
    let ours = match bare {
        Some(address) => Prefix {
            address,
            len: bits(address),
        },
        None => text.parse()?,
    };
    Ok((ours, Some(ours.address)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unix_wire_has_one_option_and_any_other_comma_is_of_its_path() {
        for kind in ["unix", "unix-listen"] {
            let parse = |path: &str| {
                let (link, options) = parse_link(&format!("{kind}:{path}")).expect("a link");
                (link.to_string(), options)
            };
            let option = Some(SHARE_SEND.to_owned());
            assert_eq!(parse("/run/w"), (format!("{kind}:/run/w"), None));
            assert_eq!(parse("/run/a,b"), (format!("{kind}:/run/a,b"), None));
            assert_eq!(
                parse("/run/a,b,share=send"),
                (format!("{kind}:/run/a,b"), option)
            );
        }
    }
}
