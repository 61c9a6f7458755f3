//! Names of attributes, so that an error names `queues.id` instead of `offset 44`.

use super::attr::{self, split_first};

/// The names of the attributes at one level: type, name, and the names of nested attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names(pub &'static [(u16, &'static str, Names)]);

impl Names {
    /// No names: attributes appear as numbers.
    pub const NONE: Self = Self(&[]);

    /// Returns a path of attribute types as names separated by dots.
    pub(super) fn text(self, path: impl IntoIterator<Item = u16>) -> String {
        let mut level = self;
        let word = |kind| match level.0.iter().find(|(k, ..)| *k == kind) {
            Some((_, name, below)) => {
                level = *below;
                (*name).to_owned()
            }
            None => {
                level = Self::NONE;
                format!("#{kind}")
            }
        };
        let words: Vec<_> = path.into_iter().map(word).collect();
        words.join(".")
    }
}

/// Returns the types of the attribute that starts at `offset` of `attributes` and of the nests around it, outermost first;
/// `None` if no attribute starts there.
pub(super) fn path_at(mut attributes: &[u8], mut offset: usize) -> Option<Vec<u16>> {
    let mut path = Vec::new();
    // Ends, because each iteration skips at least a header.
    loop {
        let (is_nest, first, rest) = split_first(attributes)?;
        let len = attributes.len() - rest.len();
        if offset >= len {
            offset -= len;
            attributes = rest;
            continue;
        }
        path.push(first.kind);
        if offset == 0 {
            return Some(path);
        }
        if !is_nest {
            return None;
        }
        offset = offset.checked_sub(attr::HEADER_LEN)?;
        attributes = first.value;
    }
}
