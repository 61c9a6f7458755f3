//! Retransmissions in order of sending, until they are delivered or lost.

use std::collections::VecDeque;

use wire::Instant;

use crate::scoreboard::sending::Sending;

/// One retransmission.
#[derive(Debug, Clone, Copy)]
pub(super) struct Retransmission {
    pub(super) start: u64,
    pub(super) sent_at: Instant,
    pub(super) len: u32,
}

impl Retransmission {
    pub(super) fn end(&self) -> u64 {
        self.start + u64::from(self.len)
    }

    pub(super) fn sending(&self) -> Sending {
        Sending {
            sent_at: self.sent_at,
            end: self.end(),
        }
    }
}

/// Retransmissions in flight.
#[derive(Debug, Default)]
pub(super) struct Retransmissions(VecDeque<Retransmission>);

impl Retransmissions {
    /// Adds a retransmission that is sent now.
    pub(super) fn push(&mut self, sent: Retransmission) {
        match self.0.back_mut() {
            Some(last) if last.sent_at == sent.sent_at && last.end() == sent.start => {
                last.len = last.len.saturating_add(sent.len);
            }
            _ => self.0.push_back(sent),
        }
    }

    /// Returns the oldest.
    pub(super) fn oldest(&self) -> Option<Retransmission> {
        self.0.front().copied()
    }

    /// Drops the oldest.
    pub(super) fn pop(&mut self) {
        self.0.pop_front();
    }

    /// Drops the oldest ones that are acknowledged. Without SACK they are removed here only.
    pub(super) fn release(&mut self, una: u64) {
        while self.0.front().is_some_and(|sent| sent.end() <= una) {
            self.0.pop_front();
        }
    }
}
