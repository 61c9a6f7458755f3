//! A rule of nftables that hides packets from this kernel's network stack: those that a packet socket receives for a stack in
//! this process.
//!
//! Packet sockets get packets before the ingress hook of netfilter, so a rule there hides them from the kernel alone. The table
//! of the rule belongs to a netlink socket (`NFT_TABLE_F_OWNER`, Linux 5.12): no other program can change it, and the kernel
//! removes it when the socket is closed, also when the process is killed.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use crate::netlink::{Names, NetlinkError, NetlinkSocket, Request};

/// Message types (linux include/uapi/linux/netfilter/nfnetlink.h, nf_tables.h).
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
/// `NFNL_SUBSYS_NFTABLES`.
const SUBSYSTEM: u16 = 10;
const NEW_TABLE: u16 = SUBSYSTEM << 8;
const NEW_CHAIN: u16 = (SUBSYSTEM << 8) | 3;
const NEW_RULE: u16 = (SUBSYSTEM << 8) | 6;
/// `NLM_F_CREATE`, `NLM_F_EXCL`, `NLM_F_APPEND`.
const CREATE: u16 = 0x400;
const EXCLUSIVE: u16 = 0x200;
const APPEND: u16 = 0x800;
/// `NFPROTO_NETDEV`: tables of hooks of interfaces.
const FAMILY_NETDEV: u8 = 5;

const TABLE_NAME: u16 = 1;
const TABLE_FLAGS: u16 = 2;
const TABLE_F_OWNER: u32 = 2;
const CHAIN_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_POLICY: u16 = 5;
const CHAIN_TYPE: u16 = 7;
const HOOK_NUMBER: u16 = 1;
const HOOK_PRIORITY: u16 = 2;
const HOOK_DEVICE: u16 = 3;
/// `NF_NETDEV_INGRESS`, `NF_ACCEPT`, `NF_DROP`.
const INGRESS: u32 = 0;
const ACCEPT: u32 = 1;
const DROP: u32 = 0;
const RULE_TABLE: u16 = 1;
const RULE_CHAIN: u16 = 2;
const RULE_EXPRESSIONS: u16 = 4;
/// `NFTA_LIST_ELEM`, `NFTA_EXPR_NAME`, `NFTA_EXPR_DATA`.
const LIST_ELEMENT: u16 = 1;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
/// `NFT_REG_1` and `NFT_REG_VERDICT`.
const REGISTER: u32 = 1;
const VERDICT: u32 = 0;

/// Attribute names, for errors.
const NAMES: Names = Names(&[(1, "table", Names::NONE), (4, "hook", Names::NONE)]);

/// The chain in the table.
const CHAIN: &str = "ingress";

/// TCP segments from one interface to some ports, hidden from the kernel as long as this value exists.
#[derive(Debug)]
pub struct HiddenPorts {
    /// The owner of the table.
    _netlink: NetlinkSocket,
}

impl HiddenPorts {
    /// Hides TCP segments that arrive on `interface` for a port of `ports` at one of `addresses`. `table` is the name of the
    /// table, which must be new.
    ///
    /// # Errors
    ///
    /// `EPERM` without CAP_NET_ADMIN, `EEXIST` for a name in use, `EOPNOTSUPP` if the kernel has no nftables or is older than
    /// Linux 5.12.
    pub fn new(
        table: &str,
        interface: &str,
        addresses: &[IpAddr],
        ports: &RangeInclusive<u16>,
    ) -> Result<Self, NetlinkError> {
        let mut netlink = NetlinkSocket::netfilter()?;
        let mut requests = vec![new_table(table), new_chain(table, interface)];
        requests.extend(
            addresses
                .iter()
                .map(|address| new_rule(table, *address, ports)),
        );
        let what = format!("hide ports of {interface} from the kernel");
        let (first, last) = (edge(BATCH_BEGIN), edge(BATCH_END));
        netlink.batch(&what, first, requests, last)?;
        Ok(Self { _netlink: netlink })
    }
}

/// `struct nfgenmsg`: family, version, and a number in network byte order.
fn request(kind: u16, flags: u16, family: u8, number: u16) -> Request {
    let [high, low] = number.to_be_bytes();
    Request::new(kind, flags, &[family, 0, high, low]).named(NAMES)
}

/// Returns the first or the last message of a batch for nftables.
fn edge(kind: u16) -> Request {
    request(kind, 0, 0, SUBSYSTEM)
}

fn new_table(table: &str) -> Request {
    request(NEW_TABLE, CREATE | EXCLUSIVE, FAMILY_NETDEV, 0)
        .text(TABLE_NAME, table)
        .be32(TABLE_FLAGS, TABLE_F_OWNER)
}

fn new_chain(table: &str, interface: &str) -> Request {
    request(NEW_CHAIN, CREATE | EXCLUSIVE, FAMILY_NETDEV, 0)
        .text(CHAIN_TABLE, table)
        .text(CHAIN_NAME, CHAIN)
        .nested(CHAIN_HOOK, |hook| {
            hook.be32(HOOK_NUMBER, INGRESS)
                .be32(HOOK_PRIORITY, 0)
                .text(HOOK_DEVICE, interface)
        })
        .be32(CHAIN_POLICY, ACCEPT)
        .text(CHAIN_TYPE, "filter")
}

fn new_rule(table: &str, address: IpAddr, ports: &RangeInclusive<u16>) -> Request {
    /// `NFT_META_PROTOCOL` and `NFT_META_L4PROTO`.
    const ETHERTYPE: u32 = 1;
    const TRANSPORT: u32 = 16;
    /// `NFT_PAYLOAD_NETWORK_HEADER` and `NFT_PAYLOAD_TRANSPORT_HEADER`.
    const IN_NETWORK_HEADER: u32 = 1;
    const IN_TRANSPORT_HEADER: u32 = 2;
    const TCP: u8 = 6;
    // Offsets of the destination: RFC 791 3.1, RFC 8200 3, RFC 9293 3.1.
    let (ethertype, at, destination) = match address {
        IpAddr::V4(address) => (0x0800_u16, 16, address.octets().to_vec()),
        IpAddr::V6(address) => (0x86dd, 24, address.octets().to_vec()),
    };
    let len = destination.len() as u32;
    request(NEW_RULE, CREATE | APPEND, FAMILY_NETDEV, 0)
        .text(RULE_TABLE, table)
        .text(RULE_CHAIN, CHAIN)
        .nested(RULE_EXPRESSIONS, |list| {
            let list = compare(
                meta(list, ETHERTYPE),
                Comparison::Equal,
                &ethertype.to_be_bytes(),
            );
            let list = compare(meta(list, TRANSPORT), Comparison::Equal, &[TCP]);
            let list = payload(list, IN_NETWORK_HEADER, at, len);
            let list = compare(list, Comparison::Equal, &destination);
            let list = payload(list, IN_TRANSPORT_HEADER, 2, 2);
            let list = compare(list, Comparison::AtLeast, &ports.start().to_be_bytes());
            let list = compare(list, Comparison::AtMost, &ports.end().to_be_bytes());
            drop_packet(list)
        })
}

/// Appends an expression.
fn expression(list: Request, name: &str, data: impl FnOnce(Request) -> Request) -> Request {
    list.nested(LIST_ELEMENT, |element| {
        element
            .text(EXPRESSION_NAME, name)
            .nested(EXPRESSION_DATA, data)
    })
}

/// Appends: load a fact about the packet.
fn meta(list: Request, key: u32) -> Request {
    expression(list, "meta", |data| data.be32(1, REGISTER).be32(2, key))
}

/// Appends: load `len` bytes at `offset` of a header.
fn payload(list: Request, header: u32, offset: u32, len: u32) -> Request {
    expression(list, "payload", |data| {
        data.be32(1, REGISTER)
            .be32(2, header)
            .be32(3, offset)
            .be32(4, len)
    })
}

/// `NFT_CMP_EQ`, `NFT_CMP_GTE`, `NFT_CMP_LTE`.
#[derive(Clone, Copy)]
#[repr(u32)]
enum Comparison {
    Equal = 0,
    AtMost = 3,
    AtLeast = 5,
}

/// Appends: go on only if what was loaded compares to `value` as bytes.
fn compare(list: Request, comparison: Comparison, value: &[u8]) -> Request {
    /// `NFTA_DATA_VALUE`.
    const VALUE: u16 = 1;
    expression(list, "cmp", |data| {
        data.be32(1, REGISTER)
            .be32(2, comparison as u32)
            .nested(3, |data| data.attribute(VALUE, value))
    })
}

/// Appends: drop the packet.
fn drop_packet(list: Request) -> Request {
    /// `NFTA_DATA_VERDICT` and `NFTA_VERDICT_CODE`.
    const DATA_VERDICT: u16 = 2;
    const CODE: u16 = 1;
    expression(list, "immediate", |data| {
        data.be32(1, VERDICT)
            .nested(2, |data| data.nested(DATA_VERDICT, |v| v.be32(CODE, DROP)))
    })
}
