//! Options of TCP Fast Open (RFC 7413).

use devmem_uapi::Errno;
use tcp::FastOpenKeys;

use crate::abi::{SOL_TCP, tcp_opt};
use crate::options::row::{Check, Row, View};
use crate::options::{Effect, Options};

/// Length of a key.
const KEY_LEN: usize = 16;

const fn row(name: i32) -> Row {
    Row::new(SOL_TCP, name)
}

pub(super) static ROWS: &[Row] = &[
    row(tcp_opt::FASTOPEN)
        .int(Check::In(0..=i32::MAX), |o, n| {
            o.fast_open.queue_len = usize::try_from(n).ok();
        })
        .apply(|_| Effect::FastOpen)
        .get_int(|v| {
            let len = v.options.fast_open.queue_len.unwrap_or(0);
            i32::try_from(len).unwrap_or(i32::MAX)
        }),
    row(tcp_opt::FASTOPEN_CONNECT)
        .int(Check::SWITCH, |o, n| o.fast_open.connect = n != 0)
        .get_int(|v| v.options.fast_open.connect.into()),
    row(tcp_opt::FASTOPEN_NO_COOKIE)
        .int(Check::SWITCH, |o, n| o.fast_open.no_cookie = n != 0)
        .apply(|_| Effect::FastOpen)
        .get_int(|v| v.options.fast_open.no_cookie.into()),
    row(tcp_opt::FASTOPEN_KEY)
        .bytes(set_keys)
        .apply(|_| Effect::FastOpen)
        .get_bytes(key_bytes),
];

/// Parses one key, or the current and the previous one.
fn set_keys(options: &mut Options, value: &[u8]) -> Result<(), Errno> {
    let (keys, []) = value.as_chunks::<KEY_LEN>() else {
        return Err(Errno::EINVAL);
    };
    options.fast_open.keys = Some(match *keys {
        [primary] => FastOpenKeys::new(primary, None),
        [primary, backup] => FastOpenKeys::new(primary, Some(backup)),
        _ => return Err(Errno::EINVAL),
    });
    Ok(())
}

fn key_bytes(view: View<'_>) -> Vec<u8> {
    let keys = view.options.fast_open.keys.or(view.base.fast_open.keys);
    let Some(keys) = keys else {
        return Vec::new();
    };
    let mut bytes = keys.primary().to_vec();
    bytes.extend(keys.backup().into_iter().flatten());
    bytes
}
