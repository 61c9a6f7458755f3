//! Counters of other crates as they are told: a name each, in the JSON and in code once.

use std::fmt;

use nic::ConditionerStats;

/// Makes `$name`, the counters of `$stats` by their names. All of them: one that is forgotten does not build.
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
    /// Frames of one direction of an imperfect wire.
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
