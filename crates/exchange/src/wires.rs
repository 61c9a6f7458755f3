//! The connections of an endpoint.

use crate::control::Control;
use crate::data::DataStream;

/// The connections of an endpoint.
pub(crate) struct Wires {
    pub(crate) control: Control,
    pub(crate) data: Vec<DataStream>,
}

impl Wires {
    /// Returns the data streams, beginning with another one in each turn: what they may do in it is bounded.
    pub(crate) fn in_turn(&mut self, turn: usize) -> impl Iterator<Item = &mut DataStream> {
        let first = turn.checked_rem(self.data.len()).unwrap_or(0);
        let (last, first) = self.data.split_at_mut(first);
        first.iter_mut().chain(last)
    }
}
