//! Options of TCP Fast Open (RFC 7413).

use devmem_uapi::Errno;
use stack::EarlyCookie;
use tcp::{FastOpenKeys, FastOpenListener};

use super::row::{Check, Row, View};
use super::{Effect, Options};
use crate::abi::{SOL_TCP, tcp_opt};

/// Length of a key.
const KEY_LEN: usize = 16;

/// Options of Fast Open that a program has set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct FastOpen {
    /// TCP_FASTOPEN.
    queue_len: Option<usize>,
    /// TCP_FASTOPEN_CONNECT.
    pub(crate) connect: bool,
    /// TCP_FASTOPEN_NO_COOKIE.
    no_cookie: bool,
    /// TCP_FASTOPEN_KEY.
    keys: Option<FastOpenKeys>,
    /// A send with MSG_FASTOPEN opens the connection.
    pub(crate) by_send: bool,
}

impl FastOpen {
    /// Returns the stack's settings for payload in a SYN.
    pub(crate) fn cookie(&self) -> EarlyCookie {
        match self.no_cookie {
            true => EarlyCookie::NotNeeded,
            false => EarlyCookie::Needed,
        }
    }

    /// Returns the same if the next connection is to use Fast Open.
    pub(crate) fn wanted(&self) -> Option<EarlyCookie> {
        (self.connect || self.by_send).then(|| self.cookie())
    }

    /// Applies these settings to a listener.
    pub(crate) fn tell(&self, listener: &mut FastOpenListener) {
        listener.queue_len = self.queue_len;
        listener.no_cookie = self.no_cookie;
        listener.keys = self.keys.unwrap_or(listener.keys);
    }
}

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
