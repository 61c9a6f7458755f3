//! What one turn does at most. A peer decides how many records and bytes arrive, and in which pieces; it must not decide how long a call
//! lasts, nor when another connection has its turn.

/// Bytes sent, or received from one stream, from which on a turn ends, so that it is short.
pub(crate) const TURN_BYTES: usize = 1 << 20;

/// Records that one turn handles.
const TURN_RECORDS: usize = 256;

/// Payload bytes that one turn moves in each direction over all streams, in at most so many calls of TCP.
const PAYLOAD_BYTES: usize = 4 << 20;
const PAYLOAD_CALLS: usize = 256;

/// What is left of a turn.
#[derive(Debug)]
pub(crate) struct Budget {
    bytes: usize,
    steps: usize,
}

impl Budget {
    /// For the records of a turn.
    pub(crate) fn records() -> Self {
        Self {
            bytes: TURN_BYTES,
            steps: TURN_RECORDS,
        }
    }

    /// For the records before the end of a broken connection: the one that says why comes last.
    pub(crate) fn last_records() -> Self {
        Self {
            bytes: 16 * TURN_BYTES,
            steps: 64 * TURN_RECORDS,
        }
    }

    /// For payload in one direction.
    pub(crate) fn payload() -> Self {
        Self {
            bytes: PAYLOAD_BYTES,
            steps: PAYLOAD_CALLS,
        }
    }

    /// Returns how many bytes may still be moved; 0: the turn is over.
    pub(crate) fn left(&self) -> usize {
        match self.steps {
            0 => 0,
            _ => self.bytes,
        }
    }

    /// Counts a step of this many bytes.
    pub(crate) fn spend(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
        self.steps = self.steps.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_ends_after_its_bytes_or_its_steps() {
        let mut by_bytes = Budget::payload();
        by_bytes.spend(PAYLOAD_BYTES - 1);
        assert_eq!(by_bytes.left(), 1);
        by_bytes.spend(2);
        assert_eq!(by_bytes.left(), 0);
        let mut by_steps = Budget::records();
        for _ in 0..TURN_RECORDS {
            assert!(by_steps.left() > 0);
            by_steps.spend(0);
        }
        assert_eq!(by_steps.left(), 0);
    }
}
