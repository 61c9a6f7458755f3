//! Opening a user-space NIC: link, addresses and sizes.

mod auto;
mod claim;
mod link;
mod macvtap;
mod memory;
mod netdev;
mod opened_links;
mod packet;
mod queues;
mod unix;

use std::io::{self, Write};
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use devmem_uapi::text::PrintableLines;
use nic::{
    Crossing, CrossingWakeup, Impaired, Impairment, Link, Nic, NicConfig, WireLink, WireOptions,
};
use runtime::{Clock, Opened, keep_lease};
use rustix::rand::{GetRandomFlags, getrandom};
use stack::{
    AddressCheck, AddressConflicts, LeasedAddress, LocalPorts, PathMtus, Secret, Stack, StackConfig,
};
use wire::MacAddr;

use crate::capture::{Capture, FrameSink};
use crate::driver::{self, Driver, StackIndex};
use crate::error::{Error, Remedy};
use crate::link::{LinkKind, LinkOptions, LinkSpec, MacvtapMode, Prefix};
use crate::netdev::Netdev;
use crate::tcp_options::{Keepalive, TcpOptions};
use crate::user::{Shard, Shared};
use opened_links::OpenedLinks;

/// Default number of RX queues: queue 0 always uses host memory, the others can be bound.
const DEFAULT_RX_QUEUES: u16 = 4;

/// Default MTU in bytes: Ethernet's.
const DEFAULT_MTU: u16 = 1500;

/// Maximum number of shards.
const MAX_SHARDS: u16 = 64;
const MAX_SHARDS_PLUS_ONE: u16 = MAX_SHARDS + 1;

/// What the shards of a NIC have in common.
struct Identity {
    mac: MacAddr,
    secret: Secret,
    path_mtus: PathMtus,
    conflicts: AddressConflicts,
    address_check: AddressCheck,
    /// Addresses that servers and routers lend.
    leased: Vec<LeasedAddress>,
}

/// Builder of a user-space NIC; [`open`](Self::open) opens it.
#[derive(Debug)]
#[must_use = "nothing is opened until `open`"]
pub struct NetdevBuilder {
    link: LinkKind,
    addresses: Vec<(IpAddr, u8)>,
    /// Get addresses from a DHCP server and from routers.
    auto: bool,
    peers: Vec<(IpAddr, u8)>,
    gateways: Vec<IpAddr>,
    mac: Option<MacAddr>,
    /// The TCP ports of a NIC that shares the addresses of an interface.
    ports: Option<RangeInclusive<u16>>,
    macvtap_mode: Option<MacvtapMode>,
    /// The other end of a UNIX wire may read the send queues.
    shares_send_memory: bool,
    /// `None`: that of the link, or [`DEFAULT_MTU`].
    mtu: Option<u16>,
    rx_queues: u16,
    tap_queues: u16,
    shards: u16,
    linear_bytes: usize,
    impairment: Impairment,
    capture: Option<Capture>,
    tcp: tcp::Config,
    on_warning: OnWarning,
}

/// The stack on a queue of the link, and the fds to wait on for its input.
type QueueStack = (Stack, Vec<OwnedFd>);

/// Receives the warnings of an open.
struct OnWarning(Box<dyn FnMut(&str) + Send>);

impl std::fmt::Debug for OnWarning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnWarning")
    }
}

/// Prints a warning to stderr; a closed stderr is no reason to fail.
fn print_warning(text: &str) {
    let _ = writeln!(io::stderr(), "devmem-tcp: {}", PrintableLines(text));
}

impl NetdevBuilder {
    pub(crate) fn new(link: LinkSpec) -> Self {
        let LinkSpec { kind, options } = link;
        let LinkOptions {
            peers,
            mac,
            ports,
            mode,
            shares_send_memory,
        } = options;
        Self {
            link: kind,
            addresses: Vec::new(),
            auto: false,
            peers: peers.into_iter().map(pair).collect(),
            gateways: Vec::new(),
            mac: mac.map(MacAddr),
            ports,
            macvtap_mode: mode,
            shares_send_memory,
            mtu: None,
            rx_queues: DEFAULT_RX_QUEUES,
            tap_queues: 1,
            shards: 1,
            linear_bytes: 0,
            impairment: Impairment::NONE,
            capture: None,
            tcp: TcpOptions::default().into(),
            on_warning: OnWarning(Box::new(print_warning)),
        }
    }

    /// Adds an address of the NIC with its prefix length, such as `10.77.0.2/24` or `fd77::2/64`. At least one is needed.
    ///
    /// With `auto`, the NIC asks the network: for an IPv4 address from a DHCP server, and for a prefix from a router, in which it makes
    /// an IPv6 address. At least one of them must answer. Their routers are used unless [`gateway`](Self::gateway) names one. This needs
    /// a packet or macvtap link on which the NIC has its own MAC address. [`open`](Self::open) waits for the addresses, 30 seconds at most.
    /// The lease is renewed while the NIC is open, and returned when it is closed. If the server withdraws the address, or nobody renews
    /// an address in time, the connections of that address fail and the NIC asks for another one: listen on `[::]`, which accepts
    /// connections to every address of both families. [`Netdev::addresses`] returns the current ones.
    ///
    /// [`open`](Self::open) refuses an address that this machine or another station has. On packet and macvtap links, and on a TAP that
    /// existed before, it first asks the network, which takes 0.3 s. If another station takes the address later, sockets with this address
    /// fail with EADDRNOTAVAIL ([`Netdev::address_conflicts`]).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) if the text is neither. The address cannot be that of one host: that of the network or its broadcast
    /// address, a multicast, loopback or unspecified one.
    pub fn address(mut self, text: &str) -> Result<Self, Error> {
        match text {
            "auto" => self.auto = true,
            _ => self.addresses.push(pair(text.parse()?)),
        }
        Ok(self)
    }

    /// Adds an address to the kernel's end of a TAP. Without one, a TAP interface that already exists is used as it is.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) if the text is not an address with a prefix length.
    pub fn peer_address(mut self, text: &str) -> Result<Self, Error> {
        self.peers.push(pair(text.parse()?));
        Ok(self)
    }

    /// Passes each warning of [`open`](Self::open) to `receive`, as a text of one or more lines. By default warnings are printed to stderr.
    pub fn on_warning(mut self, receive: impl FnMut(&str) + Send + 'static) -> Self {
        self.on_warning = OnWarning(Box::new(receive));
        self
    }

    /// Sends packets for other networks to this router; one router of each address family is used. It must be in the network of one of
    /// the addresses, or anywhere on the link if an address has the prefix length 32 (IPv6: 128).
    pub fn gateway(mut self, router: IpAddr) -> Self {
        self.gateways.push(router);
        self
    }

    /// Sets the MTU, the size of the largest IP packet: 576 to 65535 bytes, at least 1280 for IPv6. By default 1500, or that of
    /// the interface of a packet or macvtap link. It is also set on the kernel's end of a TAP.
    pub fn mtu(mut self, bytes: u16) -> Self {
        self.mtu = Some(bytes);
        self
    }

    /// Sets the MAC address of the NIC, which must not be that of another station. By default it is random, and locally
    /// administered.
    pub fn mac(mut self, address: [u8; 6]) -> Self {
        self.mac = Some(MacAddr(address));
        self
    }

    /// Makes the NIC of a packet link share the MAC address of the interface, and those of its IP addresses that
    /// [`address`](Self::address) names: the NIC gets these TCP ports (at most 256), and the kernel keeps all others. While the NIC is open,
    /// programs of this machine cannot use the ports. Nor can they reach the NIC, because packets to an address of this machine do not
    /// leave it. Needs CAP_NET_ADMIN, and Linux 5.12 with nftables: a rule, which the kernel removes when this process ends, keeps the
    /// kernel from answering for the ports.
    pub fn share_ports(mut self, ports: RangeInclusive<u16>) -> Self {
        self.ports = Some(ports);
        self
    }

    /// Sets the mode of the macvtap interface that a macvtap link makes, [`MacvtapMode::Bridge`] by default.
    pub fn macvtap_mode(mut self, mode: MacvtapMode) -> Self {
        self.macvtap_mode = Some(mode);
        self
    }

    /// Lets the process at the other end of a UNIX wire read the send queues of this NIC where they are: bytes that the program sends
    /// from its own memory cross the wire with one copy less.
    ///
    /// While that process is connected, it can then read everything that the program passes to a send on any connection of this NIC: even
    /// before TCP sends it, even if TCP never does, and even if it is addressed to this NIC itself. It can read nothing from before it
    /// connected, and nothing that the program sends after another process has taken its place. Without this option, the other end can
    /// read only what was sent to it, and device memory that the program has shared ([`Dmabuf::shared_memfd`](crate::Dmabuf::shared_memfd)).
    /// The option has no effect on a wire that does not share memory, such as an impaired one.
    pub fn share_send_memory(mut self) -> Self {
        self.shares_send_memory = true;
        self
    }

    /// Sets the number of RX queues, 4 by default, each with a page pool. Queue 0 always uses host memory.
    pub fn rx_queues(mut self, queues: u16) -> Self {
        self.rx_queues = queues;
        self
    }

    /// Sets the number of queues of a multi-queue TAP or of a macvtap link (one file descriptor each), 1 by default.
    pub fn tap_queues(mut self, queues: u16) -> Self {
        self.tap_queues = queues;
        self
    }

    /// Sets the number of shards, 1 by default: stacks of the NIC that run at the same time on different cores, each with its own
    /// queue pair of the link, page pools, lock and timers. A hash of its addresses and ports selects the shard of a connection
    /// ([`Stream::shard`](crate::Stream::shard)); connects go to the shards in turn. A program can ignore shards; one that runs a thread
    /// for each of them shares nothing between its threads ([`Netdev::shards`]).
    ///
    /// On a packet link each shard has a socket, and the kernel delivers each connection to the socket of its shard. On a TAP and a
    /// macvtap interface each shard has a queue, to which the kernel delivers by other rules, so some frames cross to their shard
    /// ([`Netdev::crossed_frames`]): on a macvtap interface with `n` shards, `(n - 1) / n` of all received frames. On an in-memory wire,
    /// the NIC at the other end needs the same number. A UNIX wire has one queue, and so one shard.
    ///
    /// Memory that is bound to the NIC is divided among the shards in equal parts, so that one connection receives into one part.
    /// Needs [`tap_queues`](Self::tap_queues) to be 1, and no [`capture`](Self::capture).
    pub fn shards(mut self, shards: u16) -> Self {
        self.shards = shards;
        self
    }

    /// Makes the NIC leave the first `bytes` of every payload in the header buffer, as some hardware does: they arrive as
    /// [`Frag::Linear`](crate::Frag::Linear).
    pub fn linear_bytes(mut self, bytes: usize) -> Self {
        self.linear_bytes = bytes;
        self
    }

    /// Impairs the link in both directions (loss, delay, reordering and more). This turns the link's offloads off: each
    /// frame is one packet of at most the MTU. Packets that the kernel has merged for a packet link are cut.
    pub fn impair(mut self, impairment: Impairment) -> Self {
        self.impairment = impairment;
        self
    }

    /// Passes a copy of every frame to `sink`, payload included. This is for debugging: the CPU copies the payload. A super-packet
    /// is one frame with an IP packet of up to [`nic::BIG_PACKET_LEN`] bytes; Wireshark reads only 256 KiB of a frame.
    pub fn capture(mut self, sink: Box<dyn FrameSink>) -> Self {
        self.capture = Some(Capture(sink));
        self
    }

    /// Sets the TCP options with which connections begin.
    pub fn tcp(self, options: TcpOptions) -> Self {
        self.tcp_config(options.into())
    }

    pub(crate) fn tcp_config(mut self, config: tcp::Config) -> Self {
        self.tcp = config;
        self
    }

    /// Opens the link and starts the stack. Warns if it creates a TAP without an address for the kernel's end: no program on
    /// this host could reach the NIC then.
    ///
    /// # Errors
    /// The link cannot be opened, or an option does not fit it. Each error names its reason and a remedy.
    pub fn open(mut self) -> Result<Netdev, Error> {
        let mut on_warning = std::mem::replace(&mut self.on_warning, OnWarning(Box::new(|_| {})));
        let warning = self.unreachable_tap();
        let Opened {
            shards,
            clock,
            lease,
        } = self.open_stacks()?;
        if let Some(warning) = warning {
            (on_warning.0)(&warning);
        }
        let drivers = shards
            .into_iter()
            .map(|(stack, fds)| driver::in_real_time(stack, clock, fds))
            .collect::<Result<Vec<_>, _>>()
            .map_err(Error::system("eventfd"))?;
        let failed = |error| Error::system("starting a thread")(error);
        let lease = lease.map(|lease| keep_lease(lease, &drivers));
        let lease = lease.transpose().map_err(failed)?;
        let drivers = drivers.into_iter().map(Driver::from).collect();
        let shards = Shared::group(drivers, lease).map_err(failed)?;
        let shard = |shared| Shard::new(shared, StackIndex(0));
        Ok(Netdev::of_shards(shards.into_iter().map(shard)))
    }

    /// Opens the queues of the link, makes a stack on each, and waits until the stacks have their addresses. For the C library, which has
    /// other calls than this one.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    #[doc(hidden)]
    pub fn open_stacks(mut self) -> Result<Opened, Error> {
        // The shards share times of path MTUs, so their clocks have the same origin.
        let clock = Clock::start();
        if let Some(keepalive) = self.tcp.settings.keepalive {
            Keepalive::from(keepalive).check()?;
        }
        let (random_mac, secret) = random_identity()?;
        let mac = self.mac.unwrap_or(random_mac);
        self.check_options(mac)?;
        self.check_shards()?;
        self.check_own_addresses()?;
        let OpenedLinks {
            links,
            port,
            created,
        } = self.open_links(mac)?;
        let lease = self.acquire(port)?;
        let identity = Identity {
            mac: self.mac.unwrap_or(mac),
            secret,
            path_mtus: PathMtus::default(),
            conflicts: AddressConflicts::default(),
            address_check: self.address_check(created),
            leased: lease
                .as_ref()
                .map_or_else(Vec::new, |it| it.addresses().to_vec()),
        };
        let crossings = match self.shards {
            1 => Vec::new(),
            shards => Crossing::group(shards, CrossingWakeup::Eventfd)
                .map_err(Error::system("eventfd"))?,
        };
        let mut crossings = crossings.into_iter();
        let mut stacks = Vec::new();
        for (number, link) in (0..).zip(links) {
            let link = self.decorate(link, number);
            let mut fds = link_fds(&*link)?;
            let crossing = crossings.next();
            if let Some(fd) = crossing.as_ref().and_then(Crossing::poll_fd) {
                fds.push(fd.try_clone_to_owned().map_err(Error::system("dup"))?);
            }
            stacks.push((self.stack(link, &identity, crossing)?, fds));
        }
        self.await_addresses(&mut stacks, &clock)?;
        Ok(Opened {
            shards: stacks,
            clock,
            lease,
        })
    }

    /// Checks the MAC address, and the options that only some links have.
    fn check_options(&self, mac: MacAddr) -> Result<(), Error> {
        let is_packet = matches!(self.link, LinkKind::Packet(_));
        let is_macvtap = matches!(self.link, LinkKind::Macvtap(_));
        let is_unix = matches!(self.link, LinkKind::Unix(_) | LinkKind::UnixListen(_));
        let (reason, remedy) = if !mac.is_unicast() {
            (
                "the MAC address is not that of one station",
                "make its first byte even",
            )
        } else if self.ports.is_some() && !is_packet {
            (
                "only a NIC on a packet link shares addresses and ports",
                "open packet:NAME",
            )
        } else if self.macvtap_mode.is_some() && !is_macvtap {
            (
                "only a macvtap link has a mode",
                "open macvtap:NAME,mode=bridge",
            )
        } else if self.shares_send_memory && !is_unix {
            (
                "only the other end of a UNIX wire can read send queues",
                "open unix:PATH or unix-listen:PATH, or do not share them",
            )
        } else {
            return Ok(());
        };
        Err(Error::invalid(reason).with_remedy(remedy))
    }

    /// Checks whether the NIC can have as many shards.
    fn check_shards(&self) -> Result<(), Error> {
        let reason = match (self.shards, &self.link) {
            (1, _) => return Ok(()),
            (0, _) => "a NIC has at least one shard".to_owned(),
            (MAX_SHARDS_PLUS_ONE.., _) => format!("a NIC has at most {MAX_SHARDS} shards"),
            (_, LinkKind::Unix(_) | LinkKind::UnixListen(_)) => {
                format!(
                    "a NIC on {} has one shard: its socket is one queue",
                    self.link
                )
            }
            _ if self.tap_queues != 1 => "each shard has one queue of the link".to_owned(),
            _ if self.capture.is_some() => "a capture needs a NIC with one shard".to_owned(),
            _ => return Ok(()),
        };
        Err(Error::invalid(reason).with_remedy(Remedy::OneShard))
    }
}

impl NetdevBuilder {
    fn stack(
        &self,
        link: Box<dyn Link>,
        identity: &Identity,
        crossing: Option<Crossing>,
    ) -> Result<Stack, Error> {
        let mut nic = Nic::new(
            link,
            NicConfig {
                mac: identity.mac,
                mtu: self.mtu.unwrap_or(DEFAULT_MTU),
                rx_queues: self.rx_queues,
                linear_bytes: self.linear_bytes,
                ..NicConfig::default()
            },
        )
        .map_err(|error| Error::invalid(error.to_string()))?;
        if let Some(crossing) = crossing {
            nic.join(crossing);
        }
        let leased = identity.leased.first();
        let first = leased.map(|leased| (leased.ip, leased.prefix_len));
        let Some((address, prefix)) = self.addresses.first().copied().or(first) else {
            return Err(Error::invalid("the NIC has no address").with_remedy(Remedy::GiveAddress));
        };
        let config = StackConfig::new(address, prefix, identity.secret);
        let local_ports = self
            .ports
            .as_ref()
            .map_or(LocalPorts::All, |ports| LocalPorts::Range {
                first: *ports.start(),
                last: *ports.end(),
            });
        let config = StackConfig {
            local_ports,
            addresses: self.addresses.clone(),
            leased: identity.leased.clone(),
            gateways: self.gateways.clone(),
            tcp: self.tcp.clone(),
            path_mtus: identity.path_mtus.clone(),
            conflicts: identity.conflicts.clone(),
            address_check: identity.address_check,
            ..config
        };
        Ok(Stack::new(nic, config)?)
    }
}

/// Opens two NICs on one in-memory wire in virtual time.
fn open_pair(impairment: Impairment) -> Result<(Netdev, Netdev), Error> {
    let offload = impairment.is_none();
    let (left, right) = WireLink::pair(WireOptions {
        offload,
        ..WireOptions::default()
    })
    .map_err(Error::system("eventfd"))?;
    let mut stacks = Vec::new();
    for (number, link) in [(1u8, left), (2, right)] {
        let builder = NetdevBuilder::new(LinkKind::Memory("pair".to_owned()).into())
            .address(&format!("10.77.0.{number}/24"))?
            .address(&format!("fd77::{number}/64"))?;
        // Each frame is impaired once, at its receiver.
        let link: Box<dyn Link> = if offload {
            Box::new(link)
        } else {
            let seed = impairment.seed.wrapping_add(u64::from(number));
            Box::new(Impaired::new(
                Box::new(link),
                Impairment { seed, ..impairment },
                Impairment::NONE,
            ))
        };
        let seed = impairment
            .seed
            .wrapping_mul(2)
            .wrapping_add(u64::from(number));
        let identity = Identity {
            mac: MacAddr([2, 0, 0, 0, 0, number]),
            secret: Secret::from_seed(seed),
            path_mtus: PathMtus::default(),
            conflicts: AddressConflicts::default(),
            address_check: AddressCheck::Announce,
            leased: Vec::new(),
        };
        stacks.push(builder.stack(link, &identity, None)?);
    }
    let driver = Driver::in_virtual_time(stacks);
    let shared = Shared::group(vec![driver], None).map_err(Error::system("starting a thread"))?;
    let end = |index| {
        let shared = shared.iter().map(Arc::clone);
        Netdev::of_shards(shared.map(|shared| Shard::new(shared, StackIndex(index))))
    };
    Ok((end(0), end(1)))
}

fn pair(prefix: Prefix) -> (IpAddr, u8) {
    (prefix.address(), prefix.len())
}

/// Duplicates the fds to wait on for input from the link and for room in it, as far as it has them.
fn link_fds(link: &dyn Link) -> Result<Vec<OwnedFd>, Error> {
    let fds = [link.poll_fd(), link.room_fd()].into_iter().flatten();
    fds.map(|fd| fd.try_clone_to_owned())
        .collect::<Result<_, _>>()
        .map_err(Error::system("dup"))
}

/// Returns a random locally administered unicast MAC address (IEEE 802, 48.2) and a random stack secret.
fn random_identity() -> Result<(MacAddr, Secret), Error> {
    let [a, b, c, d, e, secret @ ..] = random_bytes::<21>()?;
    Ok((MacAddr([0x02, a, b, c, d, e]), Secret::new(secret)))
}

fn random_bytes<const LEN: usize>() -> Result<[u8; LEN], Error> {
    let mut bytes = [0; LEN];
    let mut filled = 0;
    while filled < LEN {
        let got = getrandom(&mut bytes[filled..], GetRandomFlags::empty());
        filled += got.map_err(Error::system("getrandom"))?;
    }
    Ok(bytes)
}
