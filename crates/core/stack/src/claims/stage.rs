//! How far a claim to an address is.

/// How far the claim of this stack to an address is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// So many questions were sent.
    Probing { sent: u8, in_use: bool },
    /// So many announcements were sent.
    Announcing(u8),
    /// Nothing is to be done.
    Used,
}
