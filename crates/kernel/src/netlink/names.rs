//! What attributes are called, so that an error says `queues.id` and not `offset 44`.

use super::attr::{self, split_first};

/// The names of one level of attributes: type, name, and the names below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names(pub &'static [(u16, &'static str, Names)]);

impl Names {
    /// No names: attributes appear as numbers.
    pub const NONE: Self = Self(&[]);

    /// Writes a path of attribute types with dots.
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

/// Returns the types from the outermost nest inward to the attribute that starts at `offset` of `attributes`; `None`
/// if none starts there.
pub(super) fn path_at(mut attributes: &[u8], mut offset: usize) -> Option<Vec<u16>> {
    let mut path = Vec::new();
    // Each turn leaves a header or more behind, so it ends.
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
