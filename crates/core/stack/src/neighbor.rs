//! Which hardware address a neighbour has: one cache for ARP and for neighbour discovery.
//!
//! The states are those of RFC 4861 7.3.2 as far as they change what is sent. A *question* is an
//! address that was asked for (incomplete: packets wait). A *known* address is reachable, stale
//! (older than 30 s; still used, and asked about once it is used) or probed. ARP entries follow the
//! same rules, as Linux's `net/core/neighbour.c` does for both.
//!
//! A SYN with a forged source is enough to have us answer any address of the link. So answers to
//! packets that belong to no connection are kept apart from packets of connections. They wait in room
//! of their own and never evict what a connection uses. Everybody on the link is asked for their sake
//! within a limit; beyond it only the station is asked that the packet came from, which costs no
//! other one anything and finds a peer that is what it says. That station's address is never taken
//! for the peer's without an answer: a packet says which station forwarded it, not which one has its
//! source. No packet costs a walk over a table: what is due is kept in order, and a walk that makes
//! room makes it for many entries, or is not repeated for a while.

mod held;
mod known;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::Duration;

use wire::{Instant, MacAddr};

use crate::random::KeyedState;
use crate::rate_limit::RateLimit;
use held::Held;
pub use known::LOCK_TIME;
use known::{Asking, Known};
pub(crate) use known::{Change, Claim, Learnt, NotBelieved};

/// Most neighbours that are known (linux `gc_thresh3` is 1024).
pub const MAX_NEIGHBORS: usize = 1024;

/// Most packets of connections that wait for one address; the oldest gives way (RFC 4861 7.2.2 asks
/// for at least one, linux `unres_qlen_bytes` comes to about 100).
pub const MAX_HELD_PER_NEIGHBOR: usize = 16;

/// Most packets of connections that wait in all; the oldest gives way.
pub const MAX_HELD: usize = 256;

/// Most answers that wait for one address: SYN-ACKs, resets, echo replies. The oldest gives way.
pub const MAX_ANSWERS_PER_NEIGHBOR: usize = 4;

/// Most answers that wait in all; the oldest gives way, and its question with it.
pub const MAX_ANSWERS_HELD: usize = 256;

/// Questions to everybody on the link that are asked in a second for the sake of answers, and as
/// many at once. Linux has no such limit; its table limits it to about a thousand.
pub const ANSWER_BROADCASTS_PER_SECOND: u64 = 100;

/// Questions to the station that a packet came from, asked in a second for the sake of answers when
/// [`ANSWER_BROADCASTS_PER_SECOND`] is spent.
pub const ANSWER_UNICASTS_PER_SECOND: u64 = 10_000;

/// The same at once.
const ANSWER_UNICASTS_BURST: u64 = 256;

/// How long a confirmed address is believed (RFC 4861 10, REACHABLE_TIME).
pub const REACHABLE_TIME: Duration = Duration::from_secs(30);

/// Time between two questions (RFC 4861 10, RETRANS_TIMER).
pub const RETRANS_TIMER: Duration = Duration::from_secs(1);

/// Questions before an address counts as unreachable (RFC 4861 10, MAX_MULTICAST_SOLICIT and
/// MAX_UNICAST_SOLICIT).
pub const MAX_SOLICITS: u8 = 3;

/// An entry that a connection used within this time gives way to no stranger (linux
/// `neigh_forced_gc` spares what was updated within five seconds, and what is referenced).
const IN_USE: Duration = Duration::from_secs(5);

/// Entries that make room at once: the walk over the table is paid by as many newcomers.
const EVICTED_AT_ONCE: usize = MAX_NEIGHBORS / 8;

/// For so long the table is not walked again after a walk that freed little.
const CROWDED: Duration = Duration::from_millis(100);

/// What a packet belongs to that needs a hardware address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A connection of ours, from its first SYN on if we open it.
    Connection,
    /// Nothing that is kept: it answers a packet that anybody may have sent, in a frame from this
    /// station (`None`: the frame is not at hand).
    Answer { from: Option<MacAddr> },
}

/// An address that was asked for; nothing can be sent to it yet.
#[derive(Debug)]
struct Question {
    asking: Asking,
    /// Where the first question goes; `None`: to everybody.
    first: Option<MacAddr>,
    /// The station that the last answered packet came from.
    from: Option<MacAddr>,
}

/// What [`Neighbors::poll`] wants done.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NeighborAction<P> {
    /// Ask for `ip`; `known` is where a unicast question goes.
    Solicit { ip: IpAddr, known: Option<MacAddr> },
    /// Nobody answered for `ip`; these packets cannot leave.
    Unreachable { ip: IpAddr, held: Vec<P> },
}

/// What became of a packet that was to wait.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Hold<P> {
    /// It waits.
    Waits,
    /// It waits, and this older one gave way.
    GaveWay(P),
    /// Too many questions were asked for the sake of answers: this one is not, and nothing waits for it.
    NotAsked(P),
}

/// The cache. `P` is a packet that waits for an address.
#[derive(Debug)]
pub(crate) struct Neighbors<P> {
    /// At most [`MAX_NEIGHBORS`].
    known: HashMap<IpAddr, Known, KeyedState>,
    /// Each has a packet that waits for it.
    questions: HashMap<IpAddr, Question, KeyedState>,
    /// When to ask again, for each question and each probe.
    due: BTreeSet<(Instant, IpAddr)>,
    of_connections: Held<P>,
    answers: Held<P>,
    /// Questions to single stations that are asked beside the others.
    asides: Vec<(IpAddr, MacAddr)>,
    broadcasts: RateLimit,
    unicasts: RateLimit,
    /// The table is not walked for room before this.
    crowded_until: Instant,
}

impl<P> Neighbors<P> {
    pub(crate) fn new(hash_key: [u8; 16]) -> Self {
        let hash = KeyedState::new(hash_key);
        Self {
            known: HashMap::with_hasher(hash.clone()),
            questions: HashMap::with_hasher(hash.clone()),
            due: BTreeSet::new(),
            of_connections: Held::new(hash.clone(), MAX_HELD_PER_NEIGHBOR, MAX_HELD),
            answers: Held::new(hash, MAX_ANSWERS_PER_NEIGHBOR, MAX_ANSWERS_HELD),
            asides: Vec::new(),
            broadcasts: RateLimit::new(ANSWER_BROADCASTS_PER_SECOND, ANSWER_BROADCASTS_PER_SECOND),
            unicasts: RateLimit::new(ANSWER_UNICASTS_PER_SECOND, ANSWER_UNICASTS_BURST),
            crowded_until: Instant::ZERO,
        }
    }

    /// Returns how many neighbours are known.
    pub(crate) fn known(&self) -> usize {
        self.known.len()
    }

    /// Returns how many addresses were asked for and did not answer yet.
    pub(crate) fn questions(&self) -> usize {
        self.questions.len()
    }

    /// Returns where packets to `ip` go; using a stale entry starts a probe.
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

    /// Returns what is believed of `ip`, without using it.
    pub(crate) fn peek(&self, ip: IpAddr) -> Option<MacAddr> {
        Some(self.known.get(&ip)?.mac)
    }

    /// Keeps `packet` until `ip` answers, which is asked for by the next [`Neighbors::poll`].
    pub(crate) fn hold(
        &mut self,
        ip: IpAddr,
        packet: P,
        purpose: Purpose,
        now: Instant,
    ) -> Hold<P> {
        debug_assert!(!self.known.contains_key(&ip));
        if !self.may_wait(ip, purpose, now) {
            return Hold::NotAsked(packet);
        }
        let room = match purpose {
            Purpose::Connection => &mut self.of_connections,
            Purpose::Answer { .. } => &mut self.answers,
        };
        let gave_way = room.push(ip, packet);
        match gave_way {
            None => Hold::Waits,
            Some((ip, packet)) => {
                self.end_idle_question(ip);
                Hold::GaveWay(packet)
            }
        }
    }

    /// Has `ip` asked for if it was not; returns whether it is.
    fn may_wait(&mut self, ip: IpAddr, purpose: Purpose, now: Instant) -> bool {
        let from = match purpose {
            Purpose::Connection => None,
            Purpose::Answer { from } => from,
        };
        if let Some(question) = self.questions.get_mut(&ip) {
            let is_first = purpose == Purpose::Connection && !self.of_connections.has(ip);
            if is_first && question.first.is_some() {
                // So far one station was asked, for the sake of an answer. Everybody is asked now.
                self.due.remove(&(question.asking.next, ip));
                *question = Question::new(None, question.from, now);
                self.due.insert((now, ip));
            }
            // Another station may be the right one to ask: the first one forged its address.
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

    /// Notes what is said of `ip`; returns the packets that waited for it.
    ///
    /// What is said of an address that nobody here asked for makes no entry: a peer must not fill
    /// the cache. A caller that is about to answer `ip` calls [`Neighbors::expect`].
    ///
    /// # Errors
    /// [`NotBelieved`]: another hardware address is known, and stays.
    pub(crate) fn learn(
        &mut self,
        ip: IpAddr,
        claim: Claim,
        now: Instant,
    ) -> Result<Vec<P>, NotBelieved> {
        if let Some(known) = self.known.get_mut(&ip) {
            let probe = known.probe;
            let believed = known.believe(claim, now);
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

    /// Notes a neighbour that asked for us: we are about to answer it (RFC 826, RFC 4861 7.2.3).
    ///
    /// # Errors
    /// As [`Neighbors::learn`].
    pub(crate) fn expect(
        &mut self,
        ip: IpAddr,
        claim: Claim,
        now: Instant,
    ) -> Result<Vec<P>, NotBelieved> {
        if !self.known.contains_key(&ip) && !self.questions.contains_key(&ip) {
            self.insert(ip, claim, Purpose::Answer { from: None }, now);
            return Ok(Vec::new());
        }
        self.learn(ip, claim, now)
    }

    /// Returns when [`Neighbors::poll`] has something to do.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        Some(self.due.first()?.0)
    }

    /// Returns the next question to ask or failure to report, until `None`.
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

    /// Forgets everything; returns the packets that waited (link down).
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

    /// Asks once more for `ip`, whose time has come, or gives it up; `None` if the question is left out.
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
        // The first question was paid for when it was put; for a connection all are free.
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

    /// Drops a question that no packet waits for any more.
    fn end_idle_question(&mut self, ip: IpAddr) {
        if self.of_connections.has(ip) || self.answers.has(ip) {
            return;
        }
        if let Some(question) = self.questions.remove(&ip) {
            self.due.remove(&(question.asking.next, ip));
        }
    }

    /// Makes an entry if there is room for it, or room can be made.
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
            Learnt::Answer => now + REACHABLE_TIME,
            Learnt::Hearsay => now,
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

    /// Evicts entries that no connection ever used, the oldest first; if there are none, the one that was not used for
    /// the longest time. Returns whether there is room.
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
