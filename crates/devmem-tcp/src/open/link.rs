//! Opening the link of a NIC: a queue of it for each shard, and the kernel's end of a TAP.

use std::net::IpAddr;
use std::sync::Arc;

use devmem_linux::netif::Interface;
use devmem_linux::netlink::NetlinkError;
use devmem_linux::tap::{Tap, TapOffloads, TapOptions, TapSetUp, VnetHeader};
use devmem_uapi::Errno;
use nic::{Captured, Impaired, Impairment, Link, TapLink, WireHello};
use wire::MacAddr;

use super::macvtap::{self, MacvtapSettings};
use super::opened_links::OpenedLinks;
use super::packet::{self, Sharing};
use super::queues::of_shards;
use super::{DEFAULT_MTU, NetdevBuilder, memory, unix};
use crate::error::{Error, ErrorKind};
use crate::link::LinkKind;

impl NetdevBuilder {
    /// Opens the link of a NIC with the MAC address `mac`: a queue of it for each shard.
    pub(super) fn open_links(&mut self, mac: MacAddr) -> Result<OpenedLinks, Error> {
        let offloads = self.impairment.is_none();
        let mtu = self.mtu.unwrap_or(DEFAULT_MTU);
        self.check_auto()?;
        let (mut port, mut created) = (None, false);
        let links = match &self.link {
            LinkKind::Tap(name) => {
                let (links, is_new) = self.open_tap(name, mtu, offloads)?;
                created = is_new;
                boxed(links)
            }
            LinkKind::Packet(name) => {
                let sharing = match &self.ports {
                    Some(ports) => Sharing::Ports(ports.clone()),
                    None => Sharing::Nothing(mac),
                };
                let (links, mac) = packet::open(name, &sharing, &self.addresses, self.shards)?;
                if self.auto {
                    port = Some(packet::open_auto(name, mac)?);
                }
                self.mac = Some(mac);
                let interfaces = links.first().map(|link| link.caps().mtu);
                self.mtu = self.mtu.or(interfaces);
                boxed(links)
            }
            LinkKind::Macvtap(name) => {
                let settings = MacvtapSettings {
                    mode: self.macvtap_mode,
                    mac: self.mac,
                    mtu: self.mtu,
                    queues: self.tap_queues,
                    shards: self.shards,
                    offloads: tap_offloads(offloads),
                    auto: self.auto,
                };
                let opened = macvtap::open(name, settings, &self.addresses)?;
                self.mac = Some(opened.mac);
                self.mtu.get_or_insert(opened.mtu);
                port = opened.port;
                boxed(opened.links)
            }
            LinkKind::Unix(path) => {
                let ours = wire_hello(mtu, offloads);
                boxed([unix::join(path, ours, self.shares_send_memory)?])
            }
            LinkKind::UnixListen(path) => {
                let ours = wire_hello(mtu, offloads);
                boxed([unix::listen(path, ours, self.shares_send_memory)?])
            }
            LinkKind::Memory(name) => boxed(memory::links(name, self.shards, mtu, offloads)?),
        };
        Ok(OpenedLinks {
            links,
            port,
            created,
        })
    }

    /// Returns whether TCP may send super-packets that are longer than an IP header can say.
    fn sends_big_packets(&self) -> bool {
        self.tcp
            .max_gso_payload
            .is_none_or(|most| most > nic::LEGACY_SUPER_PAYLOAD)
    }

    /// Opens the TAP and sets up the kernel's end of it: MTU, addresses, up. Returns a link for each shard, and whether the
    /// TAP did not exist before.
    fn open_tap(
        &self,
        name: &str,
        mtu: u16,
        offloads: bool,
    ) -> Result<(Vec<TapLink>, bool), Error> {
        // Without segmentation offload no packet is longer than the MTU.
        let big_tcp = offloads && Interface::kernel_has_big_tcp().unwrap_or(false);
        let tap = TapOptions {
            queues: self.tap_queues.max(self.shards),
            offloads: tap_offloads(offloads),
            vnet_header: VnetHeader::Short,
            napi: big_tcp && self.sends_big_packets(),
            ..TapOptions::new(name)
        }
        .open()
        .map_err(Error::from)?;
        let set_up = self.set_up_interface(&tap, mtu);
        let set_up = Arc::new(set_up.map_err(|error| refused_set_up(name, error))?);
        let options = nic::TapOptions {
            offloads,
            mtu,
            max_super_packet: match big_tcp {
                true => nic::BIG_PACKET_LEN,
                false => nic::MAX_PACKET_LEN,
            },
            // The kernel passes no longer ones to a TAP (linux v6.18 drivers/net/tun.c leaves tso_max_size at 64 KiB).
            max_rx_packet: nic::MAX_PACKET_LEN,
        };
        let created = tap.created();
        let links = of_shards(tap.into_queues(), self.shards)
            .into_iter()
            .map(|queues| TapLink::new(queues, options));
        let links = links.map(|link| link.map(|link| link.keeping(Arc::clone(&set_up))));
        let links = links.collect::<Result<_, _>>();
        Ok((links.map_err(Error::system("epoll"))?, created))
    }

    /// Returns a warning if the TAP does not exist yet and the kernel's end gets no address.
    pub(super) fn unreachable_tap(&self) -> Option<String> {
        let LinkKind::Tap(name) = &self.link else {
            return None;
        };
        if !self.peers.is_empty() || Interface::by_name(name).is_ok() {
            return None;
        }
        let &(ours, prefix) = self.addresses.first()?;
        let theirs = format!("{}/{prefix}", neighbour_of(ours));
        Some(format!(
            "the kernel's end of TAP {name} has no address, so no program on this host can reach {ours}; open the link as \
             \"tap:{name},{theirs}\", or type: ip address add {theirs} dev {name}"
        ))
    }

    fn set_up_interface(&self, tap: &Tap, mtu: u16) -> Result<Option<TapSetUp>, NetlinkError> {
        // An interface that existed before is used as it is.
        if !tap.created() && self.peers.is_empty() {
            return Ok(None);
        }
        tap.set_up_interface(mtu, &self.peers).map(Some)
    }

    /// Puts the conditioner and the capture around the link of the shard `number`.
    pub(super) fn decorate(&mut self, link: Box<dyn Link>, number: u64) -> Box<dyn Link> {
        let link: Box<dyn Link> = if self.impairment.is_none() {
            link
        } else {
            let seed = self.impairment.seed.wrapping_add(number);
            let impairment = Impairment {
                seed,
                ..self.impairment
            };
            Box::new(Impaired::both(link, impairment))
        };
        match self.capture.take() {
            Some(capture) => Box::new(Captured::new(link, capture)),
            None => link,
        }
    }
}

fn boxed<L: Link + 'static>(links: impl IntoIterator<Item = L>) -> Vec<Box<dyn Link>> {
    let boxed = |link| -> Box<dyn Link> { Box::new(link) };
    links.into_iter().map(boxed).collect()
}

fn tap_offloads(offloads: bool) -> TapOffloads {
    match offloads {
        true => TapOffloads::Segmentation,
        false => TapOffloads::None,
    }
}

/// Returns what the NIC allows the other end of a UNIX wire. Impairment works on single frames with their bytes.
fn wire_hello(mtu: u16, offloads: bool) -> WireHello {
    WireHello {
        offloads,
        mtu,
        shares_memory: offloads,
        needs_offloads: false,
    }
}

/// Returns an address of the same network: the one that ends in 1, or in 2 if that is `ours`.
fn neighbour_of(ours: IpAddr) -> IpAddr {
    let number = |last: u8| if last == 1 { 2 } else { 1 };
    match ours {
        IpAddr::V4(ip) => {
            let [a, b, c, last] = ip.octets();
            IpAddr::from([a, b, c, number(last)])
        }
        IpAddr::V6(ip) => {
            let mut octets = ip.octets();
            octets[15] = number(octets[15]);
            IpAddr::from(octets)
        }
    }
}

/// The kernel's end of a TAP could not be set up.
fn refused_set_up(name: &str, error: NetlinkError) -> Error {
    let errno = Errno(error.errno.raw_os_error());
    let remedy =
        "this needs CAP_NET_ADMIN in its network namespace: run as root, or inside `unshare -rn`";
    let reason = format!("cannot set up {name}: {error}");
    Error::new(ErrorKind::of_errno(errno), errno, reason)
        .with_remedy(remedy)
        .on(name)
}
