//! Tests over all rows of the table of options.

use std::collections::BTreeSet;

use devmem_uapi::Errno;
use devmem_uapi::sockopt::{SOL_IP, SOL_IPV6, SOL_SOCKET};

use super::rows::all;
use super::*;
use crate::abi::*;
use crate::sockaddr::Family;

/// A value for setsockopt, and the value that getsockopt then returns.
enum Sample {
    /// The same number.
    Same(i32),
    /// Another number.
    Becomes(i32, i32),
    /// Bytes, and the bytes returned.
    Bytes(&'static [u8], Vec<u8>),
    /// The option can be set, not read.
    SetOnly(i32),
    /// The option accepts no value.
    Refused(Errno),
    /// The option can be read, not set.
    GetOnly,
}

fn sample(name: (i32, i32)) -> Option<Sample> {
    use Sample::*;
    let socket = |name| match name {
        so::TYPE | so::PROTOCOL | so::DOMAIN | so::SNDLOWAT => Some(GetOnly),
        so::REUSEADDR | so::REUSEPORT | so::KEEPALIVE | so::ZEROCOPY => Some(Same(1)),
        so::TIMESTAMP | so::TIMESTAMPNS | so::TIMESTAMP_NEW | so::TIMESTAMPNS_NEW => Some(Same(1)),
        so::DEBUG | so::BROADCAST | so::OOBINLINE | so::NO_CHECK | so::SELECT_ERR_QUEUE => {
            Some(Becomes(5, 1))
        }
        so::PRIORITY | so::MARK => Some(Same(-7)),
        so::LINGER => Some(Bytes(
            &[1, 0, 0, 0, 9, 0, 0, 0],
            vec![1, 0, 0, 0, 9, 0, 0, 0],
        )),
        so::RCVTIMEO | so::RCVTIMEO_NEW | so::SNDTIMEO | so::SNDTIMEO_NEW => {
            const TIME: [u8; 16] = [3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0];
            Some(Bytes(&TIME, TIME.to_vec()))
        }
        so::RCVLOWAT => Some(Becomes(-1, i32::MAX)),
        so::RCVBUF | so::SNDBUF => Some(Becomes(10_000, 20_000)),
        so::RCVBUFFORCE | so::SNDBUFFORCE => Some(SetOnly(10_000)),
        so::TIMESTAMPING | so::TIMESTAMPING_NEW => {
            Some(Bytes(&[0x18, 0, 0, 0], vec![0x18, 0, 0, 0, 0, 0, 0, 0]))
        }
        so::BINDTOIFINDEX => Some(Becomes(1, 0)),
        _ => None,
    };
    let tcp = |name| match name {
        tcp_opt::NODELAY | tcp_opt::CORK | tcp_opt::INQ => Some(Same(1)),
        tcp_opt::MAXSEG | tcp_opt::KEEPIDLE | tcp_opt::KEEPINTVL => Some(Same(1000)),
        tcp_opt::KEEPCNT | tcp_opt::SYNCNT | tcp_opt::LINGER2 => Some(Same(100)),
        // 5 s are rounded up to the number of timeouts that takes 7 s.
        tcp_opt::DEFER_ACCEPT => Some(Becomes(5, 7)),
        tcp_opt::WINDOW_CLAMP => Some(Becomes(100, 1152)),
        tcp_opt::QUICKACK => Some(Same(0)),
        tcp_opt::CONGESTION => Some(Bytes(b"reno", b"reno\0\0\0\0\0\0\0\0\0\0\0\0".to_vec())),
        tcp_opt::THIN_DUPACK => Some(Becomes(1, 0)),
        tcp_opt::USER_TIMEOUT | tcp_opt::NOTSENT_LOWAT => Some(Same(12_345)),
        tcp_opt::CC_INFO | tcp_opt::IS_MPTCP => Some(GetOnly),
        tcp_opt::FASTOPEN => Some(Same(7)),
        tcp_opt::FASTOPEN_CONNECT | tcp_opt::FASTOPEN_NO_COOKIE => Some(Same(1)),
        tcp_opt::FASTOPEN_KEY => Some(Bytes(&[7; 32], vec![7; 32])),
        tcp_opt::ULP => Some(Refused(Errno::ENOENT)),
        _ => None,
    };
    match name {
        (SOL_SOCKET, name) => socket(name),
        (SOL_TCP, name) => tcp(name),
        (SOL_IP, IP_TOS) | (SOL_IPV6, IPV6_TCLASS) => Some(Becomes(0x2f, 0x2c)),
        (SOL_IP, IP_TTL) | (SOL_IPV6, IPV6_UNICAST_HOPS) => Some(Same(33)),
        (SOL_IP, IP_BIND_ADDRESS_NO_PORT | IP_FREEBIND) | (SOL_IPV6, IPV6_V6ONLY) => Some(Same(1)),
        (SOL_IP, IP_MTU_DISCOVER) | (SOL_IPV6, IPV6_MTU_DISCOVER) => Some(Same(2)),
        _ => None,
    }
}

fn fresh() -> (Options, tcp::Config) {
    let base = tcp::Config::default();
    (Options::new(&base, 1 << 20), base)
}

#[test]
fn every_option_returns_the_value_that_was_set() {
    for row in all() {
        let (mut options, base) = fresh();
        let name = row.name();
        let sample = sample(name).unwrap_or_else(|| panic!("no sample for {name:?}"));
        let before = options.get(Family::V6, name, &base);
        let mut set = |value: &[u8]| options.set(Family::V6, name, value).map(|_| ());
        let expected = match sample {
            Sample::Same(number) => {
                assert_eq!(set(&number.to_ne_bytes()), Ok(()), "{name:?}");
                Ok(number.to_ne_bytes().to_vec())
            }
            Sample::Becomes(number, becomes) => {
                assert_eq!(set(&number.to_ne_bytes()), Ok(()), "{name:?}");
                Ok(becomes.to_ne_bytes().to_vec())
            }
            Sample::Bytes(bytes, becomes) => {
                assert_eq!(set(bytes), Ok(()), "{name:?}");
                Ok(becomes)
            }
            Sample::SetOnly(number) => {
                assert_eq!(set(&number.to_ne_bytes()), Ok(()), "{name:?}");
                Err(Errno::ENOPROTOOPT)
            }
            Sample::Refused(errno) => {
                assert_eq!(set(&[1; 16]), Err(errno), "{name:?}");
                before
            }
            Sample::GetOnly => {
                assert_eq!(set(&[1; 16]), Err(Errno::ENOPROTOOPT), "{name:?}");
                assert!(before.is_ok(), "{name:?}");
                before
            }
        };
        assert_eq!(
            options.get(Family::V6, name, &base),
            expected,
            "{name:?} after it was set"
        );
    }
}

#[test]
fn every_option_has_one_row_and_can_be_set_or_read() {
    let mut seen = BTreeSet::new();
    let (options, base) = fresh();
    for row in all() {
        assert!(seen.insert(row.name()), "{:?} is there twice", row.name());
        let is_readable = options.get(Family::V6, row.name(), &base).is_ok();
        assert!(row.is_settable() || is_readable, "{:?}", row.name());
    }
}

#[test]
fn a_value_that_is_too_short_is_refused_and_changes_nothing() {
    for row in all().filter(|row| row.is_settable()) {
        let (mut options, base) = fresh();
        let before = options.get(Family::V6, row.name(), &base);
        let set = options.set(Family::V6, row.name(), &[]);
        assert_eq!(set, Err(Errno::EINVAL), "{:?}", row.name());
        assert_eq!(options.get(Family::V6, row.name(), &base), before);
    }
}

#[test]
fn an_unknown_name_is_refused_before_a_short_length_except_at_the_tcp_level() {
    let (mut options, base) = fresh();
    for (level, short) in [
        (SOL_SOCKET, Errno::ENOPROTOOPT),
        (SOL_IP, Errno::ENOPROTOOPT),
        (SOL_IPV6, Errno::ENOPROTOOPT),
        (SOL_TCP, Errno::EINVAL),
    ] {
        let name = (level, 9999);
        assert_eq!(options.set(Family::V6, name, &[0; 3]), Err(short));
        let long = options.set(Family::V6, name, &[0; 4]);
        assert_eq!(long, Err(Errno::ENOPROTOOPT));
        let got = options.get(Family::V6, name, &base);
        assert_eq!(got, Err(Errno::ENOPROTOOPT));
    }
}

#[test]
fn sockets_of_ipv4_have_no_options_of_ipv6() {
    let (mut options, base) = fresh();
    for row in all().filter(|row| row.name().0 == SOL_IPV6) {
        let set = options.set(Family::V4, row.name(), &[1, 0, 0, 0]);
        assert_eq!(set, Err(Errno::ENOPROTOOPT), "{:?}", row.name());
        let got = options.get(Family::V4, row.name(), &base);
        assert_eq!(got, Err(Errno::ENOPROTOOPT), "{:?}", row.name());
    }
}
