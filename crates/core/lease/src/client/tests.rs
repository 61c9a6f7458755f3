use super::*;
use crate::message::tests::reply;

const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const SERVER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const OURS: [u8; 4] = [10, 0, 0, 7];
const SERVER: [u8; 4] = [10, 0, 0, 1];
/// An address of this machine.
const OWN: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 66));
const OTHER_SERVER: [u8; 4] = [10, 0, 0, 2];

fn default_route(router: [u8; 4]) -> NetworkRoute {
    NetworkRoute::default_through(Ipv4Addr::from(router).into())
}

type Options<'a> = Vec<(u8, &'a [u8])>;

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// A client with a clock, and what it said.
struct Bench {
    client: Client,
    now: Duration,
}

impl Bench {
    fn new() -> Self {
        Self {
            client: Client::new(MAC, 7),
            now: Duration::ZERO,
        }
    }

    /// Runs until the client sends something, and returns that.
    fn next(&mut self) -> Output {
        for _ in 0..10 {
            self.now = self.now.max(self.client.deadline());
            if let Some(output) = self.client.poll(self.now) {
                return output;
            }
        }
        panic!("nothing is sent: {:?}", self.client);
    }

    /// As [`next`](Self::next), for a message of that kind to all stations.
    fn broadcast(&mut self, kind: RequestKind) -> Request {
        match self.next() {
            Output::Broadcast(request) if request.kind == kind => request,
            other => panic!("{other:?}"),
        }
    }

    fn reply(&mut self, kind: u8, change: impl FnOnce(&mut Options<'_>)) {
        let kind = [kind];
        let mut options: Options<'_> = vec![
            (53, &kind),
            (54, &SERVER),
            (1, &[255, 255, 255, 0]),
            (3, &SERVER),
            (51, &[0, 0, 14, 16]),
        ];
        change(&mut options);
        let bytes = reply(self.client.xid, MAC, OURS, &options);
        self.reply_with(&bytes);
    }

    fn reply_with(&mut self, bytes: &[u8]) {
        let reply = Reply::parse(bytes).expect("well formed");
        self.client.on_reply(&reply, SERVER_MAC, &[OWN], self.now);
    }

    fn offer(&mut self) {
        self.reply(2, |_| {});
    }

    fn ack(&mut self) {
        self.reply(5, |_| {});
    }

    fn nak(&mut self) {
        self.reply(6, |_| {});
    }

    /// Gets an address for an hour.
    fn bind(&mut self) -> Lease {
        self.broadcast(RequestKind::Discover);
        self.offer();
        self.broadcast(RequestKind::Request);
        self.ack();
        for _ in 0..PROBES {
            assert_eq!(self.next(), Output::Probe(OURS.into()));
        }
        self.now = self.client.deadline();
        assert_eq!(self.client.poll(self.now), None);
        match self.client.take_change() {
            Some(Change::Bound(lease)) => lease,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn an_address_is_discovered_requested_and_probed() {
    let mut bench = Bench::new();
    let first = bench.broadcast(RequestKind::Discover);
    assert_eq!((first.requested, first.server), (None, None));
    bench.offer();
    let request = bench.broadcast(RequestKind::Request);
    assert_eq!(request.xid, first.xid);
    assert_eq!(request.requested, Some(OURS.into()));
    assert_eq!(request.server, Some(SERVER.into()));
    bench.ack();
    assert_eq!(bench.client.take_change(), None, "not before the probes");
    let mut bench = Bench::new();
    let lease = bench.bind();
    assert_eq!((lease.address, lease.prefix), (OURS.into(), 24));
    assert_eq!(lease.routes, [default_route(SERVER)]);
    assert_eq!(lease.server(), (SERVER.into(), SERVER_MAC));
}

#[test]
fn without_an_answer_the_client_asks_less_and_less_often_and_never_ends() {
    let mut bench = Bench::new();
    let mut last = Duration::ZERO;
    for wait in [0, 4, 8, 16, 32, 64, 64, 64] {
        bench.broadcast(RequestKind::Discover);
        let waited = bench.now - last;
        let least = secs(wait).saturating_sub(secs(1));
        assert!((least..=secs(wait + 1)).contains(&waited), "{waited:?}");
        last = bench.now;
    }
}

#[test]
fn an_offer_that_is_not_acknowledged_is_given_up() {
    let mut bench = Bench::new();
    let xid = bench.broadcast(RequestKind::Discover).xid;
    bench.offer();
    for _ in 0..REQUESTS {
        bench.broadcast(RequestKind::Request);
    }
    assert_ne!(bench.broadcast(RequestKind::Discover).xid, xid);
}

#[test]
fn a_lease_is_renewed_by_its_server_before_all_servers_are_asked_and_ends_without_an_answer() {
    let mut bench = Bench::new();
    let lease = bench.bind();
    let begin = bench.client.asked_at;
    let Output::ToServer(renewal, _) = bench.next() else {
        panic!("to the server");
    };
    assert_eq!(bench.now, begin + secs(1800));
    assert_eq!(
        (renewal.current, renewal.requested),
        (Some(OURS.into()), None)
    );
    bench.ack();
    assert!(matches!(bench.client.take_change(), Some(Change::Bound(_))));
    let begin = bench.now;
    assert!(matches!(bench.next(), Output::ToServer(..)));
    assert_eq!(bench.now, begin + secs(1800));
    // Nobody answers.
    let mut sent = Vec::new();
    while bench.client.take_change().is_none() {
        bench.now = bench.client.deadline();
        if let Some(output) = bench.client.poll(bench.now) {
            sent.push((bench.now - begin, output));
        }
    }
    assert_eq!(bench.now, begin + secs(3600));
    let (renewals, rebinds) = sent.split_at(sent.partition_point(|(at, _)| *at < secs(3150)));
    assert!(
        renewals
            .iter()
            .all(|(_, output)| matches!(output, Output::ToServer(..)))
    );
    assert!(
        rebinds
            .iter()
            .all(|(_, output)| matches!(output, Output::Broadcast(_)))
    );
    assert!(renewals.len() > 1 && rebinds.len() > 1, "{sent:?}");
    for kind in [renewals, rebinds] {
        let gaps = kind.windows(2).map(|pair| pair[1].0 - pair[0].0);
        assert!(gaps.into_iter().all(|gap| gap >= RENEWAL_WAIT), "{sent:?}");
    }
    assert_eq!(lease.address, Ipv4Addr::from(OURS));
    bench.broadcast(RequestKind::Discover);
}

#[test]
fn another_server_may_renew_a_lease_only_while_all_are_asked() {
    let mut bench = Bench::new();
    let lease = bench.bind();
    assert!(matches!(bench.next(), Output::ToServer(..)));
    bench.reply(5, |options| options[1].1 = &OTHER_SERVER);
    assert_eq!(bench.client.take_change(), None);
    bench.now = lease.rebind_at;
    bench.broadcast(RequestKind::Request);
    bench.reply(5, |options| options[1].1 = &OTHER_SERVER);
    let Some(Change::Bound(renewed)) = bench.client.take_change() else {
        panic!("it is renewed");
    };
    assert_eq!(renewed.server().0, Ipv4Addr::from(OTHER_SERVER));
}

#[test]
fn a_refusal_ends_a_lease_at_once_and_repeated_refusals_are_met_by_longer_waits() {
    let mut bench = Bench::new();
    bench.bind();
    assert!(matches!(bench.next(), Output::ToServer(..)));
    bench.nak();
    assert_eq!(bench.client.take_change(), Some(Change::Lost(OURS.into())));
    let mut waits = Vec::new();
    for _ in 0..9 {
        let begin = bench.now;
        bench.broadcast(RequestKind::Discover);
        waits.push((bench.now - begin).as_secs());
        bench.offer();
        bench.broadcast(RequestKind::Request);
        bench.nak();
    }
    assert_eq!(waits, [0, 1, 2, 4, 8, 16, 32, 64, 64]);
}

#[test]
fn an_address_of_another_station_is_declined() {
    let mut bench = Bench::new();
    bench.broadcast(RequestKind::Discover);
    bench.offer();
    bench.broadcast(RequestKind::Request);
    bench.ack();
    assert_eq!(bench.next(), Output::Probe(OURS.into()));
    let other = Ipv4Addr::new(10, 0, 0, 8);
    let claim = AddressUse::Claim;
    assert_eq!(bench.client.on_address_use(other, claim, bench.now), None);
    let said = bench.client.on_address_use(OURS.into(), claim, bench.now);
    let Some(Output::Broadcast(declined)) = said else {
        panic!("{said:?}");
    };
    assert_eq!(declined.kind, RequestKind::Decline);
    assert_eq!(declined.requested, Some(OURS.into()));
    let begin = bench.now;
    bench.broadcast(RequestKind::Discover);
    assert_eq!(bench.now, begin + DECLINED_WAIT);
    assert_eq!(bench.client.take_change(), None);
}

#[test]
fn an_address_is_returned_once() {
    let mut bench = Bench::new();
    assert_eq!(Bench::new().client.release(), None);
    let lease = bench.bind();
    let Some(Output::ToServer(release, to)) = bench.client.release() else {
        panic!("a message");
    };
    assert_eq!(release.kind, RequestKind::Release);
    assert_eq!((release.current, to), (Some(OURS.into()), lease));
    assert_eq!(bench.client.release(), None);
    assert!(!bench.client.is_due(Duration::MAX));
    assert_eq!(bench.client.poll(Duration::MAX), None);
}

/// Addresses that an offer cannot have, and what is said of them.
const BAD_ADDRESSES: [([u8; 4], &str); 8] = [
    (
        [0, 0, 0, 0],
        "10.0.0.1 offered 0.0.0.0: 0.0.0.0 is the unspecified address",
    ),
    ([127, 0, 0, 1], "is a loopback address"),
    ([224, 0, 0, 1], "is a multicast address"),
    ([255, 255, 255, 255], "is the broadcast address"),
    ([10, 0, 0, 0], "10.0.0.0 is the address of the network"),
    ([10, 0, 0, 255], "10.0.0.255 is the broadcast address"),
    (
        [10, 0, 0, 66],
        "offered 10.0.0.66, which this machine has itself",
    ),
    (SERVER, "offered 10.0.0.1, its own address"),
];

/// Options of an offer, by their index, that it cannot have.
const BAD_OPTIONS: [(usize, &[u8], &str); 9] = [
    (
        1,
        &[0, 0, 0, 0],
        "as 0.0.0.0, which no host can have (option 54)",
    ),
    (
        1,
        &[224, 0, 0, 1],
        "as 224.0.0.1, which no host can have (option 54)",
    ),
    (
        1,
        &[10, 0],
        "offered 10.0.0.7 without its own address (option 54)",
    ),
    (2, &[0, 0, 0, 0], "with the subnet mask 0.0.0.0"),
    (
        2,
        &[255, 0, 255, 0],
        "with the subnet mask 255.0.255.0, which is none (option 1)",
    ),
    (2, &[255], "without a subnet mask (option 1)"),
    (3, &[0, 0, 0, 0], "for 0 s, too short"),
    (
        3,
        &[0, 0, 0, 9],
        "for 9 s, too short to be renewed (option 51)",
    ),
    (3, &[0], "without a time (option 51)"),
];

#[test]
fn replies_to_others_and_offers_that_no_host_can_use_are_ignored() {
    let mut bench = Bench::new();
    bench.broadcast(RequestKind::Discover);
    let xid = bench.client.xid;
    let good: Options<'_> = vec![
        (53, &[2]),
        (54, &SERVER),
        (1, &[255, 255, 255, 0]),
        (51, &[0, 0, 14, 16]),
    ];
    let others = [0, 0, 0, 0, 0, 5];
    bench.reply_with(&reply(xid ^ 1, MAC, OURS, &good));
    bench.reply_with(&reply(xid, others, OURS, &good));
    assert_eq!(bench.client.unusable(), None, "not for this client");
    let why = |bench: &Bench| {
        bench
            .client
            .unusable()
            .map(ToString::to_string)
            .unwrap_or_default()
    };
    for (address, text) in BAD_ADDRESSES {
        bench.reply_with(&reply(xid, MAC, address, &good));
        assert!(why(&bench).contains(text), "{}", why(&bench));
    }
    for (at, bad, text) in BAD_OPTIONS {
        let mut options = good.clone();
        options[at].1 = bad;
        bench.reply_with(&reply(xid, MAC, OURS, &options));
        assert!(why(&bench).contains(text), "{}", why(&bench));
    }
    assert!(matches!(bench.client.state, State::Selecting(1)));
    bench.reply_with(&reply(xid, MAC, OURS, &good));
    assert!(matches!(bench.client.state, State::Requesting(..)));
}

#[test]
fn absurd_times_and_routers_are_replaced_and_a_lease_may_have_no_end() {
    let mut bench = Bench::new();
    bench.broadcast(RequestKind::Discover);
    bench.offer();
    bench.broadcast(RequestKind::Request);
    let reply_of = |options: &[(u8, &[u8])]| {
        let bytes = reply(0, MAC, OURS, options);
        Reply::parse(&bytes).expect("well formed")
    };
    let base: Options<'_> = vec![(53, &[5]), (54, &SERVER), (1, &[255, 255, 255, 0])];
    let with = |more: &Options<'_>| {
        let options = [&base[..], more].concat();
        bench
            .client
            .lease(&reply_of(&options), SERVER_MAC)
            .expect("usable")
    };
    let hour = (51, &[0, 0, 14, 16][..]);
    // The time of renewal is after that of rebinding, and the router is elsewhere.
    let odd = with(&vec![
        hour,
        (58, &[0, 0, 13, 0]),
        (59, &[0, 0, 12, 0]),
        (3, &[192, 0, 2, 1]),
    ]);
    assert_eq!(odd.renew_at - bench.client.asked_at, secs(1800));
    assert_eq!(odd.rebind_at - bench.client.asked_at, secs(3150));
    assert_eq!(odd.routes, []);
    let own = with(&vec![
        hour,
        (58, &[0, 0, 0, 9]),
        (59, &[0, 0, 0, 19]),
        (3, &OURS),
    ]);
    assert_eq!(own.renew_at - bench.client.asked_at, secs(9));
    assert_eq!(own.routes, []);
    let endless = with(&vec![(51, &[255; 4])]);
    assert_eq!(
        (endless.renew_at, endless.ends_at),
        (Duration::MAX, Duration::MAX)
    );
}

#[test]
fn an_address_of_this_machine_is_not_taken_from_a_server_that_offered_another() {
    let mut bench = Bench::new();
    bench.broadcast(RequestKind::Discover);
    bench.offer();
    bench.broadcast(RequestKind::Request);
    let xid = bench.client.xid;
    let ack: Options<'_> = vec![
        (53, &[5]),
        (54, &SERVER),
        (1, &[255, 255, 255, 0]),
        (51, &[0, 0, 14, 16]),
    ];
    for address in [[10, 0, 0, 66], [10, 0, 0, 8]] {
        bench.reply_with(&reply(xid, MAC, address, &ack));
        assert!(matches!(bench.client.state, State::Requesting(..)));
    }
    bench.ack();
    assert!(matches!(bench.client.state, State::Probing(..)));
}

#[test]
fn an_address_in_use_is_declined_at_the_second_conflict_within_ten_seconds() {
    let mut bench = Bench::new();
    bench.bind();
    let ours = Ipv4Addr::from(OURS);
    let (now, claim) = (bench.now, AddressUse::Claim);
    // The stack answers questions, and defends the address at the first claim.
    for (at, what) in [
        (0, AddressUse::Probe),
        (1, AddressUse::Probe),
        (2, claim),
        (20, claim),
    ] {
        assert_eq!(
            bench.client.on_address_use(ours, what, now + secs(at)),
            None
        );
    }
    let said = bench.client.on_address_use(ours, claim, now + secs(25));
    let Some(Output::Broadcast(declined)) = said else {
        panic!("{said:?}");
    };
    assert_eq!(declined.kind, RequestKind::Decline);
    assert_eq!(bench.client.take_change(), Some(Change::Lost(ours)));
    assert_eq!(bench.client.deadline(), now + secs(25) + DECLINED_WAIT);
    bench.broadcast(RequestKind::Discover);
}

#[test]
fn option_121_replaces_option_3_and_a_router_may_be_outside_of_the_network() {
    let client = Client::new(MAC, 7);
    let routes = |mask: [u8; 4], more: &[(u8, &[u8])]| {
        let base: [(u8, &[u8]); 4] = [(53, &[5]), (54, &SERVER), (1, &mask), (51, &[0, 0, 14, 16])];
        let bytes = reply(0, MAC, OURS, &[&base[..], more].concat());
        let reply = Reply::parse(&bytes).expect("well formed");
        client.lease(&reply, SERVER_MAC).expect("usable").routes
    };
    let route = |network: [u8; 4], prefix_len, router: Option<[u8; 4]>| NetworkRoute {
        network: Ipv4Addr::from(network).into(),
        prefix_len,
        router: router.map(|router| Ipv4Addr::from(router).into()),
    };
    let (net, alone) = ([255, 255, 255, 0], [255; 4]);
    let far = [10, 156, 0, 1];
    assert_eq!(routes(net, &[(3, &SERVER)]), [default_route(SERVER)]);
    // Only the routes of option 121 count, also where they lead nowhere else.
    let default_by_121 = [&[0][..], &OTHER_SERVER].concat();
    assert_eq!(
        routes(net, &[(3, &SERVER), (121, &default_by_121)]),
        [default_route(OTHER_SERVER)]
    );
    let other_net = [&[24, 192, 0, 2][..], &OTHER_SERVER].concat();
    assert_eq!(
        routes(net, &[(3, &SERVER), (121, &other_net)]),
        [route([192, 0, 2, 0], 24, Some(OTHER_SERVER))]
    );
    // As clouds lend them: no network, and the router beside it.
    assert_eq!(routes(alone, &[(3, &far)]), [default_route(far)]);
    let on_link = [&[32][..], &far, &[0; 4], &[0], &far].concat();
    let expected = [route(far, 32, None), default_route(far)];
    assert_eq!(routes(alone, &[(121, &on_link)]), expected);
    assert_eq!(routes(net, &[(121, &on_link)]), expected);
    // Elsewhere a router outside of the network cannot be one, nor can this host, nor no host.
    for router in [far, OURS, [224, 0, 0, 1], [127, 0, 0, 1]] {
        let value = [&[0][..], &router].concat();
        assert_eq!(routes(net, &[(121, &value), (3, &SERVER)]), []);
        assert_eq!(routes(net, &[(3, &router)]), []);
    }
}
