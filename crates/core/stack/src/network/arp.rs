//! ARP: replies to requests for local addresses, learns hardware addresses of neighbours (RFC 826).

use std::net::Ipv4Addr;

use netmem::FragList;
use nic::{HeadBuf, Nic, Origin};
use wire::{
    ARP_LEN, ArpOperation, ArpPacket, EtherType, EthernetHeader, Instant, MacAddr, emit_arp_frame,
};

use super::Network;
use crate::drops::DropReason;
use crate::neighbor::{Change, Claim, LearnedFrom};

impl Network {
    /// Replies to requests for local addresses, and learns from requests, replies and announcements. Another shard replies to a
    /// request of which this is a copy.
    pub(crate) fn receive_arp(
        &mut self,
        nic: &mut Nic,
        ethernet: &EthernetHeader,
        payload: &FragList,
        origin: Origin,
        now: Instant,
    ) {
        let judged = parse_arp(payload)
            .ok_or(DropReason::ArpInvalid)
            .and_then(|arp| self.judge_arp(ethernet, &arp).map(|()| arp));
        let arp = match judged {
            Ok(arp) => arp,
            Err(reason) => return self.drops.count(reason),
        };
        let (sender, target) = (arp.sender_ip.into(), arp.target_ip.into());
        if self.claims_address(sender) {
            return self.on_claimed(nic, sender, arp.sender_mac, origin, now);
        }
        let is_probe = arp.sender_ip.is_unspecified();
        if is_probe && self.on_probed(target, arp.sender_mac, origin, now) {
            return;
        }
        self.learn_of_arp(nic, ethernet, &arp, now);
        let is_for_us = origin != Origin::Copy && self.routes.is_ours(target);
        if arp.op == ArpOperation::REQUEST && is_for_us {
            let reply = self.arp_frame(arp.sender_mac, &arp.reply(self.mac));
            self.send_frame(nic, reply, now);
        }
    }

    /// Returns the frame of a packet of this station.
    pub(super) fn arp_frame(&self, to: MacAddr, packet: &ArpPacket) -> HeadBuf {
        let ethernet = self.ethernet(to, EtherType::ARP);
        HeadBuf::with(|out| emit_arp_frame(&ethernet, packet, out))
    }

    /// Checks whether an ARP packet is valid (linux net/ipv4/arp.c `arp_rcv`, `arp_process`).
    fn judge_arp(&self, ethernet: &EthernetHeader, arp: &ArpPacket) -> Result<(), DropReason> {
        let ArpPacket {
            op,
            sender_mac,
            sender_ip,
            target_ip,
            target_mac: _,
        } = *arp;
        let is_known = op == ArpOperation::REQUEST || op == ArpOperation::REPLY;
        let is_from_a_station =
            sender_mac == ethernet.src && self.station(sender_mac) == Some(sender_mac);
        let is_plausible =
            is_known && is_from_a_station && !target_ip.is_multicast() && !target_ip.is_loopback();
        if !is_plausible {
            return Err(DropReason::ArpInvalid);
        }
        if sender_ip.is_unspecified() {
            // An address probe (RFC 5227 2.1.1) is a request.
            return match op {
                ArpOperation::REQUEST => Ok(()),
                _ => Err(DropReason::ArpInvalid),
            };
        }
        match sender_ip.into() {
            // A conflict is valid.
            sender if self.claims_address(sender) => Ok(()),
            sender if self.routes.is_martian_source(sender) => Err(DropReason::ArpInvalid),
            sender if !self.routes.is_on_link(sender) => Err(DropReason::ArpInvalid),
            _ => Ok(()),
        }
    }

    /// Learns the hardware address of the sender of a valid packet.
    fn learn_of_arp(
        &mut self,
        nic: &mut Nic,
        ethernet: &EthernetHeader,
        arp: &ArpPacket,
        now: Instant,
    ) {
        let ArpPacket {
            op,
            sender_mac,
            sender_ip,
            target_mac,
            target_ip,
        } = *arp;
        if sender_ip == Ipv4Addr::UNSPECIFIED {
            return;
        }
        let is_question = op == ArpOperation::REQUEST;
        let for_us = self.routes.is_ours(target_ip.into());
        // In a gratuitous reply, sender and target are the same (linux `arp_is_garp`).
        let is_gratuitous = sender_ip == target_ip && (is_question || target_mac == sender_mac);
        let is_answer = !is_question && for_us && ethernet.dst == self.mac;
        let claim = Claim {
            mac: sender_mac,
            learnt: match is_answer {
                true => LearnedFrom::Answer,
                false => LearnedFrom::Hearsay,
            },
            change: match is_gratuitous || is_question && for_us {
                true => Change::Replaces,
                false => Change::AfterLock,
            },
        };
        let learnt = match is_question && for_us {
            true => self.neighbors.expect(sender_ip.into(), claim, now),
            false => self.neighbors.learn(sender_ip.into(), claim, now),
        };
        match learnt {
            Ok(waited) => self.send_waited(nic, sender_mac, waited, now),
            Err(_) => self.drops.count(DropReason::NeighborClaimRefused),
        }
    }
}

fn parse_arp(payload: &FragList) -> Option<ArpPacket> {
    let mut bytes = [0; ARP_LEN];
    let first = payload
        .first()
        .filter(|frag| frag.is_readable() && frag.len() >= ARP_LEN)?;
    first.copy_to(0, &mut bytes).ok()?;
    ArpPacket::parse(&bytes).ok()
}
