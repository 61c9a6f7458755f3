//! IPv6 addresses from the advertisements of routers, without I/O: stateless address autoconfiguration (RFC 4862, RFC 4861 6.3).
//!
//! Each /64 prefix that routers advertise for this purpose gives an address, with the modified EUI-64 of the MAC address, up to a
//! number: a flood of advertisements has no effect on memory. One router is enough for a NIC.

#[cfg(test)]
pub(crate) mod tests;

use std::collections::VecDeque;
use std::net::Ipv6Addr;
use std::time::Duration;

use crate::advertisement::{Advertisement, PREFIX_LEN, Prefix};
use crate::defence::{AddressUse, Defence};
use crate::offer::UnusableAdvertisement;

/// Messages to routers before the first advertisement, and the wait after each (RFC 4861 10).
const SOLICITATIONS: u32 = 3;
const SOLICITATION_WAIT: Duration = Duration::from_secs(4);
/// Wait for the objection of a station that has the address (RFC 4862 5.4, RetransTimer).
const PROBE_WAIT: Duration = Duration::from_secs(1);
/// How long an open waits for an advertisement: routers answer within half a second (RFC 4861 10, MAX_RA_DELAY_TIME).
const ROUTER_WAIT: Duration = Duration::from_secs(1);
/// An advertisement does not shorten the life of an address below this (RFC 4862 5.5.3 e).
const LEAST_LIFE: Duration = Duration::from_secs(2 * 3600);
/// A lifetime without an end.
const FOREVER: u32 = u32::MAX;
/// Most addresses; further prefixes are ignored (linux net.ipv6.conf.*.max_addresses is 16).
const MAX_ADDRESSES: usize = 8;

/// An address of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Configured {
    pub(crate) address: Ipv6Addr,
    /// Length of the prefix that is on the link.
    pub(crate) prefix: u8,
    /// It is valid, but new connections use another one if there is one.
    pub(crate) is_deprecated: bool,
    pub(crate) router: Option<Ipv6Addr>,
}

/// What happened to an address of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// It has this one, or other facts about it.
    Configured(Configured),
    /// Its life has ended.
    Expired(Ipv6Addr),
}

/// A message to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// To all routers: asks for an advertisement.
    Solicitation,
    /// The question whether a station has the address.
    Probe(Ipv6Addr),
}

/// How far an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It is probed for; `None`: the question was not sent yet.
    Probing(Option<Duration>),
    /// It is in use.
    InUse { is_deprecated: bool },
    /// Another station has it, and there is no other for this MAC address and prefix.
    Taken,
}

/// An address, and until when it is valid and preferred.
#[derive(Clone, Copy, Debug)]
struct Address {
    ip: Ipv6Addr,
    prefix: u8,
    valid_until: Duration,
    preferred_until: Duration,
    stage: Stage,
    defence: Defence,
}

/// The configuration of one host.
#[derive(Debug)]
pub(crate) struct Autoconf {
    mac: [u8; 6],
    /// Routers were asked so many times since there was an address.
    solicited: u32,
    /// When they are asked again.
    solicit_at: Duration,
    addresses: Vec<Address>,
    /// The router, and until when it is one.
    router: Option<(Ipv6Addr, Duration)>,
    has_heard: bool,
    unusable: Option<UnusableAdvertisement>,
    /// At most two for each address.
    changes: VecDeque<Change>,
}

impl Autoconf {
    pub(crate) fn new(mac: [u8; 6]) -> Self {
        Self {
            mac,
            solicited: 0,
            solicit_at: Duration::ZERO,
            addresses: Vec::new(),
            router: None,
            has_heard: false,
            unusable: None,
            changes: VecDeque::new(),
        }
    }

    /// Returns when [`poll`](Self::poll) is to be called, at the latest.
    pub(crate) fn deadline(&self) -> Duration {
        let router = self.router.map_or(Duration::MAX, |(_, until)| until);
        let addresses = self.addresses.iter().map(Address::deadline).min();
        let addresses = addresses.unwrap_or(Duration::MAX);
        router.min(addresses).min(self.solicit_at)
    }

    /// Returns whether [`take_change`](Self::take_change) returns something.
    pub(crate) fn has_change(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Returns what has changed; call again until there is nothing.
    pub(crate) fn take_change(&mut self) -> Option<Change> {
        self.changes.pop_front()
    }

    /// Returns why the latest advertisement gave no address.
    pub(crate) fn unusable(&self) -> Option<UnusableAdvertisement> {
        self.unusable
    }

    /// Returns whether there is an address, or none is to be expected soon.
    pub(crate) fn is_settled(&self, now: Duration) -> bool {
        let is_asking = |address: &Address| matches!(address.stage, Stage::Probing(_));
        match self.addresses.is_empty() {
            true => self.has_heard || now >= ROUTER_WAIT,
            false => !self.addresses.iter().any(is_asking),
        }
    }

    /// Returns the message that is due, if there is one. Call again until [`deadline`](Self::deadline) is in the future.
    pub(crate) fn poll(&mut self, now: Duration) -> Option<Output> {
        if self.router.is_some_and(|(_, until)| now >= until) {
            self.router = None;
            self.tell_all();
        }
        if now >= self.solicit_at {
            return self.solicit(now);
        }
        let at = self.addresses.iter().position(|it| now >= it.deadline())?;
        if now >= self.addresses[at].valid_until {
            self.expire(at, now);
            return None;
        }
        let address = &mut self.addresses[at];
        match address.stage {
            Stage::Probing(None) => {
                address.stage = Stage::Probing(Some(now));
                return Some(Output::Probe(address.ip));
            }
            Stage::Probing(Some(_)) | Stage::InUse { .. } => {
                let is_deprecated = now >= address.preferred_until;
                address.stage = Stage::InUse { is_deprecated };
            }
            Stage::Taken => {}
        }
        self.tell(at);
        None
    }

    /// Asks routers, unless they were asked often.
    fn solicit(&mut self, now: Duration) -> Option<Output> {
        if self.solicited >= SOLICITATIONS {
            self.solicit_at = Duration::MAX;
            return None;
        }
        self.solicited += 1;
        self.solicit_at = now + SOLICITATION_WAIT;
        Some(Output::Solicitation)
    }

    /// Removes an address whose life has ended. After the last one, routers are asked again.
    fn expire(&mut self, at: usize, now: Duration) {
        let Address { ip, stage, .. } = self.addresses.remove(at);
        if let Stage::InUse { .. } = stage {
            self.changes.push_back(Change::Expired(ip));
        }
        if self.addresses.is_empty() {
            self.has_heard = false;
            self.solicited = 0;
            self.solicit_at = now;
        }
    }

    /// Takes an advertisement of the router `from`, its link-local address.
    pub(crate) fn on_advertisement(&mut self, told: &Advertisement, from: Ipv6Addr, now: Duration) {
        self.has_heard = true;
        self.solicit_at = Duration::MAX;
        self.unusable = told.unusable;
        self.note_router(told.lifetime, from, now);
        for prefix in &told.prefixes {
            let ip = address_of(prefix.bits, self.mac);
            match self.addresses.iter().position(|address| address.ip == ip) {
                Some(at) => self.renew(at, prefix, now),
                None if prefix.valid > 0 && self.addresses.len() < MAX_ADDRESSES => {
                    self.addresses.push(Address {
                        ip,
                        prefix: match prefix.is_on_link {
                            true => PREFIX_LEN,
                            false => 128,
                        },
                        valid_until: end_of(prefix.valid, now),
                        preferred_until: end_of(prefix.preferred, now),
                        stage: Stage::Probing(None),
                        defence: Defence::default(),
                    });
                }
                None => {}
            }
        }
    }

    /// Takes the lifetimes of the prefix of an address that is there (RFC 4862 5.5.3 e).
    fn renew(&mut self, at: usize, prefix: &Prefix, now: Duration) {
        let address = &mut self.addresses[at];
        let offered = end_of(prefix.valid, now);
        address.valid_until = match offered > now + LEAST_LIFE || offered > address.valid_until {
            true => offered,
            false => address.valid_until.min(now + LEAST_LIFE),
        };
        address.preferred_until = end_of(prefix.preferred, now);
        if let Stage::InUse { is_deprecated } = address.stage
            && is_deprecated != (prefix.preferred == 0)
        {
            address.stage = Stage::InUse {
                is_deprecated: !is_deprecated,
            };
            self.tell(at);
        }
    }

    /// Notes that another station has an address, or asks about it. One in use is given up at the second conflict within ten
    /// seconds; the stack defends it at the first one.
    pub(crate) fn on_address_use(&mut self, ip: Ipv6Addr, what: AddressUse, now: Duration) {
        let Some(address) = self.addresses.iter_mut().find(|address| address.ip == ip) else {
            return;
        };
        match address.stage {
            Stage::Probing(_) => self.unusable = Some(UnusableAdvertisement::InUse),
            Stage::InUse { .. } if what == AddressUse::Claim && address.defence.is_lost(now) => {
                self.changes.push_back(Change::Expired(ip));
            }
            Stage::InUse { .. } | Stage::Taken => return,
        }
        address.stage = Stage::Taken;
    }

    fn note_router(&mut self, lifetime: u16, from: Ipv6Addr, now: Duration) {
        let until = now + Duration::from_secs(lifetime.into());
        let known = self.router.map(|(router, _)| router);
        let router = match lifetime {
            0 if known == Some(from) => None,
            1.. if known.is_none_or(|router| router == from) => Some((from, until)),
            // One router is enough; another may take its place when it is gone.
            _ => return,
        };
        self.router = router;
        if known != router.map(|(router, _)| router) {
            self.tell_all();
        }
    }

    fn tell_all(&mut self) {
        (0..self.addresses.len()).for_each(|at| self.tell(at));
    }

    /// Reports an address with its router, if it is in use.
    fn tell(&mut self, at: usize) {
        let Address {
            ip, prefix, stage, ..
        } = self.addresses[at];
        let Stage::InUse { is_deprecated } = stage else {
            return;
        };
        // What was not taken yet is out of date.
        let is_old = |it: &Change| matches!(it, Change::Configured(old) if old.address == ip);
        self.changes.retain(|change| !is_old(change));
        self.changes.push_back(Change::Configured(Configured {
            address: ip,
            prefix,
            is_deprecated,
            router: self.router.map(|(router, _)| router),
        }));
    }
}

impl Address {
    /// Returns when something is to be done.
    fn deadline(&self) -> Duration {
        let next = match self.stage {
            Stage::Probing(None) => Duration::ZERO,
            Stage::Probing(Some(asked)) => asked + PROBE_WAIT,
            Stage::InUse {
                is_deprecated: false,
            } => self.preferred_until,
            Stage::InUse {
                is_deprecated: true,
            }
            | Stage::Taken => Duration::MAX,
        };
        next.min(self.valid_until)
    }
}

/// Returns when a lifetime in seconds ends.
fn end_of(seconds: u32, now: Duration) -> Duration {
    match seconds {
        FOREVER => Duration::MAX,
        _ => now + Duration::from_secs(seconds.into()),
    }
}

/// Returns the address with a prefix and the modified EUI-64 of a MAC address (RFC 4291 appendix A).
fn address_of(prefix: u64, [a, b, c, d, e, f]: [u8; 6]) -> Ipv6Addr {
    let id = u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
    Ipv6Addr::from_bits(u128::from(prefix) << 64 | u128::from(id))
}
