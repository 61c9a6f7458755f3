//! Options of a socket.

use std::time::Duration;

use tcp::{Connection, Keepalive};

use super::error::OptionError;

/// One option with its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SocketOption {
    /// Small segments leave at once.
    #[doc(alias = "TCP_NODELAY")]
    NoDelay(bool),
    /// A silent peer is asked whether it is there.
    #[doc(alias = "SO_KEEPALIVE")]
    KeepAlive(Option<Keepalive>),
    /// Longest time that sent data may stay unacknowledged.
    #[doc(alias = "TCP_USER_TIMEOUT")]
    UserTimeout(Option<Duration>),
    /// Frags that touch in device memory are received as one, under one token. The kernel never
    /// does; off unless set.
    MergeFrags(bool),
    /// MSG_ZEROCOPY counts: sends with it are reported in the error queue.
    #[doc(alias = "SO_ZEROCOPY")]
    Zerocopy(bool),
}

/// Names an option.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OptionName {
    /// [`SocketOption::NoDelay`].
    NoDelay,
    /// [`SocketOption::KeepAlive`].
    KeepAlive,
    /// [`SocketOption::UserTimeout`].
    UserTimeout,
    /// [`SocketOption::MergeFrags`].
    MergeFrags,
    /// [`SocketOption::Zerocopy`].
    Zerocopy,
}

/// The options of one socket. A listener's are what its connections begin with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Options {
    nodelay: bool,
    keepalive: Option<Keepalive>,
    user_timeout: Option<Duration>,
    pub(crate) merge_frags: bool,
    pub(crate) zerocopy: bool,
}

impl Options {
    /// Returns what `config` says.
    pub(crate) fn new(config: &tcp::Config) -> Self {
        Self {
            nodelay: config.nodelay,
            keepalive: config.keepalive,
            user_timeout: config.user_timeout,
            merge_frags: false,
            zerocopy: false,
        }
    }

    /// Takes over an option.
    pub(crate) fn set(&mut self, option: SocketOption) -> Result<(), OptionError> {
        match option {
            SocketOption::NoDelay(nodelay) => self.nodelay = nodelay,
            SocketOption::KeepAlive(keepalive) => self.keepalive = checked(keepalive)?,
            SocketOption::UserTimeout(timeout) => self.user_timeout = timeout,
            SocketOption::MergeFrags(merge) => self.merge_frags = merge,
            SocketOption::Zerocopy(zerocopy) => self.zerocopy = zerocopy,
        }
        Ok(())
    }

    /// Returns an option.
    pub(crate) fn get(&self, name: OptionName) -> SocketOption {
        match name {
            OptionName::NoDelay => SocketOption::NoDelay(self.nodelay),
            OptionName::KeepAlive => SocketOption::KeepAlive(self.keepalive),
            OptionName::UserTimeout => SocketOption::UserTimeout(self.user_timeout),
            OptionName::MergeFrags => SocketOption::MergeFrags(self.merge_frags),
            OptionName::Zerocopy => SocketOption::Zerocopy(self.zerocopy),
        }
    }

    /// Makes a connection behave so.
    pub(crate) fn apply<P: netmem::Payload>(&self, conn: &mut Connection<P>) {
        let Self {
            nodelay,
            keepalive,
            user_timeout,
            merge_frags: _,
            zerocopy: _,
        } = *self;
        conn.set_nodelay(nodelay);
        conn.set_keepalive(keepalive);
        conn.set_user_timeout(user_timeout);
    }
}

/// Probes at intervals of nothing would never end.
fn checked(keepalive: Option<Keepalive>) -> Result<Option<Keepalive>, OptionError> {
    let least = Duration::from_secs(1);
    match keepalive {
        Some(Keepalive {
            idle,
            interval,
            count,
        }) if idle < least || interval < least || count == 0 => {
            let reason =
                "idle time and interval must be at least one second, the count at least one probe";
            Err(OptionError::BadValue {
                option: "keepalive",
                reason,
            })
        }
        other => Ok(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_got() {
        let mut options = Options::default();
        let keepalive = Some(Keepalive::default());
        let second = Duration::from_secs(1);
        for (name, option) in [
            (OptionName::NoDelay, SocketOption::NoDelay(true)),
            (OptionName::KeepAlive, SocketOption::KeepAlive(keepalive)),
            (
                OptionName::UserTimeout,
                SocketOption::UserTimeout(Some(second)),
            ),
            (OptionName::MergeFrags, SocketOption::MergeFrags(true)),
            (OptionName::Zerocopy, SocketOption::Zerocopy(true)),
        ] {
            assert_ne!(options.get(name), option);
            options.set(option).unwrap();
            assert_eq!(options.get(name), option);
        }
    }

    #[test]
    fn keepalive_without_pauses_is_refused() {
        let mut options = Options::default();
        let hasty = Keepalive {
            interval: Duration::ZERO,
            ..Keepalive::default()
        };
        assert!(options.set(SocketOption::KeepAlive(Some(hasty))).is_err());
        assert_eq!(
            options.get(OptionName::KeepAlive),
            SocketOption::KeepAlive(None)
        );
    }
}
