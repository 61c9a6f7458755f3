//! Neighbor discovery: solicitations and advertisements (RFC 4861 4.3, 4.4, 7).

use std::net::Ipv6Addr;

use super::{IcmpError, pseudo_header, store_checksum};
use crate::emit::{IpRepr, emit_frame_headers};
use crate::ethernet::{EtherType, EthernetHeader, MacAddr};
use crate::ipv6::Ipv6Header;
use crate::protocol;

pub(super) const SOLICITATION: u8 = 135;
pub(super) const ADVERTISEMENT: u8 = 136;

/// A packet with a smaller hop limit came through a router (RFC 4861 7.1).
const HOP_LIMIT: u8 = 255;

const SOURCE_LINK_ADDRESS: u8 = 1;
const TARGET_LINK_ADDRESS: u8 = 2;

/// Bytes before the options, and with the one option that we send.
const FIXED_LEN: usize = 24;
const OPTION_LEN: usize = 8;

const ROUTER: u8 = 0x80;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;

/// Returns the multicast group on which the owner of `target` listens for solicitations
/// (RFC 4291 2.7.1).
pub const fn solicited_node(target: Ipv6Addr) -> Ipv6Addr {
    let octets = target.octets();
    let low = u16::from_be_bytes([octets[14], octets[15]]);
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | octets[13] as u16, low)
}

/// "Who has `target`?"
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighborSolicitation {
    /// Address to resolve.
    pub target: Ipv6Addr,
    /// Hardware address of the sender; absent in duplicate address detection.
    pub source_mac: Option<MacAddr>,
}

/// "`target` is at `target_mac`."
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NeighborAdvertisement {
    /// Resolved address.
    pub target: Ipv6Addr,
    /// Its hardware address; optional in the answer to a unicast solicitation.
    pub target_mac: Option<MacAddr>,
    /// The sender is a router.
    pub router: bool,
    /// This answers a solicitation.
    pub solicited: bool,
    /// A cached hardware address should be replaced.
    pub overrides: bool,
}

impl NeighborSolicitation {
    pub(super) fn parse(ip: &Ipv6Header, message: &[u8]) -> Result<Self, IcmpError> {
        let (_, target, options) = parse_common(ip, message)?;
        let source_mac = link_address(options, SOURCE_LINK_ADDRESS)?;
        // Duplicate address detection sends to the solicited-node group, without a source link-layer
        // address (RFC 4861 7.1.1).
        let probe = ip.src.is_unspecified();
        if probe && (source_mac.is_some() || ip.dst != solicited_node(target)) {
            return Err(IcmpError::BadNeighborDiscovery);
        }
        Ok(Self { target, source_mac })
    }

    /// Writes a whole frame from `src_mac` and `src` to `dst_mac` and `dst` to the start of `out`,
    /// returns its length.
    ///
    /// # Panics
    /// If `out` is shorter than the frame (86 bytes with the hardware address).
    pub fn emit_frame(
        &self,
        src_mac: MacAddr,
        dst_mac: MacAddr,
        src: Ipv6Addr,
        dst: Ipv6Addr,
        out: &mut [u8],
    ) -> usize {
        let Self { target, source_mac } = *self;
        let option = source_mac.map(|mac| (SOURCE_LINK_ADDRESS, mac));
        let addresses = (src_mac, dst_mac, src, dst);
        emit_frame([SOLICITATION, 0], target, option, addresses, out)
    }
}

impl NeighborAdvertisement {
    pub(super) fn parse(ip: &Ipv6Header, message: &[u8]) -> Result<Self, IcmpError> {
        let (flags, target, options) = parse_common(ip, message)?;
        let solicited = flags & SOLICITED != 0;
        if solicited && ip.dst.is_multicast() {
            return Err(IcmpError::BadNeighborDiscovery);
        }
        Ok(Self {
            target,
            target_mac: link_address(options, TARGET_LINK_ADDRESS)?,
            router: flags & ROUTER != 0,
            solicited,
            overrides: flags & OVERRIDE != 0,
        })
    }

    /// Writes a whole frame from `src_mac` and `src` to `dst_mac` and `dst` to the start of `out`,
    /// returns its length.
    ///
    /// # Panics
    /// If `out` is shorter than the frame (86 bytes with the hardware address).
    pub fn emit_frame(
        &self,
        src_mac: MacAddr,
        dst_mac: MacAddr,
        src: Ipv6Addr,
        dst: Ipv6Addr,
        out: &mut [u8],
    ) -> usize {
        let Self {
            target,
            target_mac,
            router,
            solicited,
            overrides,
        } = *self;
        let flags = if router { ROUTER } else { 0 }
            | if solicited { SOLICITED } else { 0 }
            | if overrides { OVERRIDE } else { 0 };
        let option = target_mac.map(|mac| (TARGET_LINK_ADDRESS, mac));
        let addresses = (src_mac, dst_mac, src, dst);
        emit_frame([ADVERTISEMENT, flags], target, option, addresses, out)
    }
}

/// Returns flags, target and options after the checks of RFC 4861 7.1.1 and 7.1.2.
fn parse_common<'a>(
    ip: &Ipv6Header,
    message: &'a [u8],
) -> Result<(u8, Ipv6Addr, &'a [u8]), IcmpError> {
    let (fixed, options) = message
        .split_first_chunk::<FIXED_LEN>()
        .ok_or(IcmpError::Truncated)?;
    let (head, target) = fixed.split_at(8);
    let target: [u8; 16] = target.try_into().map_err(|_| IcmpError::Truncated)?;
    let target = Ipv6Addr::from(target);
    if ip.hop_limit != HOP_LIMIT || head[1] != 0 || target.is_multicast() {
        return Err(IcmpError::BadNeighborDiscovery);
    }
    Ok((head[4], target, options))
}

/// Returns the first link-layer address option of `kind`. Fails if an option has length 0, or if this one does not
/// contain a unicast Ethernet address (RFC 2464 6).
fn link_address(mut options: &[u8], kind: u8) -> Result<Option<MacAddr>, IcmpError> {
    let mut found = None;
    while !options.is_empty() {
        let &[option, units, ..] = options else {
            return Err(IcmpError::BadNeighborDiscovery);
        };
        let (body, rest) = (units != 0)
            .then(|| options.split_at_checked(usize::from(units) * 8))
            .flatten()
            .ok_or(IcmpError::BadNeighborDiscovery)?;
        if option == kind {
            let &[_, _, a, b, c, d, e, f] = body else {
                return Err(IcmpError::BadNeighborDiscovery);
            };
            let mac = MacAddr([a, b, c, d, e, f]);
            if !mac.is_unicast() {
                return Err(IcmpError::BadNeighborDiscovery);
            }
            found = found.or(Some(mac));
        }
        options = rest;
    }
    Ok(found)
}

/// Writes a frame with a message, from and to the hardware and IP addresses; returns its length.
fn emit_frame(
    [kind, flags]: [u8; 2],
    target: Ipv6Addr,
    option: Option<(u8, MacAddr)>,
    (src_mac, dst_mac, src, dst): (MacAddr, MacAddr, Ipv6Addr, Ipv6Addr),
    out: &mut [u8],
) -> usize {
    let ethernet = EthernetHeader {
        dst: dst_mac,
        src: src_mac,
        ethertype: EtherType::IPV6,
        vlan: None,
    };
    let ip = IpRepr::v6(src, dst).with_hop_limit(HOP_LIMIT);
    let len = FIXED_LEN + option.map_or(0, |_| OPTION_LEN);
    let at = emit_frame_headers(&ethernet, &ip, protocol::ICMPV6, len, out);
    let message = &mut out[at..at + len];
    message[..8].copy_from_slice(&[kind, 0, 0, 0, flags, 0, 0, 0]);
    message[8..FIXED_LEN].copy_from_slice(&target.octets());
    if let Some((option, mac)) = option {
        message[FIXED_LEN..FIXED_LEN + 2].copy_from_slice(&[option, 1]);
        message[FIXED_LEN + 2..].copy_from_slice(&mac.0);
    }
    store_checksum(message, pseudo_header(src, dst, len));
    at + len
}
