//! An IPv6 address from the advertisements of routers, without I/O: stateless address autoconfiguration (RFC 4862, RFC 4861 6.3).
//!
//! The address is the first /64 prefix that a router advertises for this purpose, and the modified EUI-64 of the MAC address. One
//! address and one router are enough for a NIC, so a flood of advertisements has no effect on memory.

use std::net::Ipv6Addr;
use std::time::Duration;

/// Messages to routers before the first advertisement, and the wait after each (RFC 4861 10).
const SOLICITATIONS: u32 = 3;
const SOLICITATION_WAIT: Duration = Duration::from_secs(4);
/// Wait for the objection of a station that has the address (RFC 4862 5.4, RetransTimer).
const PROBE_WAIT: Duration = Duration::from_secs(1);
/// How long an open waits for an advertisement: routers answer within half a second (RFC 4861 10, MAX_RA_DELAY_TIME).
const ROUTER_WAIT: Duration = Duration::from_secs(1);
/// An advertisement does not shorten the life of an address below this (RFC 4862 5.5.3 e).
const LEAST_LIFE: Duration = Duration::from_secs(2 * 3600);
/// Length of the prefixes: the rest of an address is an EUI-64.
const PREFIX_LEN: u8 = 64;
/// A lifetime without an end.
const FOREVER: u32 = u32::MAX;
/// Most options of an advertisement that are looked at.
const MAX_OPTIONS: usize = 64;

/// A router advertisement: what a host takes from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Advertisement {
    /// Seconds for which the router is a default router; 0 if it is none.
    lifetime: u16,
    /// The first prefix for addresses, with its lifetimes in seconds.
    prefix: Option<Prefix>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Prefix {
    /// The first 64 bits of addresses.
    bits: u64,
    is_on_link: bool,
    valid: u32,
}

impl Advertisement {
    /// Type of the message (RFC 4861 4.2).
    pub(super) const KIND: u8 = 134;

    /// Parses a message of this type; `None` if it is malformed.
    pub(super) fn parse(message: &[u8]) -> Option<Self> {
        const OPTIONS: usize = 16;
        let lifetime = u16::from_be_bytes(*message.get(6..)?.first_chunk()?);
        let mut prefix = None;
        let mut rest = message.get(OPTIONS..)?;
        for _ in 0..MAX_OPTIONS {
            let [kind, units, ..] = *rest else {
                break;
            };
            if units == 0 {
                return None;
            }
            let (option, after) = rest.split_at_checked(usize::from(units) * 8)?;
            if (kind, units) == (3, 4) {
                prefix = prefix.or_else(|| Prefix::parse(option));
            }
            rest = after;
        }
        Some(Self { lifetime, prefix })
    }
}

impl Prefix {
    /// Parses an option (RFC 4861 4.6.2); `None` if it is not for addresses (RFC 4862 5.5.3 a to d).
    fn parse(option: &[u8]) -> Option<Self> {
        const ON_LINK: u8 = 0x80;
        const FOR_ADDRESSES: u8 = 0x40;
        let number = |at: usize| Some(u32::from_be_bytes(*option.get(at..)?.first_chunk()?));
        let (len, flags) = (*option.get(2)?, *option.get(3)?);
        let (valid, preferred) = (number(4)?, number(8)?);
        let bits = u64::from_be_bytes(*option.get(16..)?.first_chunk()?);
        let first = Ipv6Addr::from_bits(u128::from(bits) << 64);
        let is_usable = flags & FOR_ADDRESSES != 0
            && len == PREFIX_LEN
            && preferred <= valid
            && !first.is_unicast_link_local()
            && !first.is_multicast()
            // The prefix of ::, ::1 and addresses with IPv4 ones in them.
            && bits != 0;
        is_usable.then_some(Self {
            bits,
            is_on_link: flags & ON_LINK != 0,
            valid,
        })
    }
}

/// The address of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Configured {
    pub(super) address: Ipv6Addr,
    /// Length of the prefix that is on the link.
    pub(super) prefix: u8,
    pub(super) router: Option<Ipv6Addr>,
}

/// What happened to the address of this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// It has this one, or other facts about it.
    Configured(Configured),
    /// Its life has ended.
    Expired(Ipv6Addr),
}

/// A message to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Output {
    /// To all routers: asks for an advertisement.
    Solicitation,
    /// The question whether a station has the address.
    Probe(Ipv6Addr),
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// No prefix is known. Routers were asked so many times.
    Soliciting(u32),
    /// The address is probed for; `None`: the question was not sent yet.
    Probing(Life, Option<Duration>),
    /// The address is in use.
    Configured(Life),
    /// Another station has the address, and there is no other for this MAC address.
    Taken,
}

/// An address, and until when it is valid.
#[derive(Clone, Copy, Debug)]
struct Life {
    address: Ipv6Addr,
    prefix: u8,
    ends_at: Duration,
}

/// The configuration of one host.
#[derive(Debug)]
pub(super) struct Autoconf {
    mac: [u8; 6],
    state: State,
    /// The router, and until when it is one.
    router: Option<(Ipv6Addr, Duration)>,
    has_heard: bool,
    deadline: Duration,
    change: Option<Change>,
}

impl Autoconf {
    pub(super) fn new(mac: [u8; 6]) -> Self {
        Self {
            mac,
            state: State::Soliciting(0),
            router: None,
            has_heard: false,
            deadline: Duration::ZERO,
            change: None,
        }
    }

    /// Returns when [`poll`](Self::poll) is to be called, at the latest.
    pub(super) fn deadline(&self) -> Duration {
        let router = self.router.map_or(Duration::MAX, |(_, until)| until);
        self.deadline.min(router)
    }

    /// Returns whether [`take_change`](Self::take_change) returns something.
    pub(super) fn has_change(&self) -> bool {
        self.change.is_some()
    }

    /// Returns what has changed since the last call.
    pub(super) fn take_change(&mut self) -> Option<Change> {
        self.change.take()
    }

    /// Returns whether there is an address, or none is to be expected soon.
    pub(super) fn is_settled(&self, now: Duration) -> bool {
        match self.state {
            State::Configured(_) | State::Taken => true,
            State::Probing(..) => false,
            State::Soliciting(_) => self.has_heard || now >= ROUTER_WAIT,
        }
    }

    /// Returns the message that is due, if there is one. Call again until [`deadline`](Self::deadline) is in the future.
    pub(super) fn poll(&mut self, now: Duration) -> Option<Output> {
        if self.router.is_some_and(|(_, until)| now >= until) {
            self.router = None;
            self.tell();
        }
        if now < self.deadline {
            return None;
        }
        match self.state {
            State::Soliciting(sent) if sent < SOLICITATIONS && !self.has_heard => {
                self.state = State::Soliciting(sent + 1);
                self.deadline = now + SOLICITATION_WAIT;
                Some(Output::Solicitation)
            }
            State::Soliciting(_) | State::Taken => {
                self.deadline = Duration::MAX;
                None
            }
            State::Probing(life, None) => {
                self.deadline = now + PROBE_WAIT;
                self.state = State::Probing(life, Some(now));
                Some(Output::Probe(life.address))
            }
            State::Probing(life, Some(_)) => {
                self.state = State::Configured(life);
                self.deadline = life.ends_at;
                self.tell();
                None
            }
            State::Configured(life) => {
                self.change = Some(Change::Expired(life.address));
                self.state = State::Soliciting(0);
                self.has_heard = false;
                self.deadline = now;
                None
            }
        }
    }

    /// Takes an advertisement of the router `from`, its link-local address.
    pub(super) fn on_advertisement(&mut self, told: &Advertisement, from: Ipv6Addr, now: Duration) {
        self.has_heard = true;
        self.note_router(told.lifetime, from, now);
        let Some(prefix) = told.prefix else {
            return;
        };
        let address = address_of(prefix.bits, self.mac);
        let offered = match prefix.valid {
            FOREVER => Duration::MAX,
            seconds => now + Duration::from_secs(seconds.into()),
        };
        match self.state {
            State::Soliciting(_) if prefix.valid > 0 => {
                let life = Life {
                    address,
                    prefix: match prefix.is_on_link {
                        true => PREFIX_LEN,
                        false => 128,
                    },
                    ends_at: offered,
                };
                self.state = State::Probing(life, None);
                self.deadline = now;
            }
            State::Configured(life) if life.address == address => {
                let ends_at = match offered > now + LEAST_LIFE || offered > life.ends_at {
                    true => offered,
                    false => life.ends_at.min(now + LEAST_LIFE),
                };
                self.state = State::Configured(Life { ends_at, ..life });
                self.deadline = ends_at;
            }
            _ => {}
        }
    }

    /// Notes that another station has an address.
    pub(super) fn on_address_in_use(&mut self, address: Ipv6Addr) {
        if let State::Probing(life, _) = self.state
            && life.address == address
        {
            self.state = State::Taken;
            self.deadline = Duration::MAX;
        }
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
            self.tell();
        }
    }

    /// Reports the address with its router, if it is in use.
    fn tell(&mut self) {
        if let State::Configured(life) = self.state {
            self.change = Some(Change::Configured(Configured {
                address: life.address,
                prefix: life.prefix,
                router: self.router.map(|(router, _)| router),
            }));
        }
    }
}

/// Returns the address with a prefix and the modified EUI-64 of a MAC address (RFC 4291 appendix A).
fn address_of(prefix: u64, [a, b, c, d, e, f]: [u8; 6]) -> Ipv6Addr {
    let id = u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
    Ipv6Addr::from_bits(u128::from(prefix) << 64 | u128::from(id))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0xaa, 0xbb, 0xcc];
    const ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
    const OTHER_ROUTER: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 2);
    const OURS: Ipv6Addr = Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0xff, 0xfeaa, 0xbbcc);

    fn secs(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// Builds an advertisement with one prefix option.
    fn message(lifetime: u16, flags: u8, len: u8, valid: u32) -> Vec<u8> {
        let mut out = vec![Advertisement::KIND, 0, 0, 0, 64, 0];
        out.extend_from_slice(&lifetime.to_be_bytes());
        out.resize(16, 0);
        out.extend_from_slice(&[3, 4, len, flags]);
        out.extend_from_slice(&valid.to_be_bytes());
        out.extend_from_slice(&valid.min(1800).to_be_bytes());
        out.resize(32, 0);
        out.extend_from_slice(&Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, 0).octets());
        out
    }

    fn told(lifetime: u16, valid: u32) -> Advertisement {
        Advertisement::parse(&message(lifetime, 0xc0, 64, valid)).expect("well formed")
    }

    /// A host that has its address since `secs(1)`.
    fn configured(lifetime: u16, valid: u32) -> Autoconf {
        let mut host = Autoconf::new(MAC);
        assert_eq!(host.poll(secs(0)), Some(Output::Solicitation));
        assert!(!host.is_settled(secs(0)));
        host.on_advertisement(&told(lifetime, valid), ROUTER, secs(0));
        assert_eq!(host.poll(secs(0)), Some(Output::Probe(OURS)));
        assert!(!host.is_settled(secs(0)) && host.take_change().is_none());
        assert_eq!(host.poll(secs(1)), None);
        assert!(host.is_settled(secs(1)));
        host
    }

    #[test]
    fn an_address_is_made_of_the_prefix_and_probed() {
        let mut host = configured(1800, 3600);
        let expected = Configured {
            address: OURS,
            prefix: 64,
            router: Some(ROUTER),
        };
        assert_eq!(host.take_change(), Some(Change::Configured(expected)));
        assert_eq!(host.deadline(), secs(1800), "the end of the router");
    }

    #[test]
    fn routers_are_asked_three_times_and_one_that_speaks_later_is_heard() {
        let mut host = Autoconf::new(MAC);
        for second in [0, 4, 8] {
            assert_eq!(host.deadline(), secs(second));
            assert_eq!(host.poll(secs(second)), Some(Output::Solicitation));
        }
        assert_eq!(host.poll(secs(12)), None);
        assert_eq!(
            (host.deadline(), host.is_settled(secs(12))),
            (Duration::MAX, true)
        );
        host.on_advertisement(&told(0, 3600), ROUTER, secs(1000));
        assert_eq!(host.poll(secs(1000)), Some(Output::Probe(OURS)));
        host.poll(secs(1001));
        let Some(Change::Configured(ours)) = host.take_change() else {
            panic!("{host:?}");
        };
        assert_eq!(ours.router, None, "it is no default router");
    }

    #[test]
    fn an_address_of_another_station_is_not_used() {
        let mut host = Autoconf::new(MAC);
        host.on_advertisement(&told(1800, 3600), ROUTER, secs(0));
        host.poll(secs(0));
        host.on_address_in_use(ROUTER);
        host.on_address_in_use(OURS);
        assert_eq!(host.poll(secs(9)), None);
        assert!(host.is_settled(secs(9)) && host.take_change().is_none());
    }

    #[test]
    fn an_address_expires_and_its_life_is_extended_but_not_cut_short() {
        let mut host = configured(0, 10_000);
        host.take_change();
        // Less than two hours are not accepted (RFC 4862 5.5.3 e).
        host.on_advertisement(&told(0, 1), ROUTER, secs(100));
        assert_eq!(host.deadline(), secs(100 + 7200));
        host.on_advertisement(&told(0, 1), ROUTER, secs(5000));
        assert_eq!(host.deadline(), secs(100 + 7200));
        host.on_advertisement(&told(0, 8000), ROUTER, secs(6000));
        assert_eq!(host.deadline(), secs(14_000));
        assert_eq!(host.poll(secs(14_000)), None);
        assert_eq!(host.take_change(), Some(Change::Expired(OURS)));
        assert_eq!(host.poll(secs(14_000)), Some(Output::Solicitation));
    }

    #[test]
    fn a_router_ends_by_its_lifetime_or_its_word_and_another_one_follows() {
        let router = |host: &mut Autoconf| match host.take_change() {
            Some(Change::Configured(configured)) => Some(configured.router),
            other => {
                assert_eq!(other, None);
                None
            }
        };
        let mut host = configured(100, FOREVER);
        assert_eq!(router(&mut host), Some(Some(ROUTER)));
        host.on_advertisement(&told(100, FOREVER), OTHER_ROUTER, secs(50));
        assert_eq!(router(&mut host), None);
        assert_eq!(host.deadline(), secs(100));
        assert_eq!(host.poll(secs(100)), None);
        assert_eq!(router(&mut host), Some(None));
        host.on_advertisement(&told(100, FOREVER), OTHER_ROUTER, secs(110));
        assert_eq!(router(&mut host), Some(Some(OTHER_ROUTER)));
        host.on_advertisement(&told(0, FOREVER), ROUTER, secs(120));
        assert_eq!(router(&mut host), None);
        host.on_advertisement(&told(0, FOREVER), OTHER_ROUTER, secs(130));
        assert_eq!(router(&mut host), Some(None));
        assert_eq!(host.deadline(), Duration::MAX);
    }

    #[test]
    fn prefixes_that_are_not_for_addresses_are_ignored() {
        let prefix = |message: &[u8]| Advertisement::parse(message).expect("well formed").prefix;
        assert!(prefix(&message(0, 0x40, 64, 1)).is_some_and(|prefix| !prefix.is_on_link));
        for message in [message(0, 0x80, 64, 1), message(0, 0xc0, 56, 1)] {
            assert_eq!(prefix(&message), None);
        }
        for (at, byte) in [(32, 0xff), (32, 0xfe), (24, 0xff)] {
            let mut odd = message(0, 0xc0, 64, 1);
            odd[at] = byte;
            odd[at + 1] = 0x80;
            assert_eq!(prefix(&odd), None, "{at}");
        }
        let mut host = Autoconf::new(MAC);
        host.on_advertisement(&told(1800, 0), ROUTER, secs(0));
        assert!(matches!(host.state, State::Soliciting(0)));
    }

    #[test]
    fn a_malformed_advertisement_is_none() {
        let good = message(1800, 0xc0, 64, 3600);
        for len in (0..16).chain(17..good.len()) {
            let cut = Advertisement::parse(&good[..len]);
            assert!(cut.is_none_or(|cut| cut.prefix.is_none()), "{len}");
        }
        let mut endless = good.clone();
        endless[17] = 0;
        assert_eq!(Advertisement::parse(&endless), None);
        let many = [&good[..16], &[5, 1, 0, 0, 0, 0, 0, 0].repeat(1000)].concat();
        assert!(Advertisement::parse(&many).is_some());
    }
}
