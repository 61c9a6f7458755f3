//! Frames about the local addresses: questions whether another station has them, announcements, and conflicts.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use nic::{HeadBuf, Nic, Origin};
use wire::{
    ArpPacket, Instant, MacAddr, NeighborAdvertisement, NeighborSolicitation, solicited_node,
};

use super::Network;
use crate::claims::{AddressConflict, ClaimAction, ConflictOutcome};
use crate::drops::DropReason;
use crate::route::{AddressError, LeasedAddress, is_link_local};

impl Network {
    /// Adds a local address with its routes, or changes them. The caller has asked whether another station has it; nobody has
    /// asked about the link-local address that may come with it.
    pub(crate) fn add_address(
        &mut self,
        nic: &mut Nic,
        leased: &LeasedAddress,
        now: Instant,
    ) -> Result<(), AddressError> {
        self.routes.add(self.mac, leased)?;
        self.has_leases = true;
        if self.point_to_point.is_some() {
            return Ok(());
        }
        self.claims.add_used(leased.ip);
        let added: Vec<IpAddr> = self.routes.all_addresses().collect();
        for ip in added {
            self.claims.use_and_ask(ip, now);
        }
        self.claims.announce_all(now);
        self.poll_claims(nic, now);
        Ok(())
    }

    /// Removes a local address, and the routes that were added with it.
    pub(crate) fn remove_address(&mut self, ip: IpAddr) {
        self.routes.remove(ip);
        self.claims.remove(ip);
    }

    /// Sends what is due for the local addresses, and uses those that no other station has.
    pub(crate) fn poll_claims(&mut self, nic: &mut Nic, now: Instant) {
        while let Some(action) = self.claims.poll(now) {
            // The shards of a NIC are one station.
            let speaks = nic.is_first_shard();
            match action {
                ClaimAction::Probe(ip) if speaks => self.probe(nic, ip, now),
                ClaimAction::Announce(ip) if speaks => self.announce(nic, ip, now),
                ClaimAction::Use(ip) => {
                    self.routes.trust(ip);
                    if speaks {
                        self.announce(nic, ip, now);
                    }
                }
                ClaimAction::Probe(_) | ClaimAction::Announce(_) => {}
            }
        }
    }

    /// Uses all addresses from now on; those that were not asked about are asked about meanwhile.
    pub(crate) fn use_addresses_now(&mut self) {
        for ip in self.claims.use_now() {
            self.routes.trust(ip);
        }
    }

    /// Stops the use of addresses that other stations have; returns these conflicts.
    pub(crate) fn take_lost(&mut self) -> Vec<AddressConflict> {
        let lost = self.claims.take_lost();
        for conflict in &lost {
            self.routes.remove(conflict.ip);
        }
        lost
    }

    /// Returns whether there is no address but link-local ones, and none will come.
    pub(crate) fn is_homeless(&self) -> bool {
        !self.has_leases && self.routes.addresses().all(is_link_local)
    }

    /// Returns whether an address is local, or will be.
    pub(crate) fn claims_address(&self, ip: IpAddr) -> bool {
        self.routes.is_ours(ip) || self.claims.has(ip)
    }

    /// The station `by` uses a local address: defends it, or gives it up. The shard that has received the frame does so for all.
    pub(crate) fn on_claimed(
        &mut self,
        nic: &mut Nic,
        ip: IpAddr,
        by: MacAddr,
        origin: Origin,
        now: Instant,
    ) {
        self.drops.count(DropReason::AddressConflict);
        if origin == Origin::Copy {
            return;
        }
        if self.claims.on_claimed(ip, by, now) == Some(ConflictOutcome::Defended) {
            self.announce(nic, ip, now);
        }
    }

    /// The station `by` asks whether another one has an address. Returns whether this stack asks, too: then it is used by neither.
    pub(crate) fn on_probed(
        &mut self,
        ip: IpAddr,
        by: MacAddr,
        origin: Origin,
        now: Instant,
    ) -> bool {
        let is_conflict = origin != Origin::Copy && self.claims.on_probed(ip, by, now).is_some();
        if is_conflict {
            self.drops.count(DropReason::AddressConflict);
        }
        is_conflict
    }

    /// Asks whether another station has an address: an ARP probe (RFC 5227 2.1.1), or a solicitation from the unspecified address
    /// (RFC 4862 5.4.2).
    fn probe(&mut self, nic: &mut Nic, ip: IpAddr, now: Instant) {
        let mac = self.mac;
        let head = match ip {
            IpAddr::V4(target) => {
                let probe = ArpPacket::request(mac, Ipv4Addr::UNSPECIFIED, target);
                self.arp_frame(MacAddr::BROADCAST, &probe)
            }
            IpAddr::V6(target) => {
                let group = solicited_node(target);
                let asked = NeighborSolicitation {
                    target,
                    source_mac: None,
                };
                let to = MacAddr::for_ipv6_multicast(group);
                HeadBuf::with(|out| asked.emit_frame(mac, to, Ipv6Addr::UNSPECIFIED, group, out))
            }
        };
        self.send_frame(nic, head, now);
    }

    /// Announces a local address: gratuitous ARP (RFC 5227 2.3), an unsolicited advertisement (RFC 4861 7.2.6).
    pub(super) fn announce(&mut self, nic: &mut Nic, ip: IpAddr, now: Instant) {
        let mac = self.mac;
        let head = match ip {
            IpAddr::V4(ip) => {
                let announced = ArpPacket::request(mac, ip, ip);
                self.arp_frame(MacAddr::BROADCAST, &announced)
            }
            IpAddr::V6(target) => {
                let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
                let group = MacAddr::for_ipv6_multicast(all_nodes);
                let told = NeighborAdvertisement {
                    target,
                    target_mac: Some(mac),
                    router: false,
                    solicited: false,
                    overrides: true,
                };
                HeadBuf::with(|out| told.emit_frame(mac, group, target, all_nodes, out))
            }
        };
        self.send_frame(nic, head, now);
    }
}
