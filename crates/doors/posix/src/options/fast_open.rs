//! What a program has set of TCP Fast Open (RFC 7413).

use stack::EarlyCookie;
use tcp::{FastOpenKeys, FastOpenListener};

/// Options of Fast Open that a program has set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct FastOpen {
    /// TCP_FASTOPEN.
    pub(super) queue_len: Option<usize>,
    /// TCP_FASTOPEN_CONNECT.
    pub(crate) connect: bool,
    /// TCP_FASTOPEN_NO_COOKIE.
    pub(super) no_cookie: bool,
    /// TCP_FASTOPEN_KEY.
    pub(super) keys: Option<FastOpenKeys>,
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
