//! Kinds of congestion control.

use std::fmt;
use std::str::FromStr;

use devmem_uapi::Errno;

use crate::error::{Error, ErrorKind};

/// Congestion control of a sender.
///
/// It is that of the NIC ([`TcpOptions::congestion`](crate::tcp::TcpOptions::congestion)) unless it is set for a connection
/// ([`ConnectOptions::congestion`](crate::ConnectOptions::congestion), [`Stream::set_congestion`](crate::Stream::set_congestion)), or
/// for those that a listener accepts ([`Listener::set_congestion`](crate::Listener::set_congestion)). Its names as text are those of
/// Linux.
///
/// ```
/// use devmem_tcp::tcp::Congestion;
///
/// assert_eq!("dctcp".parse::<Congestion>()?, Congestion::Dctcp);
/// assert_eq!(Congestion::Reno.to_string(), "reno");
/// # Ok::<(), devmem_tcp::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Congestion {
    /// CUBIC (RFC 9438), the default, as in Linux.
    #[default]
    Cubic,
    /// NewReno (RFC 5681, RFC 6582).
    Reno,
    /// BBR, version 3 (draft-ietf-ccwg-bbr): for paths that lose packets without being full, and for short queues. Its packets are
    /// paced.
    Bbr,
    /// DCTCP (RFC 8257), for networks whose switches mark packets from a short queue on: a mark reduces the rate by the share of packets that
    /// are marked. Not for the Internet: all flows that share a queue should use it, and all of these need it at both ends.
    ///
    /// Its connections request ECN, and accept it, whatever [`TcpOptions::ecn`](crate::tcp::TcpOptions::ecn) says. So it has to be known
    /// before the handshake: set it for the NIC, for the connect and for the listener. Without ECN it behaves as [`Reno`](Self::Reno).
    Dctcp,
}

impl Congestion {
    const ALL: [Self; 4] = [Self::Cubic, Self::Reno, Self::Bbr, Self::Dctcp];

    /// Returns the name that Linux has for it (TCP_CONGESTION).
    pub fn name(self) -> &'static str {
        match self {
            Self::Cubic => "cubic",
            Self::Reno => "reno",
            Self::Bbr => "bbr",
            Self::Dctcp => "dctcp",
        }
    }
}

impl fmt::Display for Congestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Congestion {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let known = Self::ALL.into_iter().find(|kind| kind.name() == name);
        known.ok_or_else(|| {
            let reason = format!("no congestion control is called {name:?}");
            Error::new(ErrorKind::InvalidInput, Errno::ENOENT, reason)
                .with_remedy("choose cubic, reno, bbr or dctcp")
        })
    }
}

#[doc(hidden)]
impl From<Congestion> for tcp::CongestionKind {
    fn from(ours: Congestion) -> Self {
        match ours {
            Congestion::Cubic => Self::Cubic,
            Congestion::Reno => Self::NewReno,
            Congestion::Bbr => Self::Bbr,
            Congestion::Dctcp => Self::Dctcp,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_linux_and_others_are_refused_with_what_there_is() {
        for kind in Congestion::ALL {
            assert_eq!(kind.name().parse::<Congestion>().unwrap(), kind);
        }
        let error = "vegas\u{1b}".parse::<Congestion>().unwrap_err().to_string();
        assert!(error.contains("no congestion control is called"), "{error}");
        assert!(!error.contains('\u{1b}'), "{error}");
    }
}
