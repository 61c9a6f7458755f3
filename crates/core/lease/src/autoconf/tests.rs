//! Tests of the autoconfiguration.

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
    let preferred = match valid {
        FOREVER => FOREVER,
        _ => valid.min(1800),
    };
    let mut out = vec![Advertisement::KIND, 0, 0, 0, 64, 0];
    out.extend_from_slice(&lifetime.to_be_bytes());
    out.resize(16, 0);
    out.extend_from_slice(&[3, 4, len, flags]);
    out.extend_from_slice(&valid.to_be_bytes());
    out.extend_from_slice(&preferred.to_be_bytes());
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
        is_deprecated: false,
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
    host.on_address_use(ROUTER, AddressUse::Claim, secs(0));
    assert_eq!(host.unusable(), None);
    host.on_address_use(OURS, AddressUse::Probe, secs(0));
    assert_eq!(host.unusable(), Some(UnusableAdvertisement::InUse));
    assert_eq!(host.poll(secs(9)), None);
    assert!(host.is_settled(secs(9)) && host.take_change().is_none());
}

#[test]
fn an_address_expires_and_its_life_is_extended_but_not_cut_short() {
    let mut host = configured(0, 10_000);
    host.take_change();
    // Less than two hours are not accepted (RFC 4862 5.5.3 e).
    host.on_advertisement(&told(0, 1), ROUTER, secs(100));
    assert_eq!(host.addresses[0].valid_until, secs(100 + 7200));
    host.on_advertisement(&told(0, 1), ROUTER, secs(5000));
    assert_eq!(host.addresses[0].valid_until, secs(100 + 7200));
    host.on_advertisement(&told(0, 8000), ROUTER, secs(6000));
    assert_eq!(host.addresses[0].valid_until, secs(14_000));
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
fn prefixes_that_are_not_for_addresses_are_ignored_and_why_is_told() {
    let parse = |message: &[u8]| Advertisement::parse(message).expect("well formed");
    let off_link = parse(&message(0, 0x40, 64, 1));
    assert!(!off_link.prefixes[0].is_on_link && off_link.unusable.is_none());
    let mut managed = message(0, 0x80, 64, 1);
    managed[5] = 0x80;
    let mut short = message(0, 0xc0, 64, 1);
    short[24..28].fill(0xff);
    for (message, why) in [
        (message(0, 0x80, 64, 1), UnusableAdvertisement::NoPrefix),
        (managed, UnusableAdvertisement::Managed),
        (message(0, 0xc0, 56, 1), UnusableAdvertisement::Length(56)),
        (short, UnusableAdvertisement::Malformed),
    ] {
        let told = parse(&message);
        assert_eq!((told.prefixes, told.unusable), (Vec::new(), Some(why)));
    }
    for (at, byte) in [(32, 0xff), (32, 0xfe), (24, 0xff)] {
        let mut odd = message(0, 0xc0, 64, 1);
        odd[at] = byte;
        odd[at + 1] = 0x80;
        assert_eq!(parse(&odd).prefixes, [], "{at}");
    }
    let mut host = Autoconf::new(MAC);
    host.on_advertisement(&told(1800, 0), ROUTER, secs(0));
    assert!(host.addresses.is_empty());
    assert_eq!(host.unusable(), Some(UnusableAdvertisement::Dead));
}

/// An advertisement of the prefixes fd77:N::/64 with their valid and preferred lifetimes, by a router that is none.
fn prefixes(all: &[(u16, u32, u32)]) -> Advertisement {
    let prefix = |&(number, valid, preferred): &(u16, u32, u32)| Prefix {
        bits: 0xfd77 << 48 | u64::from(number) << 32,
        is_on_link: true,
        valid,
        preferred,
    };
    Advertisement {
        lifetime: 0,
        prefixes: all.iter().map(prefix).collect(),
        unusable: None,
    }
}

fn address(number: u16) -> Ipv6Addr {
    address_of(0xfd77 << 48 | u64::from(number) << 32, MAC)
}

/// Runs a host up to a time; returns the changes: addresses, with whether they are deprecated, `None` for one that has expired.
fn run(host: &mut Autoconf, until: u64) -> Vec<(Ipv6Addr, Option<bool>)> {
    let mut changes = Vec::new();
    for _ in 0..1000 {
        while let Some(change) = host.take_change() {
            changes.push(match change {
                Change::Configured(ours) => (ours.address, Some(ours.is_deprecated)),
                Change::Expired(ip) => (ip, None),
            });
        }
        if host.deadline() > secs(until) {
            return changes;
        }
        host.poll(host.deadline());
    }
    panic!("{host:?} is never done");
}

#[test]
fn a_live_prefix_wins_over_a_dead_and_a_deprecated_one_before_it() {
    let mut host = Autoconf::new(MAC);
    let told = prefixes(&[(1, 0, 0), (2, 3600, 0), (3, 3600, 900)]);
    host.on_advertisement(&told, ROUTER, secs(0));
    let changes = run(&mut host, 10);
    assert_eq!(
        changes,
        [(address(2), Some(true)), (address(3), Some(false))]
    );
    assert!(host.is_settled(secs(10)));
    // Alone, a deprecated one is better than none.
    let mut alone = Autoconf::new(MAC);
    alone.on_advertisement(&prefixes(&[(2, 3600, 0)]), ROUTER, secs(0));
    assert_eq!(run(&mut alone, 10), [(address(2), Some(true))]);
    assert!(alone.is_settled(secs(10)));
}

#[test]
fn an_address_is_deprecated_and_preferred_again_as_its_router_says() {
    let mut host = Autoconf::new(MAC);
    host.on_advertisement(&prefixes(&[(1, 9000, 100)]), ROUTER, secs(0));
    assert_eq!(run(&mut host, 99), [(address(1), Some(false))]);
    assert_eq!(run(&mut host, 100), [(address(1), Some(true))]);
    host.on_advertisement(&prefixes(&[(1, 9000, 100)]), ROUTER, secs(200));
    assert_eq!(run(&mut host, 299), [(address(1), Some(false))]);
    // A router that renumbers its network deprecates at once.
    host.on_advertisement(&prefixes(&[(1, 9000, 0)]), ROUTER, secs(299));
    assert_eq!(run(&mut host, 299), [(address(1), Some(true))]);
    host.on_advertisement(&prefixes(&[(1, 9000, 0)]), ROUTER, secs(300));
    assert_eq!(run(&mut host, 9299), []);
    assert_eq!(run(&mut host, 9300), [(address(1), None)]);
}

#[test]
fn each_address_has_its_own_life_and_routers_are_asked_again_after_the_last_one() {
    let mut host = Autoconf::new(MAC);
    host.on_advertisement(&prefixes(&[(1, 100, 50), (2, 200, 50)]), ROUTER, secs(0));
    run(&mut host, 60);
    assert_eq!(run(&mut host, 150), [(address(1), None)]);
    assert_eq!(host.deadline(), secs(200));
    assert_eq!(host.poll(secs(200)), None);
    assert_eq!(host.take_change(), Some(Change::Expired(address(2))));
    assert_eq!(host.poll(secs(200)), Some(Output::Solicitation));
}

#[test]
fn a_flood_of_prefixes_gives_a_few_addresses() {
    let mut host = Autoconf::new(MAC);
    for number in 0..1000 {
        host.on_advertisement(&prefixes(&[(number, 9000, 900)]), ROUTER, secs(0));
    }
    assert_eq!(run(&mut host, 10).len(), MAX_ADDRESSES);
    let many = [
        &message(0, 0xc0, 64, 1)[..16],
        &message(0, 0xc0, 64, 1)[16..].repeat(60),
    ]
    .concat();
    assert!(Advertisement::parse(&many).is_some_and(|told| told.prefixes.len() <= 16));
}

#[test]
fn an_address_in_use_is_given_up_at_the_second_conflict_and_another_prefix_stays() {
    let mut host = Autoconf::new(MAC);
    host.on_advertisement(
        &prefixes(&[(1, 9000, 900), (2, 9000, 900)]),
        ROUTER,
        secs(0),
    );
    run(&mut host, 10);
    host.on_address_use(address(1), AddressUse::Probe, secs(10));
    host.on_address_use(address(1), AddressUse::Claim, secs(11));
    assert_eq!(run(&mut host, 11), []);
    host.on_address_use(address(1), AddressUse::Claim, secs(12));
    assert_eq!(run(&mut host, 12), [(address(1), None)]);
    // It is not made again.
    host.on_advertisement(
        &prefixes(&[(1, 9000, 900), (2, 9000, 900)]),
        ROUTER,
        secs(100),
    );
    assert_eq!(run(&mut host, 200), []);
}

#[test]
fn a_malformed_advertisement_is_none() {
    let good = message(1800, 0xc0, 64, 3600);
    for len in (0..16).chain(17..good.len()) {
        let cut = Advertisement::parse(&good[..len]);
        assert!(cut.is_none_or(|cut| cut.prefixes.is_empty()), "{len}");
    }
    let mut endless = good.clone();
    endless[17] = 0;
    assert_eq!(Advertisement::parse(&endless), None);
    let many = [&good[..16], &[5, 1, 0, 0, 0, 0, 0, 0].repeat(1000)].concat();
    assert!(Advertisement::parse(&many).is_some());
}
