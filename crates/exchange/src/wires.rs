//! The connections of an endpoint.

use super::control::Control;
use super::data::DataStream;

/// The connections of an endpoint.
pub(super) struct Wires {
    pub(super) control: Control,
    pub(super) data: Vec<DataStream>,
}

impl Wires {
    /// Returns the data streams, beginning with another one in each turn: what they may do in it is bounded.
    pub(super) fn in_turn(&mut self, turn: usize) -> impl Iterator<Item = &mut DataStream> {
        let first = turn.checked_rem(self.data.len()).unwrap_or(0);
        let (last, first) = self.data.split_at_mut(first);
        first.iter_mut().chain(last)
    }
}
