//! Neighbour discovery: answers questions for our addresses, learns those of neighbours (RFC 4861).

use std::net::{IpAddr, Ipv6Addr};

use nic::HeadBuf;
use wire::{Instant, MacAddr, NeighborAdvertisement, NeighborSolicitation};

use super::Network;
use crate::drops::DropReason;
use crate::neighbor::{Change, Claim, Learnt};
use crate::route::is_unicast;

impl Network {
    /// Answers "who has one of our addresses?" (RFC 4861 7.2.3, 7.2.4).
    pub(crate) fn on_solicitation(
        &mut self,
        from: MacAddr,
        peer: Ipv6Addr,
        asked: &NeighborSolicitation,
        now: Instant,
    ) {
        let NeighborSolicitation { target, source_mac } = *asked;
        if !self.routes.is_ours(target.into()) {
            return self.drops.count(DropReason::IcmpIgnored);
        }
        let answer = |solicited| NeighborAdvertisement {
            target,
            target_mac: Some(self.mac()),
            router: false,
            solicited,
            overrides: true,
        };
        if peer.is_unspecified() {
            // Somebody tries our address out for himself: tell everybody whose it is.
            let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
            let macs = (self.mac(), MacAddr::for_ipv6_multicast(all_nodes));
            let head =
                HeadBuf::with(|out| answer(false).emit_frame(macs, (target, all_nodes), out));
            return self.send_frame(head, now);
        }
        if !is_unicast(peer.into()) || !self.routes.is_on_link(peer.into()) {
            return self.drops.count(DropReason::IcmpInvalid);
        }
        // Only the option says where its sender is (RFC 4861 7.2.3); without it the answer goes where the question came
        // from, and nothing is learnt.
        let known = self.neighbors.peek(peer.into());
        let to = match source_mac {
            Some(mac) => self.station(mac),
            None => known.or(self.station(from)),
        };
        let Some(to) = to else {
            return self.drops.count(DropReason::IcmpInvalid);
        };
        let head =
            HeadBuf::with(|out| answer(true).emit_frame((self.mac(), to), (target, peer), out));
        self.send_frame(head, now);
        if source_mac.is_some() {
            let claim = Claim {
                mac: to,
                learnt: Learnt::Hearsay,
                change: Change::Replaces,
            };
            let waited = self.neighbors.expect(peer.into(), claim, now);
            self.send_waited(to, waited.unwrap_or_default(), now);
        }
    }

    /// Notes where a neighbour says it is (RFC 4861 7.2.5).
    pub(crate) fn on_advertisement(&mut self, told: &NeighborAdvertisement, now: Instant) {
        let NeighborAdvertisement {
            target,
            target_mac,
            solicited,
            overrides,
            router: _,
        } = *told;
        let target = IpAddr::V6(target);
        if self.routes.is_ours(target) {
            // Another station has our address, which is not defended beyond answering; or this is our own advertisement
            // that the link brought back.
            let is_our_own = target_mac == Some(self.mac());
            return self.drops.count(match is_our_own {
                true => DropReason::IcmpInvalid,
                false => DropReason::AddressConflict,
            });
        }
        let mac = target_mac.or_else(|| self.neighbors.peek(target));
        let Some(mac) = mac.and_then(|mac| self.station(mac)) else {
            return self.drops.count(DropReason::IcmpInvalid);
        };
        let claim = Claim {
            mac,
            learnt: match solicited {
                true => Learnt::Answer,
                false => Learnt::Hearsay,
            },
            change: match overrides {
                true => Change::Replaces,
                false => Change::Doubts,
            },
        };
        match self.neighbors.learn(target, claim, now) {
            Ok(waited) => self.send_waited(mac, waited, now),
            Err(_) => self.drops.count(DropReason::NeighborClaimRefused),
        }
    }
}
