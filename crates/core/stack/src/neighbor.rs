//! The neighbour table: hardware addresses of IP addresses on the link, for ARP and neighbour discovery.
//!
//! The states are those of RFC 4861 7.3.2 that affect what is sent. A *question* is an address that is
//! being resolved (INCOMPLETE: packets wait). A *known* address is reachable, stale (not confirmed for
//! 30 s; it is still used, and the first use starts a probe) or probed. ARP entries follow the same
//! rules, as in Linux's `net/core/neighbour.c`.
//!
//! A SYN with a forged source address makes the stack reply to any address of the link. Therefore replies
//! without a connection are kept apart from packets of connections: they wait in a separate queue, and
//! never evict an entry that a connection uses. Only a limited number of their requests per second are
//! broadcast or multicast. Beyond that limit the request goes only to the station that sent the packet;
//! other stations receive nothing, and a genuine peer answers. The address of that station is not used
//! without an answer: the source address of a frame names the station that forwarded the packet, not the
//! owner of the IP address. No packet causes a walk over a table: requests are kept in the order of
//! their times, and a walk that evicts entries evicts many, or is not repeated for 100 ms.

mod known;
#[cfg(test)]
mod tests;
mod waiting;

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use wire::{Instant, MacAddr};

use crate::random::KeyedState;
use known::{Asking, Known};
pub(crate) use known::{Change, Claim, ClaimIgnored, LearnedFrom};
pub use known::{LOCK_TIME, REACHABLE_TIME};
use nic::RateLimit;
use waiting::Waiting;

/// Maximum number of known neighbours (linux `gc_thresh3` is 1024).
pub const MAX_NEIGHBORS: usize = 1024;

/// Maximum number of packets of connections that wait for one address; a new one replaces the oldest
/// (RFC 4861 7.2.2 requires at least one, linux `unres_qlen_bytes` is about 100).
pub const MAX_HELD_PER_NEIGHBOR: usize = 16;

/// Maximum number of packets of connections that wait for any address; a new one replaces the oldest.
pub const MAX_HELD: usize = 256;

/// Maximum number of replies without a connection (SYN-ACKs, resets, echo replies) that wait for one
/// address; a new one replaces the oldest.
pub const MAX_ANSWERS_PER_NEIGHBOR: usize = 4;

/// Maximum number of such replies that wait for any address; a new one replaces the oldest, and the
/// question that only the oldest waited for ends.
pub const MAX_ANSWERS_HELD: usize = 256;

/// Broadcast or multicast requests per second for replies without a connection; also the maximum burst.
/// Linux has no such limit; its table limits it to about a thousand.
pub const ANSWER_BROADCASTS_PER_SECOND: u64 = 100;

/// Unicast requests per second for replies without a connection, beyond [`ANSWER_BROADCASTS_PER_SECOND`],
/// to the station that sent the packet.
pub const ANSWER_UNICASTS_PER_SECOND: u64 = 10_000;

/// Maximum burst of these unicast requests.
const ANSWER_UNICASTS_BURST: u64 = 256;

/// Time between two requests (RFC 4861 10, RETRANS_TIMER).
pub const RETRANS_TIMER: Duration = Duration::from_secs(1);

/// Requests without an answer after which an address counts as unreachable (RFC 4861 10,
/// MAX_MULTICAST_SOLICIT and MAX_UNICAST_SOLICIT).
pub const MAX_SOLICITS: u8 = 3;

/// An entry that a connection used within this time is not evicted for a neighbour that no connection uses
/// (linux `neigh_forced_gc` keeps entries that are referenced, or were updated within five seconds).
const IN_USE: Duration = Duration::from_secs(5);

/// Entries evicted in one walk over the table, so that the cost per new entry is small.
const EVICTED_AT_ONCE: usize = MAX_NEIGHBORS / 8;

/// Time for which the table is not walked again after a walk that evicted few entries.
const CROWDED: Duration = Duration::from_millis(100);

/// The reason for which a hardware address is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A packet of a connection; with an active open, from the first SYN on.
    Connection,
    /// A reply without a connection, to a packet whose source may be forged. `from`: the station that sent
    /// the frame; `None`: unknown.
    Answer { from: Option<MacAddr> },
}

/// An address that is being resolved; packets to it wait.
#[derive(Debug)]
struct Question {
    asking: Asking,
    /// Destination of the first request; `None`: broadcast or multicast.
    first: Option<MacAddr>,
    /// The station that sent the packet of the latest waiting reply.
    from: Option<MacAddr>,
}

/// What the caller of [`Neighbors::poll`] has to do.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NeighborAction<P> {
    /// Send a request for `ip`: to `known` if it is set, else broadcast or multicast.
    Solicit { ip: IpAddr, known: Option<MacAddr> },
    /// No answer for `ip`: drop the packets that waited.
    Unreachable { ip: IpAddr, held: Vec<P> },
}

/// Result of [`Neighbors::hold`].
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum HoldOutcome<P> {
    /// The packet waits.
    Waits,
    /// The packet waits; this older one was removed for it.
    GaveWay(P),
    /// The packet does not wait: the limits on requests for replies without a connection are reached.
    NotAsked(P),
}

/// The neighbour table. `P` is a packet that waits for an address.
#[derive(Debug)]
pub(crate) struct Neighbors<P> {
    /// At most [`MAX_NEIGHBORS`].
    known: HashMap<IpAddr, Known, KeyedState>,
    /// At least one packet waits for each.
    questions: HashMap<IpAddr, Question, KeyedState>,
    /// Time of the next request, for each question and each probe.
    due: BTreeSet<(Instant, IpAddr)>,
    of_connections: Waiting<P>,
    answers: Waiting<P>,
    /// Additional unicast requests.
    asides: Vec<(IpAddr, MacAddr)>,
    broadcasts: RateLimit,
    unicasts: RateLimit,
    /// The table is not walked for eviction before this time.
    crowded_until: Instant,
}

impl<P> Neighbors<P> {
    pub(crate) fn new(hash_key: [u8; 16]) -> Self {
        let hash = KeyedState::new(hash_key);
        Self {
            known: HashMap::with_hasher(hash.clone()),
            questions: HashMap::with_hasher(hash.clone()),
            due: BTreeSet::new(),
            of_connections: Waiting::new(hash.clone(), MAX_HELD_PER_NEIGHBOR, MAX_HELD),
            answers: Waiting::new(hash, MAX_ANSWERS_PER_NEIGHBOR, MAX_ANSWERS_HELD),
            asides: Vec::new(),
            broadcasts: RateLimit::new(ANSWER_BROADCASTS_PER_SECOND, ANSWER_BROADCASTS_PER_SECOND),
            unicasts: RateLimit::new(ANSWER_UNICASTS_PER_SECOND, ANSWER_UNICASTS_BURST),
            crowded_until: Instant::ZERO,
        }
    }

    /// Returns the number of known neighbours.
    pub(crate) fn known(&self) -> usize {
        self.known.len()
    }

    /// Returns the number of addresses that are being resolved.
    pub(crate) fn questions(&self) -> usize {
        self.questions.len()
    }

    /// Returns the hardware address for packets to `ip`. The use of a stale entry starts a probe.
    pub(crate) fn lookup(&mut self, ip: IpAddr, purpose: Purpose, now: Instant) -> Option<MacAddr> {
        let known = self.known.get_mut(&ip)?;
        if purpose == Purpose::Connection {
            known.used = Some(now);
        }
        if now > known.until
            && known.probe.is_none()
            && (purpose == Purpose::Connection || self.unicasts.allow(now))
        {
            known.probe = Some(Asking {
                asked: 0,
                next: now,
            });
            self.due.insert((now, ip));
        }
        Some(known.mac)
    }

    /// Returns the hardware address of `ip`; does not count as use of the entry.
    pub(crate) fn peek(&self, ip: IpAddr) -> Option<MacAddr> {
        Some(self.known.get(&ip)?.mac)
    }

    /// Keeps `packet` until `ip` is resolved; the next [`Neighbors::poll`] sends the request.
    pub(crate) fn hold(
        &mut self,
        ip: IpAddr,
        packet: P,
        purpose: Purpose,
        now: Instant,
    ) -> HoldOutcome<P> {
        debug_assert!(!self.known.contains_key(&ip));
        if !self.may_wait(ip, purpose, now) {
            return HoldOutcome::NotAsked(packet);
        }
        let room = match purpose {
            Purpose::Connection => &mut self.of_connections,
            Purpose::Answer { .. } => &mut self.answers,
        };
        let gave_way = room.push(ip, packet);
        match gave_way {
            None => HoldOutcome::Waits,
            Some((ip, packet)) => {
                self.end_idle_question(ip);
                HoldOutcome::GaveWay(packet)
            }
        }
    }

    /// Starts to resolve `ip` if necessary; returns whether it is being resolved.
    fn may_wait(&mut self, ip: IpAddr, purpose: Purpose, now: Instant) -> bool {
        let from = match purpose {
            Purpose::Connection => None,
            Purpose::Answer { from } => from,
        };
        if let Some(question) = self.questions.get_mut(&ip) {
            let is_first = purpose == Purpose::Connection && !self.of_connections.has(ip);
            if is_first && question.first.is_some() {
                // So far the request went to one station only, for a reply. A connection needs a broadcast.
                self.due.remove(&(question.asking.next, ip));
                *question = Question::new(None, question.from, now);
                self.due.insert((now, ip));
            }
            // The first station may have forged the address, and this one may be the owner.
            if let Some(from) = from.filter(|&from| question.from != Some(from))
                && self.unicasts.allow(now)
            {
                question.from = Some(from);
                self.asides.push((ip, from));
            }
            return true;
        }
        let first = match from {
            _ if purpose == Purpose::Connection || self.broadcasts.allow(now) => None,
            Some(from) if self.unicasts.allow(now) => Some(from),
            _ => return false,
        };
        self.questions.insert(ip, Question::new(first, from, now));
        self.due.insert((now, ip));
        true
    }

    /// Applies a claim about `ip` to its entry or question; returns the packets that waited for it.
    ///
    /// A claim about an address without entry and question creates no entry, so that a peer cannot fill the
    /// table. A caller that is about to reply to `ip` calls [`Neighbors::expect`].
    ///
    /// # Errors
    /// [`ClaimIgnored`]: the entry has another hardware address and keeps it.
    pub(crate) fn learn(
        &mut self,
        ip: IpAddr,
        claim: Claim,
        now: Instant,
    ) -> Result<Vec<P>, ClaimIgnored> {
        if let Some(known) = self.known.get_mut(&ip) {
            let probe = known.probe;
            let believed = known.apply(claim, now);
            if let (Some(probe), None) = (probe, known.probe) {
                self.due.remove(&(probe.next, ip));
            }
            return believed.map(|()| Vec::new());
        }
        let Some(question) = self.questions.remove(&ip) else {
            return Ok(Vec::new());
        };
        self.due.remove(&(question.asking.next, ip));
        let mut waited = Vec::new();
        self.of_connections.take(ip, &mut waited);
        let purpose = match waited.is_empty() {
            true => Purpose::Answer { from: None },
            false => Purpose::Connection,
        };
        self.answers.take(ip, &mut waited);
        self.insert(ip, claim, purpose, now);
        Ok(waited)
    }

    /// As [`Neighbors::learn`], and creates an entry if there is none: for a neighbour that has requested our
    /// address, and to which a reply will be sent (RFC 826, RFC 4861 7.2.3).
    ///
    /// # Errors
    /// As [`Neighbors::learn`].
    pub(crate) fn expect(
        &mut self,
        ip: IpAddr,
        claim: Claim,
        now: Instant,
    ) -> Result<Vec<P>, ClaimIgnored> {
        if !self.known.contains_key(&ip) && !self.questions.contains_key(&ip) {
            self.insert(ip, claim, Purpose::Answer { from: None }, now);
            return Ok(Vec::new());
        }
        self.learn(ip, claim, now)
    }

    /// Returns the time of the next request.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        Some(self.due.first()?.0)
    }

    /// Returns the next request that is due or failure to report; `None` if there is none.
    pub(crate) fn poll(&mut self, now: Instant) -> Option<NeighborAction<P>> {
        if let Some((ip, mac)) = self.asides.pop() {
            let known = Some(mac);
            return Some(NeighborAction::Solicit { ip, known });
        }
        loop {
            let &(next, ip) = self.due.first()?;
            if next > now {
                return None;
            }
            self.due.pop_first();
            if let Some(action) = self.advance(ip, now) {
                return Some(action);
            }
        }
    }

    /// Removes all entries and questions; returns the packets that waited (link down).
    pub(crate) fn clear(&mut self) -> Vec<P> {
        self.known.clear();
        self.questions.clear();
        self.due.clear();
        self.asides.clear();
        let mut waited = Vec::new();
        self.of_connections.take_all(&mut waited);
        self.answers.take_all(&mut waited);
        waited
    }

    /// Repeats the request for `ip`, which is due, or ends it; `None` if this request is left out.
    fn advance(&mut self, ip: IpAddr, now: Instant) -> Option<NeighborAction<P>> {
        let (asking, known) = match (self.questions.get_mut(&ip), self.known.get_mut(&ip)) {
            (Some(question), _) => {
                let first = question.first.filter(|_| question.asking.asked == 0);
                (&mut question.asking, first)
            }
            (None, Some(known)) => (known.probe.as_mut()?, Some(known.mac)),
            (None, None) => return None,
        };
        if asking.asked >= MAX_SOLICITS {
            return Some(self.give_up(ip));
        }
        let is_first = asking.asked == 0;
        asking.asked += 1;
        asking.next = now + RETRANS_TIMER;
        self.due.insert((asking.next, ip));
        // The first request was counted when the question was created; requests for connections are not limited.
        let is_free = is_first || known.is_some() || self.of_connections.has(ip);
        (is_free || self.broadcasts.allow(now)).then_some(NeighborAction::Solicit { ip, known })
    }

    fn give_up(&mut self, ip: IpAddr) -> NeighborAction<P> {
        self.known.remove(&ip);
        self.questions.remove(&ip);
        let mut held = Vec::new();
        self.of_connections.take(ip, &mut held);
        self.answers.take(ip, &mut held);
        NeighborAction::Unreachable { ip, held }
    }

    /// Removes a question that no packet waits for any more.
    fn end_idle_question(&mut self, ip: IpAddr) {
        if self.of_connections.has(ip) || self.answers.has(ip) {
            return;
        }
        if let Some(question) = self.questions.remove(&ip) {
            self.due.remove(&(question.asking.next, ip));
        }
    }

    /// Creates an entry if there is room, or an entry can be evicted.
    fn insert(&mut self, ip: IpAddr, claim: Claim, purpose: Purpose, now: Instant) {
        if self.known.len() >= MAX_NEIGHBORS && !self.make_room(purpose, now) {
            return;
        }
        let Claim {
            mac,
            learnt,
            change: _,
        } = claim;
        let until = match learnt {
            LearnedFrom::Answer => now + REACHABLE_TIME,
            LearnedFrom::Hearsay => now,
        };
        let used = (purpose == Purpose::Connection).then_some(now);
        self.known.insert(
            ip,
            Known {
                mac,
                until,
                changed: now,
                used,
                probe: None,
            },
        );
    }

    /// Evicts entries that no connection ever used, the oldest first; if there are none, the least recently used entry.
    /// Returns whether there is room.
    fn make_room(&mut self, purpose: Purpose, now: Instant) -> bool {
        if purpose != Purpose::Connection && now < self.crowded_until {
            return false;
        }
        let strangers = self.known.iter().filter(|(_, known)| known.used.is_none());
        let mut strangers: Vec<_> = strangers.map(|(&ip, known)| (known.changed, ip)).collect();
        if strangers.len() < EVICTED_AT_ONCE {
            self.crowded_until = now + CROWDED;
        } else {
            strangers.select_nth_unstable(EVICTED_AT_ONCE - 1);
            strangers.truncate(EVICTED_AT_ONCE);
        }
        for &(_, ip) in &strangers {
            self.forget(ip);
        }
        if !strangers.is_empty() {
            return true;
        }
        let idle = self
            .known
            .iter()
            .min_by_key(|(_, known)| known.used)
            .map(|(&ip, known)| (ip, known.used.map_or(IN_USE, |at| now.saturating_since(at))));
        let idle = idle.filter(|&(_, idle)| purpose == Purpose::Connection || idle >= IN_USE);
        if let Some((ip, _)) = idle {
            self.forget(ip);
        }
        idle.is_some()
    }

    fn forget(&mut self, ip: IpAddr) {
        let probe = self.known.remove(&ip).and_then(|known| known.probe);
        if let Some(probe) = probe {
            self.due.remove(&(probe.next, ip));
        }
    }
}

impl Question {
    fn new(first: Option<MacAddr>, from: Option<MacAddr>, now: Instant) -> Self {
        let asking = Asking {
            asked: 0,
            next: now,
        };
        Self {
            asking,
            first,
            from,
        }
    }
}
