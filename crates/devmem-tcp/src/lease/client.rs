//! A DHCP client without I/O: from a request for an address to its renewals and its release (RFC 2131 4.4).
//!
//! Times are since the client began. Frames come in by [`Client::on_reply`] and [`Client::on_address_in_use`], and go out by
//! [`Client::poll`].

use std::net::Ipv4Addr;
use std::time::Duration;

use super::message::{Reply, ReplyKind, Request, RequestKind};

/// First wait for a reply, and how often it doubles (RFC 2131 4.1: 4, 8, 16, 32, 64 s, each with up to a second more or less).
const FIRST_WAIT: Duration = Duration::from_secs(4);
const DOUBLINGS: u32 = 4;
/// Requests for an offered address before the client begins again.
const REQUESTS: u32 = 4;
/// Shortest wait between two renewals (RFC 2131 4.4.5).
const RENEWAL_WAIT: Duration = Duration::from_secs(60);
/// Wait after an address turned out to be in use (RFC 2131 3.1).
const DECLINED_WAIT: Duration = Duration::from_secs(10);
/// Questions whether another station has the address, and the wait after each. Shorter than RFC 5227's one to two seconds,
/// because a program waits; stations of a LAN answer within milliseconds.
const PROBES: u32 = 3;
const PROBE_WAIT: Duration = Duration::from_millis(100);
/// Shortest lease that is accepted, in seconds: a shorter one would be lost before it could be renewed.
const MIN_LEASE: u32 = 10;
/// A lease without an end.
const FOREVER: u32 = u32::MAX;

/// An address that a server has lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lease {
    pub(super) address: Ipv4Addr,
    pub(super) prefix: u8,
    pub(super) gateway: Option<Ipv4Addr>,
    server: Ipv4Addr,
    /// MAC address of the server, or of the relay that its messages come from.
    server_mac: [u8; 6],
    renew_at: Duration,
    rebind_at: Duration,
    ends_at: Duration,
}

/// What happened to the address of this client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// It has this one.
    Bound(Lease),
    /// It may no longer use this one.
    Lost(Ipv4Addr),
}

/// A frame to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Output {
    /// A message of DHCP to all stations, from the address of the lease if there is one.
    Broadcast(Request),
    /// A message of DHCP to the server of the lease.
    ToServer(Request, Lease),
    /// The question whether a station has the address (an ARP probe, RFC 5227 2.1.1).
    Probe(Ipv4Addr),
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// Begins to look for servers at the deadline.
    Waiting,
    /// Has asked for offers so many times.
    Selecting(u32),
    /// Has asked for an offered address so many times.
    Requesting(Offer, u32),
    /// Has an address, and has asked so many times whether another station uses it.
    Probing(Lease, u32),
    /// Uses the address; up to the deadline nothing is to be done.
    Bound(Lease),
    /// Asks the server of the lease for more time.
    Renewing(Lease),
    /// Asks all servers for more time.
    Rebinding(Lease),
    /// Has returned the address.
    Ended,
}

/// An offered address.
#[derive(Clone, Copy, Debug)]
struct Offer {
    address: Ipv4Addr,
    server: Ipv4Addr,
}

/// A client for one address.
#[derive(Debug)]
pub(super) struct Client {
    mac: [u8; 6],
    random: u64,
    xid: u32,
    state: State,
    /// When [`poll`](Self::poll) has something to do.
    deadline: Duration,
    /// When the last request for an address, or for more time, was sent: leases begin then.
    asked_at: Duration,
    /// Refusals since the last lease.
    refusals: u32,
    change: Option<Change>,
}

impl Client {
    /// Returns a client of the station `mac`; `random` makes its numbers unpredictable.
    pub(super) fn new(mac: [u8; 6], random: u64) -> Self {
        Self {
            mac,
            random,
            xid: 0,
            state: State::Waiting,
            deadline: Duration::ZERO,
            asked_at: Duration::ZERO,
            refusals: 0,
            change: None,
        }
    }

    /// Returns when [`poll`](Self::poll) is to be called, at the latest.
    pub(super) fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Returns whether [`take_change`](Self::take_change) returns something.
    pub(super) fn has_change(&self) -> bool {
        self.change.is_some()
    }

    /// Returns what has changed since the last call.
    pub(super) fn take_change(&mut self) -> Option<Change> {
        self.change.take()
    }

    /// Returns the frame that is due, if there is one. Call again until there is none.
    pub(super) fn poll(&mut self, now: Duration) -> Option<Output> {
        if now < self.deadline {
            return None;
        }
        match self.state {
            State::Waiting => {
                self.xid = self.next_random() as u32;
                Some(self.discover(0, now))
            }
            State::Selecting(tries) => Some(self.discover(tries, now)),
            State::Requesting(_, REQUESTS..) => {
                self.begin_again(Duration::ZERO, now);
                None
            }
            State::Requesting(offer, tries) => Some(self.request(offer, tries, now)),
            State::Probing(lease, PROBES..) => {
                self.bind(lease);
                None
            }
            State::Probing(lease, probes) => {
                self.state = State::Probing(lease, probes + 1);
                self.deadline = now + PROBE_WAIT;
                Some(Output::Probe(lease.address))
            }
            State::Bound(lease) => {
                self.xid = self.next_random() as u32;
                self.state = State::Renewing(lease);
                None
            }
            State::Renewing(lease) if now < lease.rebind_at => {
                let request = self.more_time(lease, lease.rebind_at, now);
                Some(Output::ToServer(request, lease))
            }
            State::Renewing(lease) => {
                self.state = State::Rebinding(lease);
                None
            }
            State::Rebinding(lease) if now < lease.ends_at => {
                let request = self.more_time(lease, lease.ends_at, now);
                Some(Output::Broadcast(request))
            }
            State::Rebinding(lease) => {
                self.lose(lease, now);
                None
            }
            State::Ended => None,
        }
    }

    /// Returns whether [`poll`](Self::poll) has to be called now.
    pub(super) fn is_due(&self, now: Duration) -> bool {
        now >= self.deadline && !matches!(self.state, State::Ended)
    }

    /// Takes a message of a server, which came from the station `from`.
    pub(super) fn on_reply(&mut self, reply: &Reply, from: [u8; 6], now: Duration) {
        if reply.xid != self.xid || reply.mac != self.mac {
            return;
        }
        match (self.state, reply.kind) {
            (State::Selecting(_), ReplyKind::Offer) => {
                if let Some(lease) = self.lease(reply, from) {
                    let Lease {
                        address, server, ..
                    } = lease;
                    self.state = State::Requesting(Offer { address, server }, 0);
                    self.deadline = now;
                }
            }
            (State::Requesting(offer, _), ReplyKind::Ack) => {
                let fits =
                    |lease: &Lease| (lease.address, lease.server) == (offer.address, offer.server);
                if let Some(lease) = self.lease(reply, from).filter(fits) {
                    self.state = State::Probing(lease, 0);
                    self.deadline = now;
                }
            }
            (State::Requesting(offer, _), ReplyKind::Nak) if reply.server == Some(offer.server) => {
                self.refuse(now);
            }
            (State::Renewing(old), ReplyKind::Ack) if reply.server == Some(old.server) => {
                self.extend(old, reply, from);
            }
            (State::Rebinding(old), ReplyKind::Ack) => self.extend(old, reply, from),
            (State::Renewing(old), ReplyKind::Nak) if reply.server == Some(old.server) => {
                self.lose(old, now);
            }
            (State::Rebinding(old), ReplyKind::Nak) => self.lose(old, now),
            _ => {}
        }
    }

    /// Notes that another station has an address; returns the message to the server, if it is the one that was lent just now.
    pub(super) fn on_address_in_use(&mut self, address: Ipv4Addr, now: Duration) -> Option<Output> {
        let State::Probing(lease, _) = self.state else {
            return None;
        };
        if lease.address != address {
            return None;
        }
        let declined = Request {
            requested: Some(address),
            server: Some(lease.server),
            ..self.message(RequestKind::Decline)
        };
        self.begin_again(DECLINED_WAIT, now);
        Some(Output::Broadcast(declined))
    }

    /// Ends the client; returns the message that returns its address, if it has one.
    pub(super) fn release(&mut self) -> Option<Output> {
        let (State::Bound(lease) | State::Renewing(lease) | State::Rebinding(lease)) =
            std::mem::replace(&mut self.state, State::Ended)
        else {
            return None;
        };
        self.xid = self.next_random() as u32;
        let release = Request {
            current: Some(lease.address),
            server: Some(lease.server),
            ..self.message(RequestKind::Release)
        };
        Some(Output::ToServer(release, lease))
    }

    fn discover(&mut self, tries: u32, now: Duration) -> Output {
        self.state = State::Selecting(tries + 1);
        self.deadline = now + self.wait(tries);
        Output::Broadcast(self.message(RequestKind::Discover))
    }

    fn request(&mut self, offer: Offer, tries: u32, now: Duration) -> Output {
        self.state = State::Requesting(offer, tries + 1);
        self.deadline = now + self.wait(tries);
        self.asked_at = now;
        Output::Broadcast(Request {
            requested: Some(offer.address),
            server: Some(offer.server),
            ..self.message(RequestKind::Request)
        })
    }

    /// Returns a request for more time, and plans the next one: after half of the time until `end`.
    fn more_time(&mut self, lease: Lease, end: Duration, now: Duration) -> Request {
        let wait = (end.saturating_sub(now) / 2).max(RENEWAL_WAIT);
        self.deadline = (now + wait).min(end);
        self.asked_at = now;
        Request {
            current: Some(lease.address),
            ..self.message(RequestKind::Request)
        }
    }

    fn message(&self, kind: RequestKind) -> Request {
        Request {
            kind,
            xid: self.xid,
            mac: self.mac,
            current: None,
            requested: None,
            server: None,
        }
    }

    /// Returns the lease of a reply; `None` if it lacks something, or if no host can use it.
    fn lease(&self, reply: &Reply, from: [u8; 6]) -> Option<Lease> {
        let Reply {
            address,
            server,
            mask,
            router,
            lease,
            t1,
            t2,
            ..
        } = *reply;
        let server = server.filter(|server| is_host(*server))?;
        let prefix = prefix_of(mask?)?;
        if !is_host(address) || !is_host_in(address, prefix) {
            return None;
        }
        let on_link = |router: &Ipv4Addr| {
            let differs = (router.to_bits() ^ address.to_bits()).leading_zeros();
            is_host(*router) && *router != address && differs >= u32::from(prefix)
        };
        let seconds = lease.filter(|seconds| *seconds >= MIN_LEASE)?;
        let (renew, rebind) = match (t1, t2) {
            (Some(t1), Some(t2)) if 0 < t1 && t1 < t2 && t2 < seconds => (t1, t2),
            _ => (seconds / 2, seconds - seconds / 8),
        };
        let at = |seconds: u32| match lease {
            Some(FOREVER) => Duration::MAX,
            _ => self.asked_at + Duration::from_secs(seconds.into()),
        };
        Some(Lease {
            address,
            prefix,
            gateway: router.filter(on_link),
            server,
            server_mac: from,
            renew_at: at(renew),
            rebind_at: at(rebind),
            ends_at: at(seconds),
        })
    }

    /// Takes an answer to a request for more time.
    fn extend(&mut self, old: Lease, reply: &Reply, from: [u8; 6]) {
        let same = |lease: &Lease| lease.address == old.address;
        if let Some(lease) = self.lease(reply, from).filter(same) {
            self.bind(lease);
        }
    }

    fn bind(&mut self, lease: Lease) {
        self.state = State::Bound(lease);
        self.deadline = lease.renew_at;
        self.refusals = 0;
        self.change = Some(Change::Bound(lease));
    }

    fn lose(&mut self, lease: Lease, now: Duration) {
        self.change = Some(Change::Lost(lease.address));
        self.begin_again(Duration::ZERO, now);
    }

    /// A server has taken back its offer. It may do so each time, so the client waits longer and longer.
    fn refuse(&mut self, now: Duration) {
        let wait = FIRST_WAIT / 4 * (1 << self.refusals.min(DOUBLINGS + 2));
        self.refusals += 1;
        self.begin_again(wait, now);
    }

    fn begin_again(&mut self, wait: Duration, now: Duration) {
        self.state = State::Waiting;
        self.deadline = now + wait;
    }

    /// Returns how long to wait for a reply after so many tries.
    fn wait(&mut self, tries: u32) -> Duration {
        let jitter = Duration::from_millis(self.next_random() % 2000);
        FIRST_WAIT * (1 << tries.min(DOUBLINGS)) + jitter - Duration::from_secs(1)
    }

    /// SplitMix64 (Steele, Lea, Flood 2014).
    fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

impl Lease {
    /// Returns the address of the server, and the MAC address to send to.
    pub(super) fn server(&self) -> (Ipv4Addr, [u8; 6]) {
        (self.server, self.server_mac)
    }
}

/// Returns whether an address can be that of one host.
fn is_host(ip: Ipv4Addr) -> bool {
    let first = ip.octets()[0];
    first != 0 && first < 224 && !ip.is_loopback()
}

/// Returns the prefix length of a mask; `None` for a mask with gaps, or of length 0.
fn prefix_of(mask: Ipv4Addr) -> Option<u8> {
    let bits = mask.to_bits();
    let ones = bits.leading_ones();
    (ones > 0 && ones == bits.count_ones()).then_some(ones as u8)
}

/// Returns whether an address is neither the first nor the last of its network, which are no hosts' (RFC 3021 for /31).
fn is_host_in(ip: Ipv4Addr, prefix: u8) -> bool {
    let host_bits = u32::MAX.checked_shr(prefix.into()).unwrap_or(0);
    let host = ip.to_bits() & host_bits;
    prefix >= 31 || host != 0 && host != host_bits
}

#[cfg(test)]
mod tests;
