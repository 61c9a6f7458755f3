//! What connections must have in common to take each other's requests.

/// The ends of a connection, by which a [`Pool`](crate::Pool) keeps it: those with the same ones can take each other's requests.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionKey {
    /// Host and port that connections are made to: a server or a proxy.
    pub host: String,
    /// See `host`.
    pub port: u16,
    /// Host and port at the other end of TLS, perhaps behind a proxy; `None` without TLS.
    pub tls: Option<(String, u16)>,
}
