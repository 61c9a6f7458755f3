//! Feeds a session that writes with a server's bytes, for the fuzz targets.

use std::collections::BTreeMap;

use client::Piece;

use super::error::Operation;
use super::session::{Outgoing, Session, Write};

/// Length of each write.
const WRITE_BYTES: u64 = 32 << 10;

/// Feeds a session, which makes as many requests as it accepts, `cut` bytes at a time.
///
/// # Panics
/// If a request is acknowledged that was not made, or twice, or is lost; if bytes are sent that are no part of a payload.
pub(super) fn drive(mut session: Box<dyn Session>, cut: u8, mut bytes: &[u8]) {
    let mut asked = BTreeMap::new();
    let mut start = 0;
    loop {
        while session.accepts() {
            let end = start + WRITE_BYTES;
            let write = Write {
                operation: Operation::Write,
                piece: Piece { start, end },
            };
            asked.insert(session.request(write), write);
            start = end;
        }
        while let Some(outgoing) = session.outgoing() {
            if let Outgoing::Payload { range, .. } | Outgoing::Digest { range, .. } = outgoing {
                assert!(range.start < range.end && range.end <= WRITE_BYTES);
            }
        }
        let missing = session.missing();
        assert!(missing > 0, "replies are awaited");
        let now = missing.min(usize::from(cut).max(1)).min(bytes.len());
        if now == 0 {
            break;
        }
        let ended = session.on_text(&bytes[..now]).is_err();
        bytes = &bytes[now..];
        while let Some((id, write)) = session.completed() {
            assert_eq!(
                asked.remove(&id),
                Some(write),
                "made, and acknowledged once"
            );
        }
        if ended {
            break;
        }
    }
    let left: Vec<_> = asked.into_values().collect();
    let mut outstanding = session.take_outstanding();
    outstanding.sort_by_key(|write| write.piece.start);
    let mut expected = left;
    expected.sort_by_key(|write| write.piece.start);
    assert_eq!(outstanding, expected);
}
