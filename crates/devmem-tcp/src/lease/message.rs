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
    pub const END: u8 = 255;
}

/// Kind of a message of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum RequestKind {
    Discover = 1,
    Request = 3,
    Decline = 4,
    Release = 7,
}

/// A message of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) kind: RequestKind,
    pub(super) xid: u32,
    pub(super) mac: [u8; 6],
    /// The address in use, while a lease is renewed or released.
    pub(super) current: Option<Ipv4Addr>,
    /// The address that is asked for, or declined.
    pub(super) requested: Option<Ipv4Addr>,
    /// The server that the message is for.
    pub(super) server: Option<Ipv4Addr>,
}

impl Request {
    /// Returns the bytes of the message.
    pub(super) fn emit(&self) -> Vec<u8> {
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
pub(super) enum ReplyKind {
    Offer,
    Ack,
    Nak,
}

/// A message of a server, as it says; nothing is checked but its form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) kind: ReplyKind,
    pub(super) xid: u32,
    pub(super) mac: [u8; 6],
    pub(super) address: Ipv4Addr,
    pub(super) server: Option<Ipv4Addr>,
    pub(super) mask: Option<Ipv4Addr>,
    pub(super) router: Option<Ipv4Addr>,
    /// Times in seconds.
    pub(super) lease: Option<u32>,
    pub(super) t1: Option<u32>,
    pub(super) t2: Option<u32>,
}

impl Reply {
    /// Parses a message; `None` if it is no reply of DHCP, or malformed.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
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
            lease: seconds(option::LEASE_TIME),
            t1: seconds(option::T1),
            t2: seconds(option::T2),
        })
    }
}

fn first_address(bytes: &[u8]) -> Option<Ipv4Addr> {
    bytes.first_chunk::<4>().copied().map(Ipv4Addr::from)
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
}

/// Returns the value of the first option `code`, up to the end of the options or the first that does not fit.
fn find(mut area: &[u8], code: u8) -> Option<&[u8]> {
    loop {
        area = match *area {
            [option::PAD, ref rest @ ..] => rest,
            [option::END, ..] | [] | [_] => return None,
            [found, len, ref rest @ ..] => {
                let (value, rest) = rest.split_at_checked(len.into())?;
                if found == code {
                    return Some(value);
                }
                rest
            }
        };
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Builds a reply with options after the fixed part.
    pub(in super::super) fn reply(
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
