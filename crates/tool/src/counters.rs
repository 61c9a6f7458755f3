//! Counters of other crates for output; each name is written once and serves both code and JSON.

use std::fmt;

use nic::ConditionerStats;

/// Defines `$name` with all counters of `$stats`; a missing counter is a compile error.
#[macro_export]
macro_rules! counters {
    ($(#[$attribute:meta])* $visible:vis $name:ident of $stats:ident { $($field:ident),* $(,)? }) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, Default, serde::Serialize)]
        $visible struct $name {
            $(#[doc = concat!("`", stringify!($field), "` of the counters that this is made of.")] $visible $field: u64),*
        }

        impl From<$stats> for $name {
            fn from(stats: $stats) -> Self {
                let $stats { $($field),* } = stats;
                Self { $($field),* }
            }
        }
    };
}
pub use crate::counters;

counters! {
    /// Counters of frames in one direction of an impaired wire.
    pub Lane of ConditionerStats {
        offered,
        delivered,
        lost,
        marked,
        duplicated,
        corrupted,
        reordered,
        overflowed,
    }
}

impl fmt::Display for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            offered,
            delivered,
            lost,
            marked,
            duplicated,
            corrupted,
            reordered,
            overflowed,
        } = self;
        write!(
            f,
            "{offered} frames in, {delivered} out: {lost} lost, {marked} marked, {duplicated} doubled, {corrupted} \
             damaged, {reordered} overtaken, {overflowed} over the limit"
        )
    }
}
