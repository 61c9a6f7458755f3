//! Which acknowledged pieces a flush has not covered yet, and which ones no flush can cover any more.
//!
//! A server that has acknowledged a write may still lose it until a flush is done, by a crash. A flush covers what the same run
//! of the server has acknowledged, on any of its connections. A connection that is older than a request was made to the
//! run of the server that answered the request, or that run has ended and the connection breaks. So a flush is sent on the
//! oldest connection, and when that breaks, pieces that were requested before the next oldest one was made are written again.

use client::Piece;

/// A point in the order of connections and requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

/// Acknowledged pieces without a flush.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    now: u64,
    /// The pieces, and when they were requested.
    pieces: Vec<(Moment, Piece)>,
    bytes: u64,
    /// How many of the first pieces the flush in flight covers.
    flushing: Option<usize>,
}

impl Ledger {
    /// Returns the moment of a new connection or a new request.
    pub(crate) fn moment(&mut self) -> Moment {
        self.now += 1;
        Moment(self.now)
    }

    /// Records an acknowledged piece, which was requested at `moment`.
    pub(crate) fn acknowledge(&mut self, moment: Moment, piece: Piece) {
        self.pieces.push((moment, piece));
        self.bytes += piece.len();
    }

    /// Returns the number of bytes without a flush.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    pub(crate) fn is_flushing(&self) -> bool {
        self.flushing.is_some()
    }

    /// Records that a flush was requested on the oldest connection.
    pub(crate) fn begin_flush(&mut self) {
        self.flushing = Some(self.pieces.len());
    }

    /// Records that the flush is done.
    pub(crate) fn on_flushed(&mut self) {
        let count = self.flushing.take().unwrap_or(0).min(self.pieces.len());
        let covered = self.pieces.drain(..count);
        self.bytes -= covered.map(|(_, piece)| piece.len()).sum::<u64>();
    }

    /// Takes the pieces that no flush can cover after a connection broke. `oldest` is the moment of the oldest connection
    /// that is left.
    pub(crate) fn take_lost(&mut self, oldest: Option<Moment>) -> Vec<Piece> {
        let is_lost = |(moment, _): &(Moment, Piece)| oldest.is_none_or(|oldest| *moment < oldest);
        let (lost, kept): (Vec<_>, Vec<_>) = self.pieces.drain(..).partition(is_lost);
        if !lost.is_empty() {
            // The connection of the flush was the oldest one, so it is the one that broke.
            self.flushing = None;
        }
        self.pieces = kept;
        self.bytes -= lost.iter().map(|(_, piece)| piece.len()).sum::<u64>();
        lost.into_iter().map(|(_, piece)| piece).collect()
    }

    /// Records that the connection of the flush broke.
    pub(crate) fn on_flush_lost(&mut self) {
        self.flushing = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(start: u64) -> Piece {
        Piece {
            start,
            end: start + 10,
        }
    }

    #[test]
    fn a_flush_covers_what_was_acknowledged_before_it_was_sent() {
        let mut ledger = Ledger::default();
        let _connection = ledger.moment();
        let (first, second) = (ledger.moment(), ledger.moment());
        ledger.acknowledge(second, piece(10));
        ledger.begin_flush();
        ledger.acknowledge(first, piece(0));
        assert_eq!(ledger.bytes(), 20);
        ledger.on_flushed();
        assert_eq!((ledger.bytes(), ledger.is_flushing()), (10, false));
        ledger.begin_flush();
        ledger.on_flushed();
        assert!(ledger.is_empty());
    }

    #[test]
    fn without_a_connection_all_that_is_not_flushed_is_lost() {
        let mut ledger = Ledger::default();
        let moment = ledger.moment();
        ledger.acknowledge(moment, piece(0));
        ledger.begin_flush();
        assert_eq!(ledger.take_lost(None), [piece(0)]);
        assert!(ledger.is_empty() && !ledger.is_flushing());
        assert_eq!(ledger.bytes(), 0);
    }

    #[test]
    fn an_older_connection_covers_requests_that_followed_it_and_no_others() {
        let mut ledger = Ledger::default();
        let _broken = ledger.moment();
        let before = ledger.moment();
        let left = ledger.moment();
        let after = ledger.moment();
        // Its reply came late, from a connection that was still open.
        ledger.acknowledge(after, piece(20));
        ledger.acknowledge(before, piece(10));
        assert_eq!(ledger.take_lost(Some(left)), [piece(10)]);
        assert_eq!(ledger.bytes(), 10);
    }
}
