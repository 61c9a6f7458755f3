//! Options of a connect.

use std::net::SocketAddr;
use std::time::Duration;

use crate::congestion::Congestion;
use crate::syn_data::EarlyCookie;

/// Options of [`Netdev::connect_with`](crate::Netdev::connect_with).
///
/// ```
/// use devmem_tcp::{ConnectOptions, Netdev};
/// use std::time::Duration;
///
/// let (a, b) = Netdev::pair("seed=1".parse()?)?;
/// let listener = b.listen("10.77.0.2:5201")?;
/// let options = ConnectOptions::new()
///     .source("10.77.0.1:4000".parse()?)
///     .timeout(Duration::from_secs(5));
/// let stream = a.connect_with("10.77.0.2:5201", &options)?;
/// assert_eq!(stream.local_addr()?.port(), 4000);
/// # drop(listener);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConnectOptions {
    pub(crate) source: Option<SocketAddr>,
    pub(crate) timeout: Option<Duration>,
    pub(crate) cookie: EarlyCookie,
    pub(crate) congestion: Option<Congestion>,
}

impl ConnectOptions {
    /// Returns the defaults: the address of the route, any free port, no limit but that of TCP (about two minutes).
    pub fn new() -> Self {
        Self::default()
    }

    /// Connects from this address of the NIC; port 0 selects a free port.
    pub fn source(mut self, address: SocketAddr) -> Self {
        self.source = Some(address);
        self
    }

    /// Sets the congestion control of the connection, before its SYN leaves: DCTCP negotiates ECN with it. By default it is that of the
    /// NIC, or of the kernel.
    ///
    /// A NIC of the kernel fails to connect if the kernel does not have it.
    #[doc(alias = "TCP_CONGESTION")]
    pub fn congestion(mut self, congestion: Congestion) -> Self {
        self.congestion = Some(congestion);
        self
    }

    /// With [`EarlyCookie::NotNeeded`], [`Netdev::connect_with_data`](crate::Netdev::connect_with_data) puts payload into the SYN
    /// also if the peer's cookie is not known. A listener that [needs one](crate::Listener::set_early_cookie) does
    /// not accept that payload, which is then sent again after the handshake.
    #[doc(alias = "TCP_FASTOPEN_NO_COOKIE")]
    pub fn early_cookie(mut self, cookie: EarlyCookie) -> Self {
        self.cookie = cookie;
        self
    }

    /// Gives up after this time with [`ErrorKind::TimedOut`](crate::ErrorKind::TimedOut).
    pub fn timeout(mut self, at_most: Duration) -> Self {
        self.timeout = Some(at_most);
        self
    }
}
