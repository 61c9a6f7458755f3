//! Options of the levels `SOL_IP` and, on sockets of that family, `SOL_IPV6`.

use devmem_uapi::{Errno, sockopt};
use stack::SocketOption;

use crate::abi::{
    IP_BIND_ADDRESS_NO_PORT, IP_FREEBIND, IP_MTU_DISCOVER, IP_TOS, IP_TTL, IPV6_MTU_DISCOVER,
    IPV6_TCLASS, IPV6_UNICAST_HOPS, IPV6_V6ONLY, PMTUDISC, PMTUDISC_DONT,
};
use crate::options::row::{Check, Row, View};
use crate::options::{Effect, Options};

/// Default time to live (linux `IPDEFTTL`).
const HOPS_DEFAULT: u8 = 64;

const fn v4(name: i32) -> Row {
    Row::new(sockopt::SOL_IP, name)
}

const fn v6(name: i32) -> Row {
    Row::new(sockopt::SOL_IPV6, name)
}

/// Packets always fit the path MTU of IPv6: values that allow fragmentation are refused.
const MTU_DISCOVER: Check = Check::In(PMTUDISC);

/// With 0 (`IP_PMTUDISC_DONT`), routers may fragment packets of IPv4.
const MTU_DISCOVER_V4: Check = Check::In(PMTUDISC_DONT..=*PMTUDISC.end());

pub(super) static ROWS: &[Row] = &[
    v4(IP_TOS)
        .byte_or_int(Check::Any, set_tos)
        .apply(tos_option)
        .get_int(|v| v.options.tos.into()),
    v4(IP_TTL)
        .byte_or_int(Check::By(|hops| is_hop_limit(hops, 1)), set_hop_limit)
        .apply(hop_limit_option)
        .get_int(hop_limit),
    v4(IP_BIND_ADDRESS_NO_PORT)
        .byte_or_int(Check::SWITCH, |o, n| o.bind_without_port = n == 1)
        .get_int(|v| v.options.bind_without_port.into()),
    // The table takes it only of a stack for which every address is local.
    v4(IP_FREEBIND)
        .byte_or_int(Check::SWITCH, |o, n| o.free_bind = n == 1)
        .get_int(|v| v.options.free_bind.into()),
    v4(IP_MTU_DISCOVER)
        .byte_or_int(MTU_DISCOVER_V4, |o, n| o.mtu_discover = n)
        .apply(|o| Effect::Apply(o.fragment_option()))
        .get_int(|v| v.options.mtu_discover),
    v6(IPV6_TCLASS)
        .int(Check::Any, |o, n| set_tos(o, n.max(0)))
        .apply(tos_option)
        .get_int(|v| v.options.tos.into()),
    v6(IPV6_UNICAST_HOPS)
        .int(Check::By(|hops| is_hop_limit(hops, 0)), set_hop_limit)
        .apply(hop_limit_option)
        .get_int(hop_limit),
    v6(IPV6_V6ONLY)
        .int(Check::Any, |o, n| o.v6_only = n != 0)
        .get_int(|v| v.options.v6_only.into()),
    v6(IPV6_MTU_DISCOVER)
        .int(MTU_DISCOVER, |o, n| o.mtu_discover = n)
        .get_int(|v| v.options.mtu_discover),
];

fn set_tos(options: &mut Options, tos: i32) {
    // TCP sets the two bits of the ECN field (linux `__ip_sock_set_tos`).
    options.tos = u8::try_from(tos & 0xff).unwrap_or(0) & !wire::Ecn::MASK;
}

fn tos_option(options: &Options) -> Effect {
    Effect::Apply(SocketOption::Tos(options.tos))
}

/// -1 is the default.
fn is_hop_limit(hops: i32, least: u8) -> Result<(), Errno> {
    match hops == -1 || (i32::from(least)..=u8::MAX.into()).contains(&hops) {
        true => Ok(()),
        false => Err(Errno::EINVAL),
    }
}

fn set_hop_limit(options: &mut Options, hops: i32) {
    options.hop_limit = u8::try_from(hops).ok();
}

fn hop_limit_option(options: &Options) -> Effect {
    Effect::Apply(SocketOption::HopLimit(options.hop_limit))
}

fn hop_limit(view: View<'_>) -> i32 {
    view.options.hop_limit.unwrap_or(HOPS_DEFAULT).into()
}
