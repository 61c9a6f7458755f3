//! `macvtap:NAME`: a link over a macvtap interface.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use devmem_linux::macvtap::{self, MacvtapError, MacvtapOptions};
use devmem_linux::netif::{InterfaceState, InterfaceWatch};
use devmem_linux::tap::TapOffloads;
use devmem_uapi::Errno;
use lease::LeasePort;
use nic::{InterfaceReports, InterfaceStatus, MacvtapLink, StatusQuery, TapLink, TapOptions};
use wire::MacAddr;

use super::packet;
use super::queues::of_shards;
use crate::error::{Error, ErrorKind};
use crate::link::MacvtapMode;

fn of_kernel(mode: MacvtapMode) -> macvtap::MacvtapMode {
    match mode {
        MacvtapMode::Bridge => macvtap::MacvtapMode::Bridge,
        MacvtapMode::Private => macvtap::MacvtapMode::Private,
        MacvtapMode::Vepa => macvtap::MacvtapMode::Vepa,
        MacvtapMode::Passthru => macvtap::MacvtapMode::Passthru,
    }
}

/// The settings of a macvtap link.
#[derive(Clone, Copy, Debug)]
pub(super) struct MacvtapSettings {
    /// Only for an interface that is made.
    pub(super) mode: Option<MacvtapMode>,
    pub(super) mac: Option<MacAddr>,
    pub(super) mtu: Option<u16>,
    /// Queues of the link of one shard.
    pub(super) queues: u16,
    pub(super) shards: u16,
    pub(super) offloads: TapOffloads,
    /// Open a socket to get addresses, too.
    pub(super) auto: bool,
}

/// An open link.
pub(super) struct OpenMacvtap {
    /// One for each shard.
    pub(super) links: Vec<MacvtapLink>,
    /// MAC address of the NIC.
    pub(super) mac: MacAddr,
    /// MTU of the interface.
    pub(super) mtu: u16,
    pub(super) port: Option<LeasePort>,
}

/// Opens a link.
pub(super) fn open(
    name: &str,
    settings: MacvtapSettings,
    addresses: &[(std::net::IpAddr, u8)],
) -> Result<OpenMacvtap, Error> {
    let MacvtapSettings {
        mode,
        mac,
        mtu,
        queues,
        shards,
        offloads,
        auto,
    } = settings;
    let opened = MacvtapOptions {
        interface: name.to_owned(),
        mode: mode.map(of_kernel),
        mac: mac.map(|mac| mac.0),
        mtu,
        queues: queues.max(shards),
        watches: shards,
        offloads,
        multicast: packet::solicited_nodes(addresses),
        auto,
    }
    .open()
    .map_err(|error| refused(name, error))?;
    let options = TapOptions {
        offloads: offloads == TapOffloads::Segmentation,
        // The MTU of an Ethernet interface is at most 65,535 (linux include/uapi/linux/if_ether.h ETH_MAX_MTU).
        mtu: u16::try_from(opened.mtu).unwrap_or(u16::MAX),
        max_super_packet: packet::super_packet_limit(opened.max_super_packet),
        max_rx_packet: nic::BIG_PACKET_LEN,
    };
    let hold = Arc::new(opened.hold);
    // The counter of dropped frames is one of the interface: the first shard counts them.
    let counts = std::iter::once(Dropped::Counted).chain(std::iter::repeat(Dropped::Ignored));
    let mut links = Vec::new();
    for ((queues, watch), dropped) in of_shards(opened.queues, shards)
        .into_iter()
        .zip(opened.watches)
        .zip(counts)
    {
        let tap = TapLink::new(queues, options).map_err(Error::system("epoll"))?;
        let reports = reports(watch, dropped).map_err(Error::system("dup"))?;
        let link = MacvtapLink::new(tap, reports).map_err(Error::system("epoll"))?;
        links.push(link.keeping(Arc::clone(&hold)));
    }
    Ok(OpenMacvtap {
        links,
        mac: MacAddr(opened.mac),
        mtu: options.mtu,
        port: opened.auto.map(packet::lease_port),
    })
}

/// Whether reports tell how many frames the interface has dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dropped {
    Counted,
    Ignored,
}

/// Returns the reports of a watched interface.
fn reports(mut watch: InterfaceWatch, counted: Dropped) -> io::Result<InterfaceReports> {
    let socket = watch.as_fd().try_clone_to_owned()?;
    let mut dropped = None;
    let look = move |look| {
        if look == StatusQuery::Ask {
            // If the socket has no room, its messages tell as much.
            let _ = watch.ask();
        }
        let InterfaceState {
            presence,
            rx_dropped,
        } = watch.latest()?;
        let rx_dropped = rx_dropped.filter(|_| counted == Dropped::Counted);
        let now = rx_dropped.or(dropped);
        // An interface that exists has dropped frames before, too.
        let before = std::mem::replace(&mut dropped, now).or(now);
        Some(InterfaceStatus {
            state: packet::link_state(presence),
            lost: now.unwrap_or(0).saturating_sub(before.unwrap_or(0)),
        })
    };
    Ok(InterfaceReports {
        socket,
        look: Box::new(look),
    })
}

fn refused(name: &str, error: MacvtapError) -> Error {
    let error = match error {
        MacvtapError::Interface(error) => return packet::refused(name, error),
        error => error,
    };
    let errno = Errno(error.errno().raw_os_error());
    let kind = match error.is_unsupported() {
        true => ErrorKind::Unsupported,
        false => ErrorKind::of_errno(errno),
    };
    Error::new(kind, errno, error.to_string())
        .with_remedy_if(error.remedy())
        .on(name)
}
