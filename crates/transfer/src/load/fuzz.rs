//! The bodies of the fuzz targets: sessions and parsers that read what a server sends.

use std::ops::Range;

use super::http::{HttpFile, HttpSession, Url};
use super::nbd::{NbdSession, NbdUrl};
use super::piece::{Piece, Pieces};
use super::safetensors;
use super::session::{Next, Session};

/// Size of the source, and of its pieces.
const SOURCE_BYTES: usize = 1000;
const PIECE_BYTES: u64 = 300;

/// Feeds a session with a server's bytes, cut as `cuts` says, and checks what it makes of them.
///
/// # Panics
/// If payload has a place outside of the requested pieces, or a piece is whole without all of its bytes.
fn drive(session: &mut dyn Session, cut: usize, mut bytes: &[u8]) {
    let whole: Range<u64> = 0..SOURCE_BYTES as u64;
    let mut pieces = Pieces::new(vec![whole], PIECE_BYTES);
    let mut requested: Vec<Piece> = Vec::new();
    let mut has_come = [false; SOURCE_BYTES];
    loop {
        while let Some(piece) = pieces.peek()
            && session.accepts(piece)
        {
            session.request(piece);
            requested.extend(pieces.next());
        }
        session.outgoing().clear();
        let given = |most: usize| &bytes[..most.min(cut).min(bytes.len())];
        let (used, result) = match session.next() {
            Next::Nothing => return,
            Next::Text(_) | Next::Header(_) | Next::Skip(_) | Next::Payload { .. }
                if bytes.is_empty() =>
            {
                let _ = session.on_end();
                return;
            }
            Next::Text(most) | Next::Header(most) => {
                assert!(most > 0);
                let text = given(most);
                match session.on_text(text) {
                    Ok(used) => {
                        assert!(used <= text.len());
                        (used, Ok(()))
                    }
                    Err(fault) => (0, Err(fault)),
                }
            }
            Next::Skip(len) => {
                assert!(len > 0);
                let used = given(usize::try_from(len).unwrap_or(usize::MAX)).len();
                (used, session.on_bytes(used as u64))
            }
            Next::Payload { at, len } => {
                assert!(len > 0);
                let used = given(usize::try_from(len).unwrap_or(usize::MAX)).len();
                mark(&mut has_come, &requested, at, used as u64);
                (used, session.on_bytes(used as u64))
            }
            Next::Zeros { at, len } => {
                mark(&mut has_come, &requested, at, len);
                (0, session.on_bytes(len))
            }
        };
        bytes = &bytes[used..];
        while let Some(piece) = session.completed() {
            let range = piece.start as usize..piece.end as usize;
            assert!(has_come[range].iter().all(|byte| *byte), "{piece:?}");
            let at = requested.iter().position(|other| *other == piece);
            requested.remove(at.expect("a piece is whole once, and only if it was requested"));
        }
        if result.is_err() {
            let mut left = session.take_outstanding();
            left.sort_by_key(|piece| piece.start);
            requested.sort_by_key(|piece| piece.start);
            assert_eq!(left, requested);
            return;
        }
    }
}

/// Marks bytes as received; they must belong to a requested piece.
fn mark(has_come: &mut [bool], requested: &[Piece], at: u64, len: u64) {
    let end = at.checked_add(len).expect("the end of payload");
    let is_inside = |piece: &Piece| piece.start <= at && end <= piece.end;
    assert!(requested.iter().any(is_inside), "{at} to {end}");
    has_come[at as usize..end as usize].fill(true);
}

/// Feeds an HTTP session. Input: whether ranges are served, where the bytes are cut, the bytes of the server.
pub fn http(data: &[u8]) {
    let [kind, cut, bytes @ ..] = data else {
        return;
    };
    let file = HttpFile::of_size(SOURCE_BYTES as u64, kind & 1 == 0);
    let mut session = HttpSession::new(&file, usize::from(kind >> 1 & 3) + 1);
    drive(&mut session, usize::from(*cut).max(1), bytes);
}

/// Feeds an NBD session in its transmission phase. Input: whether replies are structured, where the bytes are cut, the
/// bytes of the server.
pub fn nbd(data: &[u8]) {
    let [kind, cut, bytes @ ..] = data else {
        return;
    };
    let mut session = NbdSession::new("host", kind & 1 == 0, usize::from(kind >> 1 & 3) + 1);
    drive(&mut session, usize::from(*cut).max(1), bytes);
}

/// Parses a safetensors file, or an index of shards.
///
/// # Panics
/// If a tensor lies outside of the file.
pub fn safetensors(data: &[u8]) {
    safetensors::fuzz(data);
}

/// Parses a URL, and a reference relative to another.
///
/// # Panics
/// If what is accepted is not written back to the same, or could end a line of a request.
pub fn url(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let base: Url = "http://host/a/b?c".parse().expect("a URL");
    for url in [text.parse::<Url>(), base.join(text)].into_iter().flatten() {
        let written = url.to_string();
        assert!(
            written.bytes().all(|byte| byte.is_ascii_graphic()),
            "{written}"
        );
        let again: Url = written.parse().expect("what was written is accepted");
        assert_eq!(again.to_string(), written);
        assert_eq!((again.host(), again.port()), (url.host(), url.port()));
    }
    if let Ok(url) = text.parse::<NbdUrl>() {
        assert!(!url.host().is_empty() && url.port() > 0);
    }
}
