//! Where the connections of a source go.

/// The ends of a connection. Connections with the same ones can take each other's requests.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Hop {
    /// Host and port that connections are made to: a server or a proxy.
    pub(crate) host: String,
    pub(crate) port: u16,
    /// Host and port at the other end of TLS, perhaps behind a proxy; `None` without TLS.
    pub(crate) tls: Option<(String, u16)>,
}
