//! Feeds sessions that read, and parsers, with what a server sends, for the fuzz targets.

use std::ops::Range;

use client::http::HttpFile;
use client::nbd::NbdUrl;
use client::nvme::{Limits, Membership, NvmeUrl};
use client::url::Url;
use client::{ConnectionKey, Piece};

use ::nvme::pdu::Digests;

use super::http::{HttpSession, Volume};
use super::nbd::NbdSession;
use super::nvme::NvmeSession;
use super::safetensors;
use super::session::{Fault, Next, Predicted, Session};
use crate::parallel::Pieces;

/// Size of the source, and of its pieces.
const SOURCE_BYTES: usize = 1000;
const PIECE_BYTES: u64 = 300;
/// Those of whole blocks.
const BLOCKS_BYTES: usize = 4096;
const BLOCKS_PIECE_BYTES: u64 = 1024;

/// A session that is fed with a server's bytes.
struct Feed<'a> {
    session: &'a mut dyn Session,
    /// Most bytes of one step.
    cut: usize,
    bytes: &'a [u8],
    requested: Vec<Piece>,
    /// Bytes of the source that have come.
    has_come: Vec<bool>,
}

/// Feeds a session, and checks what it makes of the bytes.
///
/// # Panics
/// If payload has a place outside of the requested pieces, or a piece is whole without all of its bytes.
fn drive(session: &mut dyn Session, cut: usize, bytes: &[u8]) {
    drive_source(session, (SOURCE_BYTES, PIECE_BYTES), cut, bytes);
}

/// The same with a source of another size, and its pieces.
fn drive_source(
    session: &mut dyn Session,
    (source_bytes, piece_bytes): (usize, u64),
    cut: usize,
    bytes: &[u8],
) {
    let whole: Range<u64> = 0..source_bytes as u64;
    let mut pieces = Pieces::new(vec![whole], piece_bytes);
    let mut feed = Feed {
        session,
        cut,
        bytes,
        requested: Vec::new(),
        has_come: vec![false; source_bytes],
    };
    loop {
        while let Some(piece) = pieces.peek()
            && feed.session.accepts(piece)
        {
            feed.session.request(piece);
            feed.requested.extend(pieces.next());
        }
        feed.session.outgoing().clear();
        let next = feed.session.next();
        if next == Next::Nothing {
            return;
        }
        if feed.bytes.is_empty() && !matches!(next, Next::Zeros { .. }) {
            let _ = feed.session.on_end();
            return;
        }
        feed.check_predicted();
        let stepped = feed.step(next);
        feed.check_completed();
        while let Some(piece) = feed.session.left_out() {
            feed.shorten(piece);
            pieces.put_back(piece);
        }
        if stepped.is_err() {
            return feed.check_outstanding();
        }
    }
}

impl Feed<'_> {
    fn step(&mut self, next: Next) -> Result<(), Fault> {
        match next {
            Next::Nothing => Ok(()),
            Next::Text(most) | Next::Header(most) => {
                assert!(most > 0);
                let text = &self.bytes[..self.given(most as u64)];
                let used = self.session.on_text(text)?;
                assert!(used <= text.len());
                self.bytes = &self.bytes[used..];
                Ok(())
            }
            Next::Skip(len) => self.pass(len),
            Next::Payload { at, len } => {
                let given = self.given(len);
                self.mark(at, given as u64);
                if let Some(sum) = self.session.checksum() {
                    sum.add(&self.bytes[..given]);
                }
                self.pass(len)
            }
            Next::Zeros { at, len } => {
                self.mark(at, len);
                self.session.on_bytes(len)
            }
        }
    }

    /// Returns how many bytes one step gives if it may give `most`.
    fn given(&self, most: u64) -> usize {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        most.min(self.cut).min(self.bytes.len())
    }

    fn pass(&mut self, len: u64) -> Result<(), Fault> {
        assert!(len > 0);
        let used = self.given(len);
        self.bytes = &self.bytes[used..];
        self.session.on_bytes(used as u64)
    }

    /// Marks bytes as received; they must belong to a requested piece.
    fn mark(&mut self, at: u64, len: u64) {
        let end = at.checked_add(len).expect("the end of payload");
        let is_inside = |piece: &Piece| piece.start <= at && end <= piece.end;
        assert!(self.requested.iter().any(is_inside), "{at} to {end}");
        self.has_come[at as usize..end as usize].fill(true);
    }

    /// Predicted payload belongs to requested pieces, has not come, and is predicted once.
    fn check_predicted(&self) {
        let mut has_come = self.has_come.clone();
        for Predicted { at, len, .. } in self.session.predicted(5) {
            let end = at.checked_add(len).expect("the end of payload");
            let is_inside = |piece: &Piece| piece.start <= at && end <= piece.end;
            assert!(
                len > 0 && self.requested.iter().any(is_inside),
                "{at} to {end}"
            );
            let range = &mut has_come[at as usize..end as usize];
            assert!(range.iter().all(|byte| !*byte), "{at} to {end}");
            range.fill(true);
        }
    }

    /// Takes the end of a requested piece off, which the server leaves out.
    fn shorten(&mut self, left_out: Piece) {
        let is_of = |other: &&mut Piece| other.end == left_out.end && other.start < left_out.start;
        let piece = self.requested.iter_mut().find(is_of);
        piece.expect("a part of a requested piece is left out").end = left_out.start;
    }

    fn check_completed(&mut self) {
        while let Some(piece) = self.session.completed() {
            let range = piece.start as usize..piece.end as usize;
            assert!(self.has_come[range].iter().all(|byte| *byte), "{piece:?}");
            let is_of = |other: &Piece| other.start == piece.start && piece.end <= other.end;
            let at = self.requested.iter().position(is_of);
            let at = at.expect("a piece is whole once, and only if it was requested");
            // Its beginning: a server has left the rest out, or it stays when the connection ends.
            self.requested[at].start = piece.end;
            if self.requested[at].start == self.requested[at].end {
                self.requested.remove(at);
            }
        }
    }

    /// Checks that every piece is whole or can be requested again.
    fn check_outstanding(mut self) {
        let mut left = self.session.take_outstanding();
        self.check_completed();
        left.sort_by_key(|piece| piece.start);
        self.requested.sort_by_key(|piece| piece.start);
        assert_eq!(left, self.requested);
    }
}

/// Feeds an HTTP session. Input: whether ranges are served, where the bytes are cut, the bytes of the server.
pub fn http(data: &[u8]) {
    let [kind, cut, bytes @ ..] = data else {
        return;
    };
    let file = HttpFile::of_size(SOURCE_BYTES as u64, kind & 1 == 0);
    let key = ConnectionKey {
        host: "host".to_owned(),
        port: 80,
        tls: None,
    };
    let mut session = HttpSession::new(&Volume::of(&file), key, usize::from(kind >> 1 & 3) + 1);
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

/// Feeds a queue that reads from an NVMe controller. Input: the digests and the number of commands in flight, where the bytes
/// are cut, the bytes of the controller.
pub fn nvme(data: &[u8]) {
    let [kind, cut, bytes @ ..] = data else {
        return;
    };
    let window = usize::from(kind >> 2 & 3) + 1;
    let (limits, digests) = (Limits::FOR_TESTS, Digests::of_bits(*kind));
    let mut session = NvmeSession::new("host", limits, digests, window, Membership::of_nobody());
    let source = (BLOCKS_BYTES, BLOCKS_PIECE_BYTES);
    drive_source(&mut session, source, usize::from(*cut).max(1), bytes);
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
    if let Ok(url) = text.parse::<NvmeUrl>() {
        let written = url.to_string();
        assert!(
            written.bytes().all(|byte| byte.is_ascii_graphic()),
            "{written}"
        );
        assert_eq!(written.parse::<NvmeUrl>().as_ref(), Ok(&url), "{written}");
    }
}
