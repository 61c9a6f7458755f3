//! A DHCP client without I/O: from a request for an address to its renewals and its release (RFC 2131 4.4).
//!
//! Times are since the client began. Frames come in by [`Client::on_reply`] and [`Client::on_address_use`], and go out by
//! [`Client::poll`].

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use stack::NetworkRoute;

use crate::defence::{AddressUse, Defence};
use crate::message::{ClasslessRoute, Reply, ReplyKind, Request, RequestKind};
use crate::offer::{Unusable, UnusableOffer};

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
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) address: Ipv4Addr,
    pub(crate) prefix: u8,
    pub(crate) routes: Vec<NetworkRoute>,
    server: Ipv4Addr,
    /// MAC address of the server, or of the relay that its messages come from.
    server_mac: [u8; 6],
    renew_at: Duration,
    rebind_at: Duration,
    ends_at: Duration,
}

/// What happened to the address of this client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// It has this one.
    Bound(Lease),
    /// It may no longer use this one.
    Lost(Ipv4Addr),
}

/// A frame to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// A message of DHCP to all stations, from the address of the lease if there is one.
    Broadcast(Request),
    /// A message of DHCP to the server of the lease.
    ToServer(Request, Lease),
    /// The question whether a station has the address (an ARP probe, RFC 5227 2.1.1).
    Probe(Ipv4Addr),
}

#[derive(Clone, Debug)]
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
pub(crate) struct Client {
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
    /// The latest offer that was not taken since the last lease.
    unusable: Option<UnusableOffer>,
    defence: Defence,
    change: Option<Change>,
}

impl Client {
    /// Returns a client of the station `mac`; `random` makes its numbers unpredictable.
    pub(crate) fn new(mac: [u8; 6], random: u64) -> Self {
        Self {
            mac,
            random,
            xid: 0,
            state: State::Waiting,
            deadline: Duration::ZERO,
            asked_at: Duration::ZERO,
            refusals: 0,
            unusable: None,
            defence: Defence::default(),
            change: None,
        }
    }

    /// Returns when [`poll`](Self::poll) is to be called, at the latest.
    pub(crate) fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Returns whether [`take_change`](Self::take_change) returns something.
    pub(crate) fn has_change(&self) -> bool {
        self.change.is_some()
    }

    /// Returns what has changed since the last call.
    pub(crate) fn take_change(&mut self) -> Option<Change> {
        self.change.take()
    }

    /// Returns the frame that is due, if there is one. Call again until there is none.
    pub(crate) fn poll(&mut self, now: Duration) -> Option<Output> {
        if now < self.deadline {
            return None;
        }
        match self.state.clone() {
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
                let address = lease.address;
                self.state = State::Probing(lease, probes + 1);
                self.deadline = now + PROBE_WAIT;
                Some(Output::Probe(address))
            }
            State::Bound(lease) => {
                self.xid = self.next_random() as u32;
                self.state = State::Renewing(lease);
                None
            }
            State::Renewing(lease) if now < lease.rebind_at => {
                let request = self.more_time(lease.address, lease.rebind_at, now);
                Some(Output::ToServer(request, lease))
            }
            State::Renewing(lease) => {
                self.state = State::Rebinding(lease);
                None
            }
            State::Rebinding(lease) if now < lease.ends_at => {
                let request = self.more_time(lease.address, lease.ends_at, now);
                Some(Output::Broadcast(request))
            }
            State::Rebinding(lease) => {
                self.lose(lease.address, now);
                None
            }
            State::Ended => None,
        }
    }

    /// Returns whether [`poll`](Self::poll) has to be called now.
    pub(crate) fn is_due(&self, now: Duration) -> bool {
        now >= self.deadline && !matches!(self.state, State::Ended)
    }

    /// Returns whether a message is an answer to the latest of this client.
    pub(crate) fn expects(&self, reply: &Reply) -> bool {
        reply.xid == self.xid && reply.mac == self.mac
    }

    /// Takes a message of a server, which came from the station `from`. No address of `own`, which this machine has itself, is
    /// accepted.
    pub(crate) fn on_reply(&mut self, reply: &Reply, from: [u8; 6], own: &[IpAddr], now: Duration) {
        if !self.expects(reply) {
            return;
        }
        match (self.state.clone(), reply.kind) {
            (State::Selecting(_), ReplyKind::Offer) => {
                if let Some(lease) = self.judge(reply, from, own) {
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
                if let Some(lease) = self.judge(reply, from, own).filter(fits) {
                    self.state = State::Probing(lease, 0);
                    self.deadline = now;
                }
            }
            (State::Requesting(offer, _), ReplyKind::Nak) if reply.server == Some(offer.server) => {
                self.refuse(now);
            }
            (State::Renewing(old), ReplyKind::Ack) if reply.server == Some(old.server) => {
                self.extend(old.address, reply, from);
            }
            (State::Rebinding(old), ReplyKind::Ack) => self.extend(old.address, reply, from),
            (State::Renewing(old), ReplyKind::Nak) if reply.server == Some(old.server) => {
                self.lose(old.address, now);
            }
            (State::Rebinding(old), ReplyKind::Nak) => self.lose(old.address, now),
            _ => {}
        }
    }

    /// Notes that another station has an address, or asks about it; returns the message to the server if the lent one is given up.
    ///
    /// An address in use is given up at the second conflict within ten seconds. The stack defends it at the first one.
    pub(crate) fn on_address_use(
        &mut self,
        address: Ipv4Addr,
        what: AddressUse,
        now: Duration,
    ) -> Option<Output> {
        let lease = match &self.state {
            State::Probing(lease, _) if lease.address == address => lease.clone(),
            State::Bound(lease) | State::Renewing(lease) | State::Rebinding(lease)
                if lease.address == address
                    && what == AddressUse::Claim
                    && self.defence.is_lost(now) =>
            {
                self.change = Some(Change::Lost(address));
                lease.clone()
            }
            _ => return None,
        };
        let declined = Request {
            requested: Some(address),
            server: Some(lease.server),
            ..self.message(RequestKind::Decline)
        };
        self.unusable = Some(UnusableOffer {
            server: Some(lease.server),
            address,
            why: Unusable::InUse,
        });
        self.begin_again(DECLINED_WAIT, now);
        Some(Output::Broadcast(declined))
    }

    /// Returns the latest offer that was not taken since the last lease.
    pub(crate) fn unusable(&self) -> Option<&UnusableOffer> {
        self.unusable.as_ref()
    }

    /// Ends the client; returns the message that returns its address, if it has one.
    pub(crate) fn release(&mut self) -> Option<Output> {
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
    fn more_time(&mut self, address: Ipv4Addr, end: Duration, now: Duration) -> Request {
        let wait = (end.saturating_sub(now) / 2).max(RENEWAL_WAIT);
        self.deadline = (now + wait).min(end);
        self.asked_at = now;
        Request {
            current: Some(address),
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

    /// Returns the lease of a reply, and notes why there is none.
    fn judge(&mut self, reply: &Reply, from: [u8; 6], own: &[IpAddr]) -> Option<Lease> {
        let lease = match own.contains(&reply.address.into()) {
            true => Err(Unusable::Own),
            false => self.lease(reply, from),
        };
        match lease {
            Ok(lease) => Some(lease),
            Err(why) => {
                self.unusable = Some(UnusableOffer {
                    server: reply.server,
                    address: reply.address,
                    why,
                });
                None
            }
        }
    }

    /// Returns the lease of a reply, unless it lacks something, or no host can use it.
    fn lease(&self, reply: &Reply, from: [u8; 6]) -> Result<Lease, Unusable> {
        let address = reply.address;
        let server = reply.server.ok_or(Unusable::NoServer)?;
        if stack::check_address(server.into(), 32).is_err() {
            return Err(Unusable::BadServer(server));
        }
        if server == address {
            return Err(Unusable::OfServer);
        }
        let mask = reply.mask.ok_or(Unusable::NoMask)?;
        let prefix = prefix_of(mask).ok_or(Unusable::BadMask(mask))?;
        stack::check_address(address.into(), prefix).map_err(Unusable::NoHost)?;
        let seconds = reply.lease.ok_or(Unusable::NoTime)?;
        if seconds < MIN_LEASE {
            return Err(Unusable::ShortTime(seconds));
        }
        let (renew, rebind) = match (reply.t1, reply.t2) {
            (Some(t1), Some(t2)) if 0 < t1 && t1 < t2 && t2 < seconds => (t1, t2),
            _ => (seconds / 2, seconds - seconds / 8),
        };
        let at = |time: u32| match seconds {
            FOREVER => Duration::MAX,
            _ => self.asked_at + Duration::from_secs(time.into()),
        };
        Ok(Lease {
            address,
            prefix,
            routes: routes(reply, prefix),
            server,
            server_mac: from,
            renew_at: at(renew),
            rebind_at: at(rebind),
            ends_at: at(seconds),
        })
    }

    /// Takes an answer to a request for more time.
    fn extend(&mut self, address: Ipv4Addr, reply: &Reply, from: [u8; 6]) {
        let lease = self.lease(reply, from).ok();
        if let Some(lease) = lease.filter(|lease| lease.address == address) {
            self.bind(lease);
        }
    }

    fn bind(&mut self, lease: Lease) {
        self.state = State::Bound(lease.clone());
        self.deadline = lease.renew_at;
        self.refusals = 0;
        self.unusable = None;
        self.change = Some(Change::Bound(lease));
    }

    fn lose(&mut self, address: Ipv4Addr, now: Duration) {
        self.change = Some(Change::Lost(address));
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
    pub(crate) fn server(&self) -> (Ipv4Addr, [u8; 6]) {
        (self.server, self.server_mac)
    }
}

/// Returns the routes of a reply whose routers are on the link: in the network of the address, covered by another of the routes, or
/// anywhere if the address has no network, as clouds lend them.
fn routes(reply: &Reply, prefix: u8) -> Vec<NetworkRoute> {
    let through_router = reply.router.map(|router| ClasslessRoute {
        network: Ipv4Addr::UNSPECIFIED,
        prefix: 0,
        router,
    });
    let told = match &reply.routes {
        Some(routes) => routes.as_slice(),
        None => through_router.as_slice(),
    };
    let is_in = |ip: Ipv4Addr, network: Ipv4Addr, prefix: u8| {
        (ip.to_bits() ^ network.to_bits()).leading_zeros() >= u32::from(prefix)
    };
    let is_on_link = |router: Ipv4Addr| {
        let by_route = |it: &ClasslessRoute| {
            it.router.is_unspecified() && is_in(router, it.network, it.prefix)
        };
        prefix == 32 || is_in(router, reply.address, prefix) || told.iter().any(by_route)
    };
    let is_usable = |it: &&ClasslessRoute| {
        let is_host = stack::check_address(it.router.into(), 32).is_ok();
        let is_other = is_host && it.router != reply.address && is_on_link(it.router);
        it.router.is_unspecified() || is_other
    };
    let route = |it: &ClasslessRoute| NetworkRoute {
        network: it.network.into(),
        prefix_len: it.prefix,
        router: (!it.router.is_unspecified()).then_some(it.router.into()),
    };
    told.iter().filter(is_usable).map(route).collect()
}

/// Returns the prefix length of a mask; `None` for a mask with gaps, or of length 0.
fn prefix_of(mask: Ipv4Addr) -> Option<u8> {
    let bits = mask.to_bits();
    let ones = bits.leading_ones();
    (ones > 0 && ones == bits.count_ones()).then_some(ones as u8)
}

#[cfg(test)]
mod tests;
