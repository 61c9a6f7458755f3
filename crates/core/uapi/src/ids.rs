//! Newtypes of the ids in the uAPI.

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
    /// Id of a dma-buf binding, unique in the system; the first is 1.
    DmabufId
}
number! {
    /// Id of one frag that is lent to one socket; the first is 1.
    FragToken
}
number! {
    /// Index of a netdev in its network namespace; never 0.
    IfIndex
}
number! {
    /// Number of a zero-copy send of one socket, counted from 0; wraps.
    #[derive(Default)]
    ZerocopyId
}

impl ZerocopyId {
    /// Returns the id of the send after this one.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}
