//! Bytes of a connection that are in host memory already: decrypted, or moved away from a wrong place.

use super::wire::to_usize;
use crate::load::landing::Landing;
use crate::load::session::{Fault, Next, Session};

/// Most bytes to look at in search of the end of a header.
pub(super) const TEXT_BYTES: usize = 4096;

/// Gives the first of `bytes` to the session, or to the place of what comes `next`. Returns how many were taken.
pub(super) fn give(
    next: Next,
    bytes: &[u8],
    session: &mut dyn Session,
    landing: &mut Landing<'_>,
) -> Result<usize, Fault> {
    let most = match next {
        Next::Payload { at, len } => to_usize(len.min(landing.room(at))),
        Next::Skip(len) => to_usize(len),
        Next::Text(most) | Next::Header(most) => most.min(TEXT_BYTES),
        Next::Nothing | Next::Zeros { .. } => 0,
    };
    let bytes = &bytes[..most.min(bytes.len())];
    let count = bytes.len();
    match next {
        _ if count == 0 => Ok(0),
        Next::Text(_) => Ok(session.on_text(bytes)?.min(count)),
        Next::Header(_) => session.on_text(bytes).map(|_| count),
        Next::Payload { at, .. } => {
            landing.write(at, bytes)?;
            if let Some(sum) = session.checksum() {
                sum.add(bytes);
            }
            session.on_bytes(count as u64).map(|()| count)
        }
        _ => session.on_bytes(count as u64).map(|()| count),
    }
}
