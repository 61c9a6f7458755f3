//! Reasons for drops, as each layer that drops packets declares them.

/// Declares an enum of reasons for which packets or segments are dropped, the list of all of them, and their names.
///
/// Each reason has one counter, whose name is stable: it is a key of the tool's JSON.
#[macro_export]
macro_rules! drop_reasons {
    ($(#[$meta:meta])* $enum:ident { $($(#[$doc:meta])+ $reason:ident => $name:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum $enum {
            $($(#[$doc])+ $reason,)+
        }

        impl $enum {
            /// All reasons, in the order of their counters.
            pub const ALL: &[Self] = &[$(Self::$reason),+];

            /// Returns the stable snake_case name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$reason => $name,)+
                }
            }
        }
    };
}
