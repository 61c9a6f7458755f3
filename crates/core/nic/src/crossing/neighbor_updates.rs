//! What the shards tell each other of neighbours: ARP and neighbour discovery.
//!
//! Such a frame concerns all shards, and anybody on the link can send any number of them. So a shard tells the others of one only
//! if it is an answer to what one of them has asked, or new, or has changed; what is neither an answer nor known is limited
//! ([`UPDATES_PER_SECOND`]). A shard that is not told asks when it needs the neighbour.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use wire::{
    ArpOperation, ArpPacket, EtherType, Icmp, Instant, Ipv6Header, MacAddr, Network, RxHeaders,
    protocol,
};

use crate::rate_limit::RateLimit;

/// Updates that all shards together tell each other in a second, and at once.
const UPDATES_PER_SECOND: u64 = 1000;
const UPDATES_AT_ONCE: u64 = 256;

/// Neighbours that are remembered, in hashed slots.
const SLOTS: usize = 4096;

/// Time after which what was told is told again if it is heard again: a shard may have refused it (`LOCKTIME` of Linux is 1 s).
const TELL_AGAIN_MS: u64 = 1000;

/// What a frame says of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NeighborUpdate {
    /// The neighbour, or the address that it wants to have.
    about: IpAddr,
    /// Its hardware address, and all else that distinguishes two claims.
    claim: u64,
}

impl NeighborUpdate {
    /// Returns what a frame says; `None`: it concerns no other shard. `message` returns the bytes after the headers.
    pub(super) fn of_arp(arp: &ArpPacket) -> Self {
        // An address probe (RFC 5227 2.1.1) is about its target.
        let about = match arp.sender_ip.is_unspecified() {
            true => arp.target_ip,
            false => arp.sender_ip,
        };
        Self {
            about: about.into(),
            claim: digest((arp.sender_mac.0, arp.sender_ip == about)),
        }
    }

    /// As [`of_arp`](Self::of_arp), of a message of neighbour discovery; `None` for all others.
    pub(super) fn of_icmpv6(ip: &Ipv6Header, source: MacAddr, message: &Icmp<'_>) -> Option<Self> {
        let (about, claim) = match message {
            // Without a source, it is a probe for its target (RFC 4862 5.4.2).
            Icmp::NeighborSolicitation(asked) if ip.src.is_unspecified() => {
                (asked.target, digest((source.0, "probe")))
            }
            Icmp::NeighborSolicitation(asked) => {
                (ip.src, digest(asked.source_mac.map(|mac| mac.0)))
            }
            Icmp::NeighborAdvertisement(said) => {
                let flags = (said.router, said.overrides);
                (
                    said.target,
                    digest((said.target_mac.map(|mac| mac.0), flags)),
                )
            }
            _ => return None,
        };
        let about = about.into();
        Some(Self { about, claim })
    }
}

fn digest(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// What the shards of one NIC have asked and told each other.
#[derive(Debug)]
pub(super) struct SharedTable {
    slots: Box<[AtomicU64]>,
}

impl SharedTable {
    fn slot(&self, about: IpAddr) -> (&AtomicU64, u64) {
        let digest = digest(about);
        // Less than SLOTS, and evenly distributed.
        let index = (digest >> 32) as usize % SLOTS;
        (&self.slots[index], digest)
    }
}

/// A slot that holds a question has this bit, and else the digest of the address. One that holds what was told has a digest
/// of it, and the time in the lower bits.
const QUESTION: u64 = 1;
const TIME_BITS: u32 = 24;
/// Milliseconds of one step of the time.
const TIME_STEP_MS: u64 = 64;

fn question(digest: u64) -> u64 {
    digest | QUESTION
}

fn told(digest: u64, claim: u64, now: Instant) -> u64 {
    let time = (now.as_millis() / TIME_STEP_MS) % (1 << (TIME_BITS - 1));
    ((digest ^ claim) >> TIME_BITS << TIME_BITS) | (time << 1)
}

/// How long ago something was told, in milliseconds, if it was the same as `new`.
fn age_of(old: u64, new: u64) -> Option<u64> {
    let is_same = old & QUESTION == 0 && old >> TIME_BITS == new >> TIME_BITS && old != 0;
    let steps = |slot: u64| (slot % (1 << TIME_BITS)) >> 1;
    let age = steps(new).wrapping_sub(steps(old)) % (1 << (TIME_BITS - 1));
    is_same.then_some(age * TIME_STEP_MS)
}

/// What a shard does with an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The others are to be told.
    Tell,
    /// They know it.
    Known,
    /// There were too many updates.
    Limited,
}

/// What one shard needs to exchange updates with the others.
#[derive(Debug)]
pub(super) struct NeighborUpdates {
    told: Arc<SharedTable>,
    limit: RateLimit,
}

impl NeighborUpdates {
    /// Returns the parts of `shards` shards.
    pub(super) fn group(shards: u16) -> impl Iterator<Item = Self> {
        let told = Arc::new(SharedTable {
            slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect(),
        });
        let count = u64::from(shards.max(1));
        (0..shards).map(move |_| Self {
            told: Arc::clone(&told),
            limit: RateLimit::new(
                (UPDATES_PER_SECOND / count).max(1),
                (UPDATES_AT_ONCE / count).max(1),
            ),
        })
    }

    /// Decides about an update that this shard has received.
    pub(super) fn judge(&mut self, update: NeighborUpdate, now: Instant) -> Verdict {
        let (slot, digest) = self.told.slot(update.about);
        let new = told(digest, update.claim, now);
        // The slots are hints: whatever order the shards change them in, at worst something is told twice or asked again.
        let old = slot.load(Ordering::Relaxed);
        if old == question(digest) {
            slot.store(new, Ordering::Relaxed);
            return Verdict::Tell;
        }
        if age_of(old, new).is_some_and(|age| age < TELL_AGAIN_MS) {
            return Verdict::Known;
        }
        if !self.limit.allow(now) {
            return Verdict::Limited;
        }
        // A question about another address waits for its answer.
        if old & QUESTION == 0 {
            slot.store(new, Ordering::Relaxed);
        }
        Verdict::Tell
    }

    /// Forgets that the others were told: one of them could not be.
    pub(super) fn take_back(&self, update: NeighborUpdate) {
        self.told.slot(update.about).0.store(0, Ordering::Relaxed);
    }

    /// Notes a frame that this shard sends: whatever its question is about will be told.
    pub(super) fn note_sent(&self, head: &[u8]) {
        if let Some(asked) = asked_in(head) {
            let (slot, digest) = self.told.slot(asked);
            slot.store(question(digest), Ordering::Relaxed);
        }
    }
}

/// Returns the address that a frame asks for. `head` is all of it if it does.
fn asked_in(head: &[u8]) -> Option<IpAddr> {
    if !may_ask(head) {
        return None;
    }
    let headers = RxHeaders::parse(head, head.len()).ok()?;
    let message = head.get(headers.header_len..)?;
    match headers.network {
        Network::Arp => {
            let arp = ArpPacket::parse(message).ok()?;
            (arp.op == ArpOperation::REQUEST).then_some(arp.target_ip.into())
        }
        Network::Ipv6(ip) => match Icmp::parse_v6(&ip, message).ok()? {
            Icmp::NeighborSolicitation(asked) => Some(asked.target.into()),
            _ => None,
        },
        _ => None,
    }
}

/// Returns false for frames of TCP, which are most: looks at two fields of the headers only.
fn may_ask(head: &[u8]) -> bool {
    let ethertype = |at: usize| {
        head.get(at..at + 2)
            .and_then(|bytes| <[u8; 2]>::try_from(bytes).ok())
    };
    let is = |at, wanted: EtherType| ethertype(at) == Some(wanted.0.to_be_bytes());
    let tagged = match is(12, EtherType::VLAN) {
        true => 4,
        false => 0,
    };
    let next_header = head.get(14 + tagged + 6);
    is(12 + tagged, EtherType::ARP)
        || is(12 + tagged, EtherType::IPV6) && next_header == Some(&protocol::ICMPV6)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn update(ip: [u8; 4], mac: u8) -> NeighborUpdate {
        NeighborUpdate::of_arp(&ArpPacket {
            op: ArpOperation::REPLY,
            sender_mac: MacAddr([2, 0, 0, 0, 0, mac]),
            sender_ip: ip.into(),
            target_mac: MacAddr([2, 0, 0, 0, 0, 9]),
            target_ip: [10, 0, 0, 9].into(),
        })
    }

    fn updates() -> NeighborUpdates {
        NeighborUpdates::group(1).next().unwrap()
    }

    fn at(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }

    #[test]
    fn what_was_told_is_known_until_it_changes_or_is_a_second_old() {
        let mut updates = updates();
        let (one, other) = (update([10, 0, 0, 1], 1), update([10, 0, 0, 1], 2));
        assert_eq!(updates.judge(one, at(0)), Verdict::Tell);
        assert_eq!(updates.judge(one, at(10)), Verdict::Known);
        assert_eq!(updates.judge(other, at(20)), Verdict::Tell);
        assert_eq!(updates.judge(other, at(900)), Verdict::Known);
        assert_eq!(updates.judge(other, at(1100)), Verdict::Tell);
        updates.take_back(other);
        assert_eq!(updates.judge(other, at(1100)), Verdict::Tell);
    }

    #[test]
    fn a_flood_of_new_neighbours_is_limited_and_answers_are_not() {
        let mut updates = updates();
        let flood = |updates: &mut NeighborUpdates, ms| {
            let told = (0..5000_u16).filter(|number| {
                let [high, low] = number.to_be_bytes();
                updates.judge(update([10, 1, high, low], 1), at(ms)) == Verdict::Tell
            });
            told.count() as u64
        };
        assert_eq!(flood(&mut updates, 0), UPDATES_AT_ONCE);
        assert!(flood(&mut updates, 100) <= UPDATES_PER_SECOND / 10 + 1);
        let answer = update([10, 0, 0, 7], 1);
        let (slot, digest) = updates.told.slot(answer.about);
        slot.store(question(digest), Ordering::Relaxed);
        flood(&mut updates, 100);
        assert_eq!(
            updates.judge(answer, at(100)),
            Verdict::Tell,
            "one shard has asked"
        );
        assert_eq!(updates.judge(answer, at(100)), Verdict::Known);
    }
}
