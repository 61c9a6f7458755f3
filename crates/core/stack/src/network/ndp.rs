//! Neighbour discovery: replies to solicitations for local addresses, learns hardware addresses of neighbours (RFC 4861).

use std::net::{IpAddr, Ipv6Addr};

use nic::{HeadBuf, Nic, Origin};
use wire::{Instant, MacAddr, NeighborAdvertisement, NeighborSolicitation};

use super::Network;
use crate::drops::DropReason;
use crate::neighbor::{Change, Claim, LearnedFrom};
use crate::route::is_unicast;

impl Network {
    /// Replies to a solicitation for a local address (RFC 4861 7.2.3, 7.2.4). Another shard replies to one of which this is a
    /// copy.
    pub(crate) fn on_solicitation(
        &mut self,
        nic: &mut Nic,
        from: MacAddr,
        peer: Ipv6Addr,
        asked: &NeighborSolicitation,
        origin: Origin,
        now: Instant,
    ) {
        let NeighborSolicitation { target, source_mac } = *asked;
        if self.station(from).is_none() {
            // The link has returned a frame of this station.
            return self.drops.count(DropReason::IcmpInvalid);
        }
        if self.claims_address(peer.into()) {
            return self.on_claimed(nic, peer.into(), from, origin, now);
        }
        if peer.is_unspecified() && self.on_probed(target.into(), from, origin, now) {
            return;
        }
        if !self.routes.is_ours(target.into()) {
            return self.drops.count(DropReason::IcmpIgnored);
        }
        let answers = origin != Origin::Copy;
        if peer.is_unspecified() {
            // Another station checks whether the address is free: reply to all stations.
            if answers {
                self.announce(nic, target.into(), now);
            }
            return;
        }
        if !is_unicast(peer.into()) || !self.routes.is_on_link(peer.into()) {
            return self.drops.count(DropReason::IcmpInvalid);
        }
        // Only the option contains the sender's hardware address (RFC 4861 7.2.3). Without it nothing is learnt, and the
        // reply goes to the source of the frame.
        let known = self.neighbors.peek(peer.into());
        let to = match source_mac {
            Some(mac) => self.station(mac),
            None => known.or(self.station(from)),
        };
        let Some(to) = to else {
            return self.drops.count(DropReason::IcmpInvalid);
        };
        if answers {
            let answer = NeighborAdvertisement {
                target,
                target_mac: Some(self.mac),
                router: false,
                solicited: true,
                overrides: true,
            };
            let head = HeadBuf::with(|out| answer.emit_frame(self.mac, to, target, peer, out));
            self.send_frame(nic, head, now);
        }
        if source_mac.is_some() {
            let claim = Claim {
                mac: to,
                learnt: LearnedFrom::Hearsay,
                change: Change::Replaces,
            };
            let waited = self.neighbors.expect(peer.into(), claim, now);
            self.send_waited(nic, to, waited.unwrap_or_default(), now);
        }
    }

    /// Learns the hardware address in an advertisement (RFC 4861 7.2.5), which the station `from` has sent.
    pub(crate) fn on_advertisement(
        &mut self,
        nic: &mut Nic,
        from: MacAddr,
        told: &NeighborAdvertisement,
        origin: Origin,
        now: Instant,
    ) {
        let NeighborAdvertisement {
            target,
            target_mac,
            solicited,
            overrides,
            router: _,
        } = *told;
        let target = IpAddr::V6(target);
        if self.claims_address(target) {
            // Or the link has returned an advertisement of this stack.
            let other = target_mac.unwrap_or(from);
            return match other == self.mac || from == self.mac {
                true => self.drops.count(DropReason::IcmpInvalid),
                false => self.on_claimed(nic, target, other, origin, now),
            };
        }
        let mac = target_mac.or_else(|| self.neighbors.peek(target));
        let Some(mac) = mac.and_then(|mac| self.station(mac)) else {
            return self.drops.count(DropReason::IcmpInvalid);
        };
        let claim = Claim {
            mac,
            learnt: match solicited {
                true => LearnedFrom::Answer,
                false => LearnedFrom::Hearsay,
            },
            change: match overrides {
                true => Change::Replaces,
                false => Change::Doubts,
            },
        };
        match self.neighbors.learn(target, claim, now) {
            Ok(waited) => self.send_waited(nic, mac, waited, now),
            Err(_) => self.drops.count(DropReason::NeighborClaimRefused),
        }
    }
}
