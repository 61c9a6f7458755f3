//! Body of the fuzz target `dhcp`: the clients of a host among hostile stations.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use wire::{ChecksumState, MacAddr};

use crate::advertisement::Advertisement;
use crate::autoconf::{self, Autoconf};
use crate::client::{Change, Client, Output};
use crate::defence::AddressUse;
use crate::message::{Reply, Request};
use crate::port::{ReceivedFrame, understand};

/// Kind of an event, modulo their number.
const FRAME: u8 = 0;
const MESSAGE: u8 = 1;
const IN_USE: u8 = 2;
const ADVERTISEMENT: u8 = 4;
const KINDS: u8 = 5;

/// The address of this machine.
const OWN: [IpAddr; 1] = [IpAddr::V4(Ipv4Addr::new(10, 0, 0, 9))];

const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);

/// Passes events to the clients: each has its kind, the seconds since the one before, the length of its bytes, and these. Kind 3
/// only lets time pass. In a message, the number and the MAC address are set to those of the client, which no
/// random bytes have.
///
/// # Panics
///
/// If a client sends without end, or has an address that no host can have.
pub fn dhcp(mut bytes: &[u8]) {
    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
    let mut client = Client::new(MAC, 7);
    let mut autoconf = Autoconf::new(MAC);
    let mut now = Duration::ZERO;
    let mut xid = 0;
    while let [kind, seconds, len, rest @ ..] = bytes {
        let (event, rest) = rest.split_at(rest.len().min(usize::from(*len) * 4));
        bytes = rest;
        now += Duration::from_secs(u64::from(*seconds) * u64::from(*seconds));
        let mut turns = 0;
        while client.is_due(now) {
            if let Some(sent) = client.poll(now) {
                note(&sent, &mut xid);
            }
            turns += 1;
            assert!(turns < 20, "{client:?} sends without end");
        }
        while autoconf.deadline() <= now {
            let _ = autoconf.poll(now);
            turns += 1;
            assert!(turns < 40, "{autoconf:?} sends without end");
        }
        match kind % KINDS {
            FRAME => {
                let heard = understand(event, ChecksumState::Verified, MacAddr(MAC));
                hear(&mut client, &mut autoconf, heard, now);
            }
            MESSAGE => {
                let mut message = event.to_vec();
                if let (Some(number), Some(mac)) = fields(&mut message) {
                    number.copy_from_slice(&xid.to_be_bytes());
                    mac.copy_from_slice(&MAC);
                }
                let reply = Reply::parse(&message).map(|reply| ReceivedFrame::Reply(reply, [9; 6]));
                hear(&mut client, &mut autoconf, reply, now);
            }
            IN_USE => {
                let address = event.first_chunk::<4>().copied().unwrap_or_default();
                let heard = Some(ReceivedFrame::AddressUse(
                    IpAddr::from(address),
                    AddressUse::Claim,
                ));
                hear(&mut client, &mut autoconf, heard, now);
            }
            ADVERTISEMENT => {
                let told = Advertisement::parse(event);
                let heard = told.map(|told| ReceivedFrame::Router(told, ROUTER));
                hear(&mut client, &mut autoconf, heard, now);
            }
            _ => {}
        }
        check_changes(&mut client, &mut autoconf);
    }
    let _ = client.release();
}

/// Checks the addresses that the clients have.
fn check_changes(client: &mut Client, autoconf: &mut Autoconf) {
    if let Some(Change::Bound(lease)) = client.take_change() {
        assert!(!lease.address.is_unspecified() && !lease.address.is_multicast());
        assert!((1..=32).contains(&lease.prefix));
        assert!(!OWN.contains(&lease.address.into()));
    }
    let mut changes = 0;
    while let Some(change) = autoconf.take_change() {
        changes += 1;
        if let autoconf::Change::Configured(ours) = change {
            assert!(!ours.address.is_unicast_link_local() && !ours.address.is_multicast());
        }
    }
    assert!(changes < 20, "memory is bounded");
}

/// Notes the number of a message that the client sends.
fn note(sent: &Output, xid: &mut u32) {
    let (Output::Broadcast(request) | Output::ToServer(request, _)) = sent else {
        return;
    };
    let Request { xid: number, .. } = *request;
    *xid = number;
    assert!(request.emit().len() >= 300);
}

/// Returns the number and the MAC address of a message.
fn fields(message: &mut [u8]) -> (Option<&mut [u8]>, Option<&mut [u8]>) {
    let (head, tail) = message.split_at_mut(message.len().min(28));
    (head.get_mut(4..8), tail.get_mut(..6))
}

fn hear(client: &mut Client, autoconf: &mut Autoconf, heard: Option<ReceivedFrame>, now: Duration) {
    match heard {
        Some(ReceivedFrame::Router(told, from)) => autoconf.on_advertisement(&told, from, now),
        Some(ReceivedFrame::AddressUse(IpAddr::V6(address), what)) => {
            autoconf.on_address_use(address, what, now)
        }
        Some(ReceivedFrame::Reply(reply, from)) => client.on_reply(&reply, from, &OWN, now),
        Some(ReceivedFrame::AddressUse(IpAddr::V4(address), what)) => {
            let _ = client.on_address_use(address, what, now);
        }
        Some(ReceivedFrame::Nothing) | None => {}
    }
}
