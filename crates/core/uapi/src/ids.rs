//! Numbers that name something, each in a type of its own.

use std::fmt;

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

macro_rules! number {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash,
            FromBytes, IntoBytes, Immutable, KnownLayout,
        )]
        #[repr(transparent)]
        pub struct $name(pub u32);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number! {
    /// Names a dma-buf binding of the system; the first is 1.
    DmabufId
}
number! {
    /// Names one frag lent to one socket; the first is 1.
    FragToken
}
number! {
    /// Names a netdev of a network namespace; never 0.
    IfIndex
}
number! {
    /// Counts the zero-copy sends of one socket from 0, and wraps.
    ZerocopyId
}

impl ZerocopyId {
    /// Returns the id of the send after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}
