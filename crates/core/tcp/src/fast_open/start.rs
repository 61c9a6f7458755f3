//! What a SYN with Fast Open begins with, and what its SYN-ACK tells.

use wire::FastOpen;

/// What the first SYN of a connection carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FastOpenStart {
    /// The option: a cookie, or the request for one.
    pub option: Option<FastOpen>,
    /// Most bytes of payload; 0 without a cookie, unless none is needed.
    pub data_max: u16,
}

/// Reason why Fast Open failed (linux `enum tcp_fastopen_client_fail`, with its numbers).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum ClientFail {
    /// It did not.
    #[default]
    No = 0,
    /// There was no cookie for the peer.
    CookieUnavailable = 1,
    /// The SYN-ACK did not acknowledge the payload.
    DataNotAcked = 2,
    /// The SYN had to be repeated.
    SynRetransmitted = 3,
}

/// What a SYN-ACK has told about the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Learned {
    /// The peer's MSS.
    pub mss: Option<u16>,
    /// The option of the SYN-ACK.
    pub option: Option<FastOpen>,
    /// What our SYN had.
    pub sent: FastOpenStart,
    /// A SYN was repeated: the option was in none of the last ones.
    pub retransmitted: bool,
}
