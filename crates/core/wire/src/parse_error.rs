//! Why headers are rejected.

/// Reason to reject the headers of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// `head` ends inside the headers, but the frame is longer: pass more of it.
    #[error("the headers need at least {need} bytes")]
    NeedMore {
        /// Minimum length of `head` for the next attempt.
        need: usize,
    },
    /// The frame, or the packet by its own length field, ends inside a header; or the frame ends
    /// before the packet does.
    #[error("truncated")]
    Truncated,
    /// The IP version differs from the EtherType.
    #[error("wrong IP version")]
    BadVersion,
    /// The IPv4 header length is below 5 words.
    #[error("IPv4 header length below 20 bytes")]
    BadHeaderLength,
    /// The IPv4 total length is smaller than the header.
    #[error("IPv4 total length smaller than the header")]
    BadTotalLength,
    /// The IPv4 header checksum is wrong.
    #[error("wrong IPv4 header checksum")]
    BadIpChecksum,
    /// The IPv6 extension headers are too many, too long, malformed, or not allowed.
    #[error("IPv6 extension headers not acceptable")]
    ExtensionHeaders,
    /// The TCP data offset is below 5 words or past the end of the packet.
    #[error("TCP data offset not within the segment")]
    BadTcpOffset,
    /// The TCP options are malformed.
    #[error("malformed TCP options: {0}")]
    BadTcpOptions(TcpOptionsError),
    /// The UDP length is smaller than the header or larger than the packet.
    #[error("UDP length not within the packet")]
    BadUdpLength,
    /// The ARP packet is not for IPv4 over Ethernet.
    #[error("ARP not about IPv4 over Ethernet")]
    BadArp,
}

impl From<TcpOptionsError> for ParseError {
    fn from(error: TcpOptionsError) -> Self {
        Self::BadTcpOptions(error)
    }
}

/// Reason to reject a list of options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TcpOptionsError {
    /// The list ends after the kind of an option, before its length.
    #[error("TCP option {kind} has no length byte")]
    NoLength {
        /// The option's kind.
        kind: u8,
    },
    /// The length is 0 or 1, or reaches past the end of the header.
    #[error("TCP option {kind} has length {len}")]
    BadLength {
        /// The option's kind.
        kind: u8,
        /// Its length byte.
        len: u8,
    },
}
