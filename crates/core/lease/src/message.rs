//! DHCP messages (RFC 2131 2, RFC 2132).

use std::net::Ipv4Addr;

/// `op` of a request and of a reply.
const BOOTREQUEST: u8 = 1;
const BOOTREPLY: u8 = 2;
/// Hardware type and address length of Ethernet.
const ETHERNET: [u8; 2] = [1, 6];
/// Flag: the server must broadcast its replies, because this host has no address yet.
const BROADCAST: u16 = 0x8000;
/// Offsets in a message.
const XID: usize = 4;
const FLAGS: usize = 10;
const CIADDR: usize = 12;
const YIADDR: usize = 16;
const CHADDR: usize = 28;
const SNAME: usize = 44;
const FILE: usize = 108;
const COOKIE: usize = 236;
const OPTIONS: usize = 240;
const MAGIC: [u8; 4] = [99, 130, 83, 99];
/// Shortest message: some servers and relays drop shorter ones (RFC 1542 2.1).
const MIN_LEN: usize = 300;

/// Options (RFC 2132).
mod option {
    pub const PAD: u8 = 0;
    pub const SUBNET_MASK: u8 = 1;
    pub const ROUTER: u8 = 3;
    pub const REQUESTED_ADDRESS: u8 = 50;
    pub const LEASE_TIME: u8 = 51;
    pub const OVERLOAD: u8 = 52;
    pub const KIND: u8 = 53;
    pub const SERVER: u8 = 54;
    pub const PARAMETERS: u8 = 55;
    pub const MAX_LEN: u8 = 57;
    pub const T1: u8 = 58;
    pub const T2: u8 = 59;
    /// RFC 3442.
    pub const CLASSLESS_ROUTES: u8 = 121;
    pub const END: u8 = 255;
}

/// Kind of a message of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RequestKind {
    Discover = 1,
    Request = 3,
    Decline = 4,
    Release = 7,
}

/// A message of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) kind: RequestKind,
    pub(crate) xid: u32,
    pub(crate) mac: [u8; 6],
    /// The address in use, while a lease is renewed or released.
    pub(crate) current: Option<Ipv4Addr>,
    /// The address that is asked for, or declined.
    pub(crate) requested: Option<Ipv4Addr>,
    /// The server that the message is for.
    pub(crate) server: Option<Ipv4Addr>,
}

impl Request {
    /// Returns the bytes of the message.
    pub(crate) fn emit(&self) -> Vec<u8> {
        let Self {
            kind,
            xid,
            mac,
            current,
            requested,
            server,
        } = *self;
        let mut out = vec![0; OPTIONS];
        out[0] = BOOTREQUEST;
        out[1..3].copy_from_slice(&ETHERNET);
        out[XID..XID + 4].copy_from_slice(&xid.to_be_bytes());
        match current {
            Some(address) => out[CIADDR..CIADDR + 4].copy_from_slice(&address.octets()),
            None => out[FLAGS..FLAGS + 2].copy_from_slice(&BROADCAST.to_be_bytes()),
        }
        out[CHADDR..CHADDR + 6].copy_from_slice(&mac);
        out[COOKIE..OPTIONS].copy_from_slice(&MAGIC);
        let mut add = |code: u8, value: &[u8]| {
            out.extend_from_slice(&[code, value.len() as u8]);
            out.extend_from_slice(value);
        };
        add(option::KIND, &[kind as u8]);
        if let Some(address) = requested {
            add(option::REQUESTED_ADDRESS, &address.octets());
        }
        if let Some(server) = server {
            add(option::SERVER, &server.octets());
        }
        if matches!(kind, RequestKind::Discover | RequestKind::Request) {
            let wanted = [
                option::SUBNET_MASK,
                // Before the option that it replaces (RFC 3442).
                option::CLASSLESS_ROUTES,
                option::ROUTER,
                option::LEASE_TIME,
                option::T1,
                option::T2,
            ];
            add(option::PARAMETERS, &wanted);
            add(option::MAX_LEN, &MAX_REPLY.to_be_bytes());
        }
        out.push(option::END);
        out.resize(out.len().max(MIN_LEN), option::PAD);
        out
    }
}

/// Bytes of the longest reply: what fits a packet of 1,500 bytes.
const MAX_REPLY: u16 = 1472;

/// Kind of a message of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyKind {
    Offer,
    Ack,
    Nak,
}

/// A route of a message: packets to the network are for the router, or if that is 0.0.0.0, for hosts on the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClasslessRoute {
    pub(crate) network: Ipv4Addr,
    pub(crate) prefix: u8,
    pub(crate) router: Ipv4Addr,
}

/// A message of a server, as it says; nothing is checked but its form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) kind: ReplyKind,
    pub(crate) xid: u32,
    pub(crate) mac: [u8; 6],
    pub(crate) address: Ipv4Addr,
    pub(crate) server: Option<Ipv4Addr>,
    pub(crate) mask: Option<Ipv4Addr>,
    pub(crate) router: Option<Ipv4Addr>,
    /// They replace `router`, also if there are none among them for all networks (RFC 3442). As many as a message has room for.
    pub(crate) routes: Option<Vec<ClasslessRoute>>,
    /// Times in seconds.
    pub(crate) lease: Option<u32>,
    pub(crate) t1: Option<u32>,
    pub(crate) t2: Option<u32>,
}

impl Reply {
    /// Parses a message; `None` if it is no reply of DHCP, or malformed.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let is_reply = *bytes.first()? == BOOTREPLY && bytes.get(1..3)? == ETHERNET;
        if !is_reply || bytes.get(COOKIE..OPTIONS)? != MAGIC {
            return None;
        }
        let options = Options::of(bytes)?;
        let kind = match options.find(option::KIND)? {
            [2] => ReplyKind::Offer,
            [5] => ReplyKind::Ack,
            [6] => ReplyKind::Nak,
            _ => return None,
        };
        let address = |code| options.find(code).and_then(first_address);
        let seconds = |code| {
            let value = options.find(code)?.try_into().ok()?;
            Some(u32::from_be_bytes(value))
        };
        Some(Self {
            kind,
            xid: u32::from_be_bytes(*bytes.get(XID..)?.first_chunk()?),
            mac: *bytes.get(CHADDR..)?.first_chunk()?,
            address: first_address(bytes.get(YIADDR..)?)?,
            server: address(option::SERVER),
            mask: address(option::SUBNET_MASK),
            router: address(option::ROUTER),
            routes: classless_routes(&options.all(option::CLASSLESS_ROUTES)),
            lease: seconds(option::LEASE_TIME),
            t1: seconds(option::T1),
            t2: seconds(option::T2),
        })
    }
}

fn first_address(bytes: &[u8]) -> Option<Ipv4Addr> {
    bytes.first_chunk::<4>().copied().map(Ipv4Addr::from)
}

/// Parses the value of option 121 (RFC 3442): for each route the length of its prefix, the bytes of the network that are not
/// zero by that, and the router. `None` for an empty or malformed one.
fn classless_routes(mut value: &[u8]) -> Option<Vec<ClasslessRoute>> {
    let mut routes = Vec::new();
    while let [prefix, rest @ ..] = value {
        if *prefix > 32 {
            return None;
        }
        let (significant, rest) = rest.split_at_checked(usize::from(prefix.div_ceil(8)))?;
        let mut network = [0; 4];
        network[..significant.len()].copy_from_slice(significant);
        let (router, rest) = rest.split_first_chunk::<4>()?;
        routes.push(ClasslessRoute {
            network: network.into(),
            prefix: *prefix,
            router: (*router).into(),
        });
        value = rest;
    }
    (!routes.is_empty()).then_some(routes)
}

/// The options of a message: behind the cookie, and in the fields for names if the message says so.
struct Options<'a> {
    areas: [&'a [u8]; 3],
}

impl<'a> Options<'a> {
    fn of(message: &'a [u8]) -> Option<Self> {
        let main = message.get(OPTIONS..)?;
        let overload = match find(main, option::OVERLOAD) {
            Some(&[bits]) => bits,
            _ => 0,
        };
        let area = |bit: u8, range| match overload & bit != 0 {
            true => message.get(range),
            false => Some(&[][..]),
        };
        let areas = [main, area(1, FILE..COOKIE)?, area(2, SNAME..FILE)?];
        Some(Self { areas })
    }

    fn find(&self, code: u8) -> Option<&'a [u8]> {
        self.areas.iter().find_map(|area| find(area, code))
    }

    /// Returns the values of all options `code`, one behind the other: a value of more than 255 bytes is divided (RFC 3396).
    fn all(&self, code: u8) -> Vec<u8> {
        let values = self.areas.iter().flat_map(|area| options(area));
        let of_code = values.filter(|(found, _)| *found == code);
        of_code
            .flat_map(|(_, value)| value.iter().copied())
            .collect()
    }
}

/// Returns the value of the first option `code`.
fn find(area: &[u8], code: u8) -> Option<&[u8]> {
    options(area)
        .find(|(found, _)| *found == code)
        .map(|(_, value)| value)
}

/// Iterates over options, up to the end of the options or the first that does not fit.
fn options(mut area: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        loop {
            match *area {
                [option::PAD, ref rest @ ..] => area = rest,
                [option::END, ..] | [] | [_] => return None,
                [code, len, ref rest @ ..] => {
                    let (value, rest) = rest.split_at_checked(len.into())?;
                    area = rest;
                    return Some((code, value));
                }
            }
        }
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Builds a reply with options after the fixed part.
    pub(crate) fn reply(
        xid: u32,
        mac: [u8; 6],
        address: [u8; 4],
        options: &[(u8, &[u8])],
    ) -> Vec<u8> {
        let mut out = vec![0; OPTIONS];
        out[0] = BOOTREPLY;
        out[1..3].copy_from_slice(&ETHERNET);
        out[XID..XID + 4].copy_from_slice(&xid.to_be_bytes());
        out[YIADDR..YIADDR + 4].copy_from_slice(&address);
        out[CHADDR..CHADDR + 6].copy_from_slice(&mac);
        out[COOKIE..OPTIONS].copy_from_slice(&MAGIC);
        for (code, value) in options {
            out.extend_from_slice(&[*code, value.len() as u8]);
            out.extend_from_slice(value);
        }
        out.push(option::END);
        out
    }

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

    #[test]
    fn a_request_has_the_fields_of_its_kind() {
        let request = Request {
            kind: RequestKind::Request,
            xid: 0x0102_0304,
            mac: MAC,
            current: None,
            requested: Some([10, 0, 0, 7].into()),
            server: Some([10, 0, 0, 1].into()),
        };
        let bytes = request.emit();
        assert_eq!(bytes.len(), MIN_LEN);
        assert_eq!(bytes[..8], [1, 1, 6, 0, 1, 2, 3, 4]);
        assert_eq!(bytes[FLAGS..FLAGS + 2], [0x80, 0]);
        assert_eq!(bytes[CHADDR..CHADDR + 6], MAC);
        let options = &bytes[OPTIONS..];
        assert_eq!(find(options, option::KIND), Some(&[3][..]));
        assert_eq!(find(options, option::SERVER), Some(&[10, 0, 0, 1][..]));
        let renewal = Request {
            current: request.requested,
            requested: None,
            ..request
        };
        let bytes = renewal.emit();
        assert_eq!(bytes[FLAGS..FLAGS + 6], [0, 0, 10, 0, 0, 7]);
        assert_eq!(find(&bytes[OPTIONS..], option::REQUESTED_ADDRESS), None);
    }

    #[test]
    fn a_reply_is_read_also_from_the_fields_for_names() {
        let mut bytes = reply(9, MAC, [10, 0, 0, 7], &[(53, &[2]), (52, &[3])]);
        bytes[FILE..FILE + 7].copy_from_slice(&[54, 4, 10, 0, 0, 1, 255]);
        bytes[SNAME..SNAME + 7].copy_from_slice(&[51, 4, 0, 0, 1, 0, 255]);
        let read = Reply::parse(&bytes).unwrap();
        assert_eq!((read.kind, read.xid, read.mac), (ReplyKind::Offer, 9, MAC));
        assert_eq!(read.server, Some([10, 0, 0, 1].into()));
        assert_eq!((read.lease, read.mask), (Some(256), None));
    }

    #[test]
    fn option_121_is_requested_before_option_3_and_read_also_in_pieces() {
        let request = Request {
            kind: RequestKind::Discover,
            xid: 1,
            mac: MAC,
            current: None,
            requested: None,
            server: None,
        };
        let bytes = request.emit();
        let wanted = find(&bytes[OPTIONS..], option::PARAMETERS).unwrap();
        let place = |code| wanted.iter().position(|it| *it == code).unwrap();
        assert!(place(121) < place(3), "{wanted:?}");

        let value = [
            &[0, 10, 0, 0, 1][..],
            &[25, 10, 1, 2, 128, 10, 0, 0, 2],
            &[32, 10, 0, 0, 1, 0, 0, 0, 0],
            &[8, 172, 10, 0, 0, 3],
        ]
        .concat();
        let route = |network: [u8; 4], prefix, router: [u8; 4]| ClasslessRoute {
            network: network.into(),
            prefix,
            router: router.into(),
        };
        let expected = vec![
            route([0; 4], 0, [10, 0, 0, 1]),
            route([10, 1, 2, 128], 25, [10, 0, 0, 2]),
            route([10, 0, 0, 1], 32, [0; 4]),
            route([172, 0, 0, 0], 8, [10, 0, 0, 3]),
        ];
        for cut in 0..value.len() {
            let (first, second) = value.split_at(cut);
            let bytes = reply(
                9,
                MAC,
                [10, 0, 0, 7],
                &[(53, &[5]), (121, first), (3, &[9, 9, 9, 9]), (121, second)],
            );
            let read = Reply::parse(&bytes).unwrap();
            assert_eq!(read.routes.as_ref(), Some(&expected), "{cut}");
        }
        // What is cut short, or has an impossible prefix, is not read at all.
        for bad in [
            &[][..],
            &[0],
            &[0, 10, 0, 0],
            &[33, 1, 2, 3, 4, 5, 6, 7, 8, 9],
            &[24, 10, 1],
        ] {
            let bytes = reply(9, MAC, [10, 0, 0, 7], &[(53, &[5]), (121, bad)]);
            assert_eq!(Reply::parse(&bytes).unwrap().routes, None, "{bad:?}");
        }
    }

    #[test]
    fn a_malformed_reply_is_none_and_options_end_where_they_do_not_fit() {
        let good = reply(9, MAC, [10, 0, 0, 7], &[(53, &[5]), (51, &[0, 0, 1])]);
        assert_eq!(Reply::parse(&good).unwrap().lease, None, "three bytes");
        for len in 0..OPTIONS + 2 {
            assert_eq!(Reply::parse(&good[..len]), None);
        }
        for at in [0, 1, 2, COOKIE] {
            let mut bad = good.clone();
            bad[at] ^= 0x40;
            assert_eq!(Reply::parse(&bad), None);
        }
        let cut = reply(9, MAC, [10, 0, 0, 7], &[(53, &[5]), (51, &[0, 0, 1, 0])]);
        let end = cut.len() - 3;
        assert_eq!(Reply::parse(&cut[..end]).unwrap().lease, None);
    }
}
