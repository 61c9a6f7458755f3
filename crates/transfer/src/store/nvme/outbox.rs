//! PDUs that wait to be sent, and which is next.

use std::collections::VecDeque;
use std::ops::Range;

use crate::store::session::Outgoing;

/// A PDU.
#[derive(Debug)]
pub(super) struct OutgoingPdu {
    /// Its header, and data in host memory.
    pub(super) text: Vec<u8>,
    /// The command whose payload follows, and the range of that.
    pub(super) payload: Option<(u16, Range<u64>)>,
}

/// PDUs that wait to be sent. Commands overtake data: the controller requests the data of a command while those of others are on
/// their way, so that it never waits for the host.
#[derive(Debug)]
pub(super) struct Outbox {
    /// Whether a digest follows each payload.
    has_digests: bool,
    commands: VecDeque<OutgoingPdu>,
    data: VecDeque<OutgoingPdu>,
    /// The rest of the PDU whose text was taken.
    begun: VecDeque<Outgoing>,
}

impl Outbox {
    pub(super) fn new(has_digests: bool) -> Self {
        Self {
            has_digests,
            commands: VecDeque::new(),
            data: VecDeque::new(),
            begun: VecDeque::new(),
        }
    }

    pub(super) fn push_command(&mut self, pdu: OutgoingPdu) {
        self.commands.push_back(pdu);
    }

    pub(super) fn push_data(&mut self, pdu: OutgoingPdu) {
        self.data.push_back(pdu);
    }

    /// Returns whether payload of a command waits.
    pub(super) fn has_payload_of(&self, command_id: u16) -> bool {
        let begun = self.begun.iter().filter_map(|outgoing| match outgoing {
            Outgoing::Payload { id, .. } => Some(*id),
            Outgoing::Text(_) | Outgoing::Digest { .. } => None,
        });
        let waiting = self.commands.iter().chain(&self.data);
        let waiting = waiting.filter_map(|pdu| pdu.payload.as_ref());
        let mut ids = begun.chain(waiting.map(|(id, _)| u64::from(*id)));
        ids.any(|id| id == u64::from(command_id))
    }

    /// Returns what to send next, once.
    pub(super) fn next(&mut self) -> Option<Outgoing> {
        if let Some(next) = self.begun.pop_front() {
            return Some(next);
        }
        let next = self.commands.pop_front().or_else(|| self.data.pop_front());
        let OutgoingPdu { text, payload } = next?;
        if let Some((id, range)) = payload {
            let (id, of_digest) = (id.into(), range.clone());
            self.begun.push_back(Outgoing::Payload { id, range });
            if self.has_digests {
                let range = of_digest;
                self.begun.push_back(Outgoing::Digest { id, range });
            }
        }
        Some(Outgoing::Text(text))
    }
}
