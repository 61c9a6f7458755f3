//! What attributes are called, so that an error says `queues.id` and not `offset 44`.

use super::attr::{self, F_NESTED, align};

/// The names of one level of attributes: type, name, and the names below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names(pub &'static [(u16, &'static str, Names)]);

impl Names {
    /// No names: attributes appear as numbers.
    pub const NONE: Self = Self(&[]);

    /// Writes a path of attribute types with dots.
    pub(super) fn text(self, path: &[u16]) -> String {
        let mut level = self;
        let mut words = Vec::with_capacity(path.len());
        for kind in path {
            match level.0.iter().find(|(k, ..)| k == kind) {
                Some((_, name, below)) => {
                    words.push((*name).to_owned());
                    level = *below;
                }
                None => {
                    words.push(format!("#{kind}"));
                    level = Self::NONE;
                }
            }
        }
        words.join(".")
    }
}

/// Returns the path to the attribute that starts at `offset` of `message`, whose attributes start at
/// `first`, with `extra` one level below it. `None` if no attribute starts there.
pub(super) fn path_at(
    message: &[u8],
    first: usize,
    offset: usize,
    extra: Option<u16>,
    names: Names,
) -> Option<String> {
    let mut path = Vec::new();
    let mut at = first;
    let mut end = message.len();
    // Each turn moves forward by a header or more, so it ends.
    loop {
        let header = message
            .get(at..end)?
            .first_chunk::<{ attr::HEADER_LEN }>()?;
        let len = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]);
        if len < attr::HEADER_LEN {
            return None;
        }
        let after = at.checked_add(align(len))?;
        if offset >= after {
            at = after;
            continue;
        }
        path.push(kind & !F_NESTED);
        if offset == at {
            path.extend(extra);
            return Some(names.text(&path));
        }
        if kind & F_NESTED == 0 {
            return None;
        }
        end = end.min(at.checked_add(len)?);
        at += attr::HEADER_LEN;
    }
}
