//! The stack of a run, and its link.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use devmem_linux::packet::SharedStation;
use devmem_tcp::link::{self, LinkKind};
use devmem_tcp::{LinkSpec, Netdev, NetdevBuilder, Remedy, tcp::TcpOptions};

use tool::parse::{Prefix, check_interface_name, check_pair};

use super::tcp::tcp_options;
use crate::args::{BackendChoice, DEFAULT_LINK, LinkArgs};
use tool::output::Failure;

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
    /// What this run may do with that interface.
    pub rights: KernelRights,
    /// Our address on that interface; by default its first.
    pub address: Option<IpAddr>,
    /// Link and addresses for the user backend.
    pub tap: TapPlan,
}

/// What a run may do with an interface of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelRights {
    /// Set it up.
    All,
    /// An agent has set it up: nothing is written to it.
    Bind,
    /// As `Bind`, and the broker at this path binds.
    Ask(PathBuf),
}

impl KernelRights {
    fn new(configured: bool, broker: Option<&PathBuf>) -> Self {
        match (broker, configured) {
            (Some(path), _) => Self::Ask(path.clone()),
            (None, true) => Self::Bind,
            (None, false) => Self::All,
        }
    }
}

/// Our NIC on a TAP, or on the wire of an emulated NIC.
#[derive(Clone, Debug)]
pub struct TapPlan {
    /// `tap:NAME`, `packet:NAME`, `macvtap:NAME`, `unix:PATH` or `unix-listen:PATH`, with its options.
    pub link: LinkSpec,
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
            broker,
            link,
            addr,
            peer_addr,
            gateway,
            shards,
            tcp,
        } = args;
        let rights = KernelRights::new(*configured, broker.as_ref());
        let backend = backend_of(*backend, interface.as_deref(), &rights)?;
        if let Some(name) = interface {
            check_interface_name("--if", name)?;
        }
        let (ours, address) = addresses(addr.as_deref(), interface.as_deref())?;
        let link = parse_link(link)?;
        let peers = peer_address(&link, peer_addr.as_deref())?;
        if let Some(peers) = peers {
            check_pair(ours, peers)?;
        }
        if let Some(gateway) = *gateway {
            check_router(ours, gateway)?;
        }
        check_presence(link.kind(), addr.as_deref())?;
        if *shards != 1 && matches!(link.kind(), LinkKind::Unix(_) | LinkKind::UnixListen(_)) {
            let kind = link.kind();
            let text = format!("--shards {shards}: {kind} has one queue, and so one shard");
            return Err(Failure::usage(text)
                .with_remedy("several shards are for tap:NAME, packet:NAME and macvtap:NAME"));
        }
        Ok(Self {
            backend,
            interface: interface.clone(),
            rights,
            address,
            tap: TapPlan {
                link,
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
    rights: &KernelRights,
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
        // A broker is for the kernel's stack alone, and the missing privilege is no reason against it.
        (None, Some(_)) if matches!(rights, KernelRights::Ask(_)) => Ok(BackendChoice::Kernel),
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
        Ok(match &self.rights {
            KernelRights::All => Netdev::kernel(name)?,
            KernelRights::Bind => Netdev::configured(name)?,
            KernelRights::Ask(broker) => Netdev::brokered(name, broker)?,
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
        let ours = match self.is_auto() {
            true => AUTO.to_owned(),
            false => self.ours.to_string(),
        };
        let builder = Netdev::builder(self.link.clone())?.address(&ours)?;
        let builder = builder.shards(self.shards);
        let mut builder = builder.tcp(self.tcp.clone());
        // `kernels_end` warns also of interfaces that exist already, and names the options of the tool.
        builder = builder.on_warning(|_| {});
        if let Some(peers) = self.peers
            && self.link.peer_addresses().is_empty()
        {
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
        true => link::Prefix::new(gateway, bits(gateway)).map(drop),
        false => link::Prefix::new(address, len).and_then(|ours| ours.check_router(gateway)),
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
fn check_presence(link: &LinkKind, addr: Option<&str>) -> Result<(), Failure> {
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
fn is_on_lan(link: &LinkKind) -> bool {
    matches!(link, LinkKind::Packet(_) | LinkKind::Macvtap(_))
}

/// Parses the value of `--link`.
fn parse_link(text: &str) -> Result<LinkSpec, Failure> {
    let link: LinkSpec = text.parse().map_err(|error: devmem_tcp::Error| {
        Failure::usage(format!("--link: {}", error.reason())).with_remedy_of(error.remedy())
    })?;
    if let LinkKind::Memory(_) = link.kind() {
        return Err(
            Failure::usage(format!("--link: {link} is a wire inside one process"))
                .with_remedy_of(Some(Remedy::WriteLink)),
        );
    }
    let most = SharedStation::MAX_PORTS;
    match link.shared_ports().map_or(0, Iterator::count) {
        count if count > most => Err(Failure::usage(format!(
            "--link: {link} names {count} ports, and at most {most} can be shared"
        ))),
        _ => Ok(link),
    }
}

/// Returns the address for the kernel's end of a TAP, of `--peer-addr` or of the link.
fn peer_address(link: &LinkSpec, peer_addr: Option<&str>) -> Result<Option<Prefix>, Failure> {
    let of_link = link.peer_addresses().first().copied();
    let Some(text) = peer_addr else {
        return Ok(of_link.map(Prefix::from));
    };
    let peers = text.parse()?;
    match (link.kind(), of_link) {
        (LinkKind::Tap(_), None) => Ok(Some(peers)),
        (LinkKind::Tap(_), Some(_)) => Err(Failure::usage(format!(
            "--peer-addr: {link} has an address for the kernel's end already"
        ))),
        (kind, _) => Err(Failure::usage(format!(
            "--peer-addr is for the kernel's end of a TAP, and {kind} has none"
        ))),
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
        ("--mtu", mtu.is_some_and(|mtu| mtu != super::nic::MTU)),
        ("--impair", impair != super::nic::UNIMPAIRED),
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
