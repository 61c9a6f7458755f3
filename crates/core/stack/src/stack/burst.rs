//! How far a poll or a flush goes: what may follow, and what is sent.

/// Whether more packets may follow in this burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Burst {
    /// More may follow: an ACK may be delayed to cover them.
    More,
    /// The link is empty: delayed ACKs are sent, except soon after others, and those that an answer may take along.
    Drained,
    /// It was the last packet of its arrival, as far as those before it tell ([`Arrivals`](super::arrivals::Arrivals)): as if the link
    /// had been found empty.
    Expected,
    /// The link is empty, and was when the poll began: delayed ACKs are sent.
    Over,
}

/// What is sent of what the socket calls have queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlushScope {
    /// All that may leave.
    All,
    /// What fills super-packets, and all that must not wait, for a caller that expects further calls soon: a connection with a
    /// whole super-packet in flight keeps what does not fill another one. [`Stack::wants_flush`](super::Stack::wants_flush) is true then, and the next
    /// poll, or flush, sends it.
    Full,
}
