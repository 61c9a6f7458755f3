//! Who has which MAC address: one cache for ARP and for neighbour discovery.
//!
//! The states are those of RFC 4861 7.3.2 as far as they change what is sent: an entry is
//! *incomplete* (asked for, packets wait), *reachable*, *stale* (older than 30 s; still used, and
//! asked about once it is used) or *probing*. ARP entries follow the same rules, as Linux's
//! `net/core/neighbour.c` does for both. Everything is bounded: entries, packets that wait,
//! questions asked.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use wire::{Instant, MacAddr};

use crate::random::KeyedState;

/// Most entries; the least recently used one gives way (linux `gc_thresh3` is 1024).
pub const MAX_NEIGHBORS: usize = 1024;

/// Most packets that wait for one address; the oldest gives way (RFC 4861 7.2.2 asks for at least
/// one, linux `unres_qlen_bytes` comes to about 100).
pub const MAX_HELD_PER_NEIGHBOR: usize = 16;

/// Most packets that wait in all.
pub const MAX_HELD: usize = 256;

/// How long a confirmed address is believed (RFC 4861 10, REACHABLE_TIME).
pub const REACHABLE_TIME: Duration = Duration::from_secs(30);

/// Time between two questions (RFC 4861 10, RETRANS_TIMER).
pub const RETRANS_TIMER: Duration = Duration::from_secs(1);

/// Questions before an address counts as unreachable (RFC 4861 10, MAX_MULTICAST_SOLICIT and
/// MAX_UNICAST_SOLICIT).
pub const MAX_SOLICITS: u8 = 3;

/// What is known about one address.
#[derive(Debug)]
enum State<P> {
    /// Asked for; nothing can be sent yet.
    Incomplete {
        held: Vec<P>,
        asked: u8,
        next: Instant,
    },
    /// Confirmed; stale after `until`.
    Known { mac: MacAddr, until: Instant },
    /// Used although stale, and asked for.
    Probing {
        mac: MacAddr,
        asked: u8,
        next: Instant,
    },
}

#[derive(Debug)]
struct Entry<P> {
    state: State<P>,
    used: Instant,
}

/// What [`Neighbors::poll`] wants done.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NeighborAction<P> {
    /// Ask for `ip`; `known` is where a unicast question goes.
    Solicit { ip: IpAddr, known: Option<MacAddr> },
    /// Nobody answered for `ip`; these packets cannot leave.
    Unreachable { ip: IpAddr, held: Vec<P> },
}

/// How an address was learnt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Learnt {
    /// From an answer to our question: confirmed.
    Answer,
    /// From somebody's own question or announcement: good to use, not confirmed.
    Hearsay,
}

/// The cache. `P` is a packet that waits for an address.
#[derive(Debug)]
pub(crate) struct Neighbors<P> {
    entries: HashMap<IpAddr, Entry<P>, KeyedState>,
    held: usize,
    /// Packets that gave way with the question they waited for, and were not told of yet.
    evicted: usize,
    /// No timer of any entry is earlier.
    next: Option<Instant>,
}

impl<P> Neighbors<P> {
    pub(crate) fn new(hash_key: [u8; 16]) -> Self {
        Self {
            entries: HashMap::with_hasher(KeyedState::new(hash_key)),
            held: 0,
            evicted: 0,
            next: None,
        }
    }

    /// Returns how many packets gave way to a new entry since this was last asked.
    pub(crate) fn take_evicted(&mut self) -> usize {
        std::mem::take(&mut self.evicted)
    }

    /// Returns where packets to `ip` go; using a stale entry starts a probe.
    pub(crate) fn lookup(&mut self, ip: IpAddr, now: Instant) -> Option<MacAddr> {
        let entry = self.entries.get_mut(&ip)?;
        entry.used = now;
        match entry.state {
            State::Incomplete { .. } => None,
            State::Probing { mac, .. } => Some(mac),
            State::Known { mac, until } => {
                if now > until {
                    entry.state = State::Probing {
                        mac,
                        asked: 0,
                        next: now,
                    };
                    self.next = Some(now);
                }
                Some(mac)
            }
        }
    }

    /// Returns what is believed of `ip`, without using it.
    pub(crate) fn peek(&self, ip: IpAddr) -> Option<MacAddr> {
        match self.entries.get(&ip)?.state {
            State::Incomplete { .. } => None,
            State::Known { mac, .. } | State::Probing { mac, .. } => Some(mac),
        }
    }

    /// Keeps `packet` until `ip` answers and starts asking; returns a packet that had to give way.
    pub(crate) fn hold(&mut self, ip: IpAddr, packet: P, now: Instant) -> Option<P> {
        if !self.entries.contains_key(&ip) {
            self.make_room();
            let state = State::Incomplete {
                held: Vec::new(),
                asked: 0,
                next: now,
            };
            self.entries.insert(ip, Entry { state, used: now });
            self.next = Some(now);
        }
        let full = self.held >= MAX_HELD;
        let Some(Entry {
            state: State::Incomplete { held, .. },
            ..
        }) = self.entries.get_mut(&ip)
        else {
            debug_assert!(false, "hold is for addresses that lookup does not know");
            return Some(packet);
        };
        let gives_way = if held.len() >= MAX_HELD_PER_NEIGHBOR || (full && !held.is_empty()) {
            Some(held.remove(0))
        } else if full {
            return Some(packet);
        } else {
            self.held += 1;
            None
        };
        held.push(packet);
        gives_way
    }

    /// Notes that `ip` is at `mac`; returns the packets that waited for it.
    ///
    /// Hearsay about an address nobody here asked for makes no entry: a peer must not fill the
    /// cache. A caller that is about to answer `ip` calls [`Neighbors::expect`] first.
    pub(crate) fn learn(
        &mut self,
        ip: IpAddr,
        mac: MacAddr,
        learnt: Learnt,
        now: Instant,
    ) -> Vec<P> {
        let Some(entry) = self.entries.get_mut(&ip) else {
            return Vec::new();
        };
        let until = match (learnt, &entry.state) {
            (Learnt::Answer, _) => now + REACHABLE_TIME,
            // Hearsay that says what we believe already neither confirms nor unsettles it.
            (Learnt::Hearsay, State::Known { mac: old, until }) if *old == mac => *until,
            (Learnt::Hearsay, State::Probing { mac: old, .. }) if *old == mac => return Vec::new(),
            (Learnt::Hearsay, _) => now,
        };
        match std::mem::replace(&mut entry.state, State::Known { mac, until }) {
            State::Incomplete { held, .. } => {
                self.held -= held.len();
                held
            }
            State::Known { .. } | State::Probing { .. } => Vec::new(),
        }
    }

    /// Makes an entry for a neighbour that asked for us: we are about to answer it (RFC 826, RFC
    /// 4861 7.2.3).
    pub(crate) fn expect(&mut self, ip: IpAddr, mac: MacAddr, now: Instant) -> Vec<P> {
        if !self.entries.contains_key(&ip) {
            self.make_room();
            self.entries.insert(
                ip,
                Entry {
                    state: State::Known { mac, until: now },
                    used: now,
                },
            );
            return Vec::new();
        }
        self.learn(ip, mac, Learnt::Hearsay, now)
    }

    /// Returns when [`Neighbors::poll`] has something to do.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        self.next
    }

    /// Returns the next question to ask or failure to report, until `None`.
    ///
    /// The cache is walked only when a deadline has come, at most a few times per
    /// [`RETRANS_TIMER`].
    pub(crate) fn poll(&mut self, now: Instant) -> Option<NeighborAction<P>> {
        if self.next? > now {
            return None;
        }
        let mut earliest: Option<Instant> = None;
        let mut due = None;
        for (&ip, entry) in &self.entries {
            let next = match entry.state {
                State::Known { .. } => continue,
                State::Incomplete { next, .. } | State::Probing { next, .. } => next,
            };
            if next <= now {
                due = Some(ip);
                break;
            }
            earliest = Some(earliest.map_or(next, |earliest| earliest.min(next)));
        }
        let Some(ip) = due else {
            self.next = earliest;
            return None;
        };
        self.advance(ip, now)
    }

    /// Forgets everything; returns the packets that waited (link down).
    pub(crate) fn clear(&mut self) -> Vec<P> {
        self.held = 0;
        self.next = None;
        let held = self
            .entries
            .drain()
            .filter_map(|(_, entry)| match entry.state {
                State::Incomplete { held, .. } => Some(held),
                State::Known { .. } | State::Probing { .. } => None,
            });
        held.flatten().collect()
    }

    /// Asks once more for `ip`, or gives it up.
    fn advance(&mut self, ip: IpAddr, now: Instant) -> Option<NeighborAction<P>> {
        let entry = self.entries.get_mut(&ip)?;
        let (asked, next, known) = match &mut entry.state {
            State::Known { .. } => return None,
            State::Incomplete { asked, next, .. } => (asked, next, None),
            State::Probing { asked, next, mac } => (asked, next, Some(*mac)),
        };
        if *asked < MAX_SOLICITS {
            *asked += 1;
            *next = now + RETRANS_TIMER;
            return Some(NeighborAction::Solicit { ip, known });
        }
        let held = match self.entries.remove(&ip)?.state {
            State::Incomplete { held, .. } => held,
            State::Known { .. } | State::Probing { .. } => Vec::new(),
        };
        self.held -= held.len();
        Some(NeighborAction::Unreachable { ip, held })
    }

    /// Evicts the least recently used settled entry if the cache is full, or else the oldest
    /// question.
    fn make_room(&mut self) {
        if self.entries.len() < MAX_NEIGHBORS {
            return;
        }
        let oldest = self
            .entries
            .iter()
            .min_by_key(|(_, entry)| (matches!(entry.state, State::Incomplete { .. }), entry.used))
            .map(|(&ip, _)| ip);
        if let Some(Entry {
            state: State::Incomplete { held, .. },
            ..
        }) = oldest.and_then(|ip| self.entries.remove(&ip))
        {
            self.held -= held.len();
            self.evicted += held.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: MacAddr = MacAddr([2, 0, 0, 0, 0, 1]);
    const OTHER: MacAddr = MacAddr([2, 0, 0, 0, 0, 2]);

    fn ip(last: u16) -> IpAddr {
        IpAddr::from([10, 0, (last >> 8) as u8, last as u8])
    }

    fn at(ms: u64) -> Instant {
        Instant::from_millis(ms)
    }

    fn neighbors() -> Neighbors<u32> {
        Neighbors::new([7; 16])
    }

    fn solicit(last: u16, known: Option<MacAddr>) -> Option<NeighborAction<u32>> {
        Some(NeighborAction::Solicit {
            ip: ip(last),
            known,
        })
    }

    #[test]
    fn a_packet_waits_for_the_answer_and_then_leaves() {
        let mut cache = neighbors();
        assert_eq!(cache.lookup(ip(1), at(0)), None);
        assert_eq!(cache.hold(ip(1), 11, at(0)), None);
        assert_eq!(cache.hold(ip(1), 12, at(0)), None);
        assert_eq!(cache.poll(at(0)), solicit(1, None));
        assert_eq!(cache.poll(at(0)), None);
        assert_eq!(cache.learn(ip(1), MAC, Learnt::Answer, at(3)), [11, 12]);
        assert_eq!(cache.lookup(ip(1), at(4)), Some(MAC));
        assert_eq!(cache.held, 0);
        assert_eq!(cache.poll(at(5000)), None);
        assert_eq!(cache.next_deadline(), None);
    }

    #[test]
    fn after_three_questions_the_address_is_unreachable_and_the_packets_come_back() {
        let mut cache = neighbors();
        cache.hold(ip(1), 11, at(0));
        for second in 0..3 {
            assert_eq!(cache.poll(at(second * 1000)), solicit(1, None));
            assert_eq!(cache.poll(at(second * 1000 + 999)), None);
        }
        let held = vec![11];
        assert_eq!(
            cache.poll(at(3000)),
            Some(NeighborAction::Unreachable { ip: ip(1), held })
        );
        assert_eq!((cache.held, cache.entries.len()), (0, 0));
        assert_eq!(cache.poll(at(9000)), None);
    }

    #[test]
    fn a_stale_address_is_used_and_asked_about_by_unicast() {
        let mut cache = neighbors();
        cache.hold(ip(1), 11, at(0));
        cache.learn(ip(1), MAC, Learnt::Answer, at(0));
        assert_eq!(cache.lookup(ip(1), at(30_000)), Some(MAC));
        assert_eq!(cache.next_deadline(), Some(at(0)));
        assert_eq!(cache.poll(at(30_000)), None);
        assert_eq!(cache.lookup(ip(1), at(30_001)), Some(MAC));
        assert_eq!(cache.poll(at(30_001)), solicit(1, Some(MAC)));
        assert_eq!(cache.learn(ip(1), OTHER, Learnt::Answer, at(30_002)), []);
        assert_eq!(cache.lookup(ip(1), at(31_001)), Some(OTHER));
        assert_eq!(cache.poll(at(31_001)), None);
    }

    #[test]
    fn a_probe_without_an_answer_forgets_the_address() {
        let mut cache = neighbors();
        cache.expect(ip(1), MAC, at(0));
        assert_eq!(cache.lookup(ip(1), at(1)), Some(MAC));
        for second in 0..3 {
            assert_eq!(cache.poll(at(1 + second * 1000)), solicit(1, Some(MAC)));
        }
        assert_eq!(
            cache.poll(at(3001)),
            Some(NeighborAction::Unreachable {
                ip: ip(1),
                held: vec![]
            })
        );
        assert_eq!(cache.lookup(ip(1), at(3002)), None);
    }

    #[test]
    fn hearsay_moves_an_address_but_makes_no_entry_and_confirms_nothing() {
        let mut cache = neighbors();
        assert_eq!(cache.learn(ip(1), MAC, Learnt::Hearsay, at(0)), []);
        assert_eq!(cache.lookup(ip(1), at(0)), None);
        cache.expect(ip(1), MAC, at(0));
        cache.learn(ip(1), MAC, Learnt::Answer, at(0));
        cache.learn(ip(1), MAC, Learnt::Hearsay, at(29_000));
        cache.lookup(ip(1), at(30_001));
        assert_eq!(cache.poll(at(30_001)), solicit(1, Some(MAC)));
        cache.learn(ip(1), OTHER, Learnt::Hearsay, at(30_002));
        assert_eq!(cache.lookup(ip(1), at(30_002)), Some(OTHER));
    }

    #[test]
    fn the_oldest_waiting_packet_gives_way() {
        let mut cache = neighbors();
        for packet in 0..MAX_HELD_PER_NEIGHBOR as u32 {
            assert_eq!(cache.hold(ip(1), packet, at(0)), None);
        }
        assert_eq!(cache.hold(ip(1), 99, at(0)), Some(0));
        for last in 2..100 {
            for packet in 0..MAX_HELD_PER_NEIGHBOR as u32 {
                cache.hold(ip(last), packet, at(0));
            }
        }
        assert_eq!(cache.held, MAX_HELD);
        assert_eq!(cache.hold(ip(200), 7, at(0)), Some(7));
    }

    #[test]
    fn the_cache_is_bounded_and_keeps_what_is_used() {
        let mut cache = neighbors();
        for last in 0..2 * MAX_NEIGHBORS as u16 {
            cache.expect(ip(last), MAC, at(u64::from(last)));
            assert_eq!(
                cache.lookup(ip(0), at(u64::from(last))),
                Some(MAC),
                "{last}"
            );
        }
        assert_eq!(cache.entries.len(), MAX_NEIGHBORS);
    }

    #[test]
    fn packets_that_give_way_with_their_question_are_told_of_once() {
        let mut cache = neighbors();
        for last in 0..MAX_NEIGHBORS as u16 {
            let packet = u32::from(last);
            let gave_way = cache.hold(ip(last), packet, at(u64::from(last)));
            assert_eq!(gave_way.is_some(), last >= MAX_HELD as u16, "{last}");
        }
        assert_eq!(cache.take_evicted(), 0);
        cache.expect(ip(MAX_NEIGHBORS as u16), MAC, at(MAX_NEIGHBORS as u64));
        assert_eq!((cache.take_evicted(), cache.held), (1, MAX_HELD - 1));
        assert_eq!(cache.take_evicted(), 0);
    }

    #[test]
    fn clearing_returns_what_waited() {
        let mut cache = neighbors();
        cache.hold(ip(1), 11, at(0));
        cache.expect(ip(2), MAC, at(0));
        assert_eq!(cache.clear(), [11]);
        assert_eq!(
            (
                cache.held,
                cache.next_deadline(),
                cache.lookup(ip(2), at(0))
            ),
            (0, None, None)
        );
    }
}
