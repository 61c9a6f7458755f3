//! HTTP on one connection: requests in a row, and the responses to them in the same order.

mod body;
mod heads;

use std::collections::VecDeque;
use std::sync::Arc;

use client::http::{Ask, ContentRange, ErrorDetails, Head, Location, chunks, head};
use client::{Cause, ConnectionKey, LoadError, Piece, Remedy, Setting};

use self::body::{Body, Framing};
use self::heads::Heads;
use super::volume::{Placed, Volume};
use crate::load::session::{Fault, Next, Predicted, Session};
use crate::load::stale_location::StaleLocation;

/// Bytes to look at for a head.
const HEAD_PEEK_BYTES: usize = 2048;

/// The session of one connection.
#[derive(Debug)]
pub(crate) struct HttpSession {
    files: Volume,
    /// The other end of the connection. Files of other hosts need another one.
    key: ConnectionKey,
    outgoing: Vec<u8>,
    /// Requested pieces, the one of the current response first.
    pending: VecDeque<PendingPiece>,
    /// Most of them.
    window: usize,
    /// Bytes of an incomplete head.
    text: Vec<u8>,
    heads: Heads,
    state: State,
    completed: VecDeque<Piece>,
    /// What a server has left out of a piece.
    left_out: Vec<Piece>,
    /// Whether a response has said that the connection stays open.
    is_persistent: bool,
}

/// A requested piece.
#[derive(Debug)]
struct PendingPiece {
    piece: Piece,
    /// The way by which it was requested.
    location: Arc<Location>,
}

#[derive(Debug)]
enum State {
    /// Before a response.
    Head,
    Body(Body),
    /// The connection carries no more responses.
    Over,
}

impl HttpSession {
    pub(crate) fn new(files: &Volume, key: ConnectionKey, window: usize) -> Self {
        Self {
            files: files.clone(),
            key,
            outgoing: Vec::new(),
            pending: VecDeque::new(),
            window,
            text: Vec::new(),
            heads: Heads::default(),
            state: State::Head,
            completed: VecDeque::new(),
            left_out: Vec::new(),
            is_persistent: false,
        }
    }

    fn invalid(&self, problem: impl Into<Cause>) -> Fault {
        let host = match self.pending.front() {
            Some(pending) => pending.location.shown(),
            None => self.key.host.clone(),
        };
        Fault::Fatal(LoadError::Invalid {
            host,
            problem: problem.into(),
        })
    }

    /// Judges the head of the response to the first requested piece. `rest` is what has come of the body.
    fn on_head(&mut self, head: Head, rest: &[u8]) -> Result<(), Fault> {
        let Some(PendingPiece { piece, location }) = self.pending.front() else {
            return Err(self.invalid("a response without a request"));
        };
        let (piece, location) = (*piece, Arc::clone(location));
        let Some(placed) = self.files.file_at(piece.start) else {
            return Err(self.invalid("a response without a file"));
        };
        self.is_persistent = head.is_persistent;
        match head.status {
            // Informational: the response follows (RFC 9110 15.2).
            100..=199 => return Ok(()),
            200 | 206 => {}
            _ => return Err(refused(placed, location, &head, rest)),
        }
        let size = match (head.status, &head.range) {
            (200, _) => head.length.filter(|_| !head.is_chunked),
            (_, range) => range.as_ref().and_then(|range| range.size),
        };
        placed.file.check_version(size, &head)?;
        let (at, end) = match head.status {
            200 => (
                placed.start,
                placed.file.size().map(|size| placed.global(size)),
            ),
            _ => {
                let (start, end) = self.sent_range(placed, head.range.as_ref(), piece)?;
                (placed.global(start), Some(placed.global(end)))
            }
        };
        let framing = self.framing(&head, end.and_then(|end| end.checked_sub(at)))?;
        if let Some(end) = end.filter(|end| *end < piece.end && head.status == 206) {
            self.shorten(end);
        }
        let is_stream = end.is_none_or(|end| end > piece.end) || head.status == 200;
        let is_last = !head.is_persistent
            || matches!(framing, Framing::Close)
            // The responses to further requests have no use after all bytes.
            || is_stream && self.pending.len() > 1;
        self.state = State::Body(Body {
            at,
            end,
            is_stream,
            framing,
            is_last,
        });
        self.settle()
    }

    /// Returns the range of a 206 response in its file, which must have the first requested byte.
    fn sent_range(
        &self,
        placed: &Placed,
        range: Option<&ContentRange>,
        piece: Piece,
    ) -> Result<(u64, u64), Fault> {
        let Piece { start, end } = placed.local(piece);
        match range.and_then(|range| range.bytes.clone()) {
            Some(sent) if sent.contains(&start) => Ok((sent.start, sent.end)),
            Some(sent) => {
                let problem = Cause::from(format!(
                    "bytes {start} to {end} were requested, and {} to {} sent",
                    sent.start, sent.end
                ));
                let remedy =
                    Remedy::Set("requests for fewer bytes may help: {}", Setting::PieceBytes);
                Err(self.invalid(problem.with_remedy(remedy)))
            }
            None => Err(self.invalid("a part without the field Content-Range")),
        }
    }

    /// Takes the end of the first requested piece off, which the server does not send.
    fn shorten(&mut self, end: u64) {
        if let Some(first) = self.pending.front_mut() {
            self.left_out.push(Piece {
                start: end,
                end: first.piece.end,
            });
            first.piece.end = end;
        }
    }

    fn framing(&self, head: &Head, expected: Option<u64>) -> Result<Framing, Fault> {
        if head.is_chunked {
            // A length beside it does not count (RFC 9112 6.3).
            return Ok(Framing::chunked());
        }
        match (head.length, expected) {
            (Some(length), Some(expected)) if length != expected => {
                Err(self.invalid(format!("Content-Length is {length} for {expected} bytes")))
            }
            (Some(length), _) => Ok(Framing::Length(length)),
            (None, _) => Ok(Framing::Close),
        }
    }

    /// Returns the range of a requested piece in its file.
    fn range_of(&self, pending: &PendingPiece) -> Option<Piece> {
        let placed = self.files.file_at(pending.piece.start)?;
        Some(placed.local(pending.piece))
    }

    /// Returns the requested pieces whose heads have not come whole, and how many bytes of the first of these have; `None` if the connection
    /// carries other bytes, or perhaps does.
    fn unanswered(&self) -> Option<(impl Iterator<Item = &PendingPiece>, usize)> {
        let (skipped, come) = match &self.state {
            State::Head => (0, self.text.len()),
            State::Body(body) if !body.is_last && !body.is_stream && body.has_length() => (1, 0),
            State::Body(_) | State::Over => return None,
        };
        let is_in_order = self.is_persistent;
        is_in_order.then(|| (self.pending.iter().skip(skipped), come))
    }

    /// Moves on to the next piece, or to the next response, where one ends.
    fn settle(&mut self) -> Result<(), Fault> {
        let State::Body(body) = &mut self.state else {
            return Ok(());
        };
        let closes = matches!(body.framing, Framing::Close);
        let is_over = body.framing.is_over();
        while let Some(PendingPiece { piece, .. }) = self.pending.front()
            && piece.end <= body.at
            // The rest of the coding belongs to the response for one piece.
            && (body.is_stream || is_over || closes)
        {
            self.completed.push_back(*piece);
            self.pending.pop_front();
            if !body.is_stream {
                // The next response is for the next piece.
                return self.end_body();
            }
        }
        if is_over {
            let at = body.at;
            let is_missing = |pending: &PendingPiece| pending.piece.end > at;
            if self.pending.front().is_some_and(is_missing) {
                let cause = format!("the body ends at byte {at} of the file");
                return Err(Fault::Broken(cause.into()));
            }
            return self.end_body();
        }
        Ok(())
    }

    /// Goes on to the next response, if the connection carries one.
    fn end_body(&mut self) -> Result<(), Fault> {
        if !matches!(&self.state, State::Body(body) if body.is_last) {
            self.state = State::Head;
            return Ok(());
        }
        self.state = State::Over;
        match self.pending.is_empty() {
            true => Ok(()),
            // The server does not answer further requests on this connection.
            false => Err(Fault::Closed),
        }
    }
}

/// Returns what follows from a response that is no success.
fn refused(placed: &Placed, location: Arc<Location>, head: &Head, rest: &[u8]) -> Fault {
    if head.is_busy() {
        return Fault::Busy {
            cause: format!("the server answers {} {}", head.status, head.reason).into(),
            wait: head.retry_after,
        };
    }
    let refusal = ErrorDetails::of(head, rest).refused(&location.shown(), head);
    let may_have_expired = matches!(head.status, 400 | 401 | 403 | 404 | 410);
    match head.is_redirect() || may_have_expired && location.is_redirected() {
        true => Fault::StaleLocation(Box::new(StaleLocation {
            file: placed.file.clone(),
            location,
            refusal,
        })),
        false => Fault::Fatal(refusal),
    }
}

impl Session for HttpSession {
    fn accepts(&self, piece: Piece) -> bool {
        if let State::Body(body) = &self.state
            && body.is_stream
        {
            // Its bytes come by themselves, if they have not passed.
            let from = self.pending.back().map_or(body.at, |last| last.piece.end);
            let comes = piece.start >= from && body.end.is_none_or(|end| piece.end <= end);
            return comes && self.pending.len() < self.window.max(2);
        }
        let placed = self.files.file_at(piece.start);
        let is_here = placed.is_some_and(|placed| placed.file.location().leads_to(&self.key));
        let serves_ranges = placed.is_some_and(|placed| placed.file.serves_ranges());
        let window = match self.is_persistent && serves_ranges {
            true => self.window,
            // The server may close the connection after the first response, or send the whole file.
            false => 1,
        };
        is_here && !matches!(self.state, State::Over) && self.pending.len() < window
    }

    fn request(&mut self, piece: Piece) {
        let Some(placed) = self.files.file_at(piece.start) else {
            return;
        };
        let location = placed.file.location();
        let comes = matches!(&self.state, State::Body(body) if body.is_stream);
        if !comes {
            let ask = match placed.file.serves_ranges() {
                true => Ask::Range(placed.local(piece)),
                false => Ask::All,
            };
            location.request.write(ask, &mut self.outgoing);
        }
        self.pending.push_back(PendingPiece { piece, location });
    }

    fn outgoing(&mut self) -> &mut Vec<u8> {
        &mut self.outgoing
    }

    fn next(&self) -> Next {
        let Some(PendingPiece { piece, .. }) = self.pending.front() else {
            return Next::Nothing;
        };
        let body = match &self.state {
            State::Head => return Next::Text(HEAD_PEEK_BYTES),
            State::Over => return Next::Nothing,
            State::Body(body) => body,
        };
        let (at, left) = (body.at, body.framing.data_left());
        if left == 0 {
            Next::Text(chunks::PEEK_BYTES)
        } else if at < piece.start {
            Next::Skip(left.min(piece.start - at))
        } else {
            Next::Payload {
                at,
                len: left.min(piece.end.saturating_sub(at)),
            }
        }
    }

    fn predicted(&self, most: usize) -> Vec<Predicted> {
        let Some((unanswered, mut come)) = self.unanswered() else {
            return Vec::new();
        };
        let predict = |pending: &PendingPiece| {
            let head = self.heads.predict(self.range_of(pending)?)?;
            let gap = head.checked_sub(std::mem::take(&mut come))?;
            Some(Predicted {
                gap,
                at: pending.piece.start,
                len: pending.piece.len(),
            })
        };
        unanswered.take(most).map_while(predict).collect()
    }

    fn on_text(&mut self, bytes: &[u8]) -> Result<usize, Fault> {
        if let State::Body(body) = &mut self.state {
            let used = body.on_coding(bytes);
            let used = used.map_err(|problem| self.invalid(problem))?;
            self.settle()?;
            return Ok(used);
        }
        let before = self.text.len();
        self.text.extend_from_slice(bytes);
        match head::parse(&self.text) {
            Ok(None) => Ok(bytes.len()),
            Ok(Some((head, len))) => {
                let text = std::mem::take(&mut self.text);
                if head.status == 206
                    && let Some(range) = self
                        .pending
                        .front()
                        .and_then(|pending| self.range_of(pending))
                {
                    self.heads.note(len, range);
                }
                self.on_head(head, &text[len..])?;
                Ok(len.saturating_sub(before))
            }
            // The file was found by other responses. These bytes may belong to one of those, as of a server that answers HEAD with a body.
            Err(error) if !self.is_persistent => Err(Fault::Broken(error.into())),
            Err(error) => Err(self.invalid(error)),
        }
    }

    fn on_bytes(&mut self, len: u64) -> Result<(), Fault> {
        if let State::Body(body) = &mut self.state {
            body.on_data(len);
        }
        self.settle()
    }

    fn on_end(&mut self) -> Fault {
        match &self.state {
            State::Head if self.text.is_empty() => Fault::Closed,
            State::Over => Fault::Closed,
            State::Head => Fault::Broken("the connection ended in the head of a response".into()),
            // The end of the connection is the end of the file, which is too short.
            State::Body(body) if matches!(body.framing, Framing::Close) && body.end.is_none() => {
                self.invalid(format!("the file ends at byte {}", body.at))
            }
            State::Body(body) => {
                Fault::Broken(format!("the body ended at byte {}", body.at).into())
            }
        }
    }

    fn completed(&mut self) -> Option<Piece> {
        self.completed.pop_front()
    }

    fn left_out(&mut self) -> Option<Piece> {
        self.left_out.pop()
    }

    fn outstanding(&self) -> usize {
        self.pending.len()
    }

    fn take_outstanding(&mut self) -> Vec<Piece> {
        let mut pieces: Vec<_> = self
            .pending
            .drain(..)
            .map(|pending| pending.piece)
            .collect();
        // What has come of the first piece stays, unless all of it has and the response goes on: then it is not known to be right.
        if let State::Body(body) = &self.state
            && let Some(first) = pieces.first_mut()
            && (first.start + 1..first.end).contains(&body.at)
        {
            self.completed.push_back(Piece {
                start: first.start,
                end: body.at,
            });
            first.start = body.at;
        }
        self.state = State::Over;
        pieces.append(&mut self.left_out);
        pieces
    }

    fn answers_in_order(&self) -> bool {
        true
    }

    fn reusable(&self) -> Option<&ConnectionKey> {
        let is_idle = matches!(self.state, State::Head) && self.pending.is_empty();
        let is_clean = self.text.is_empty() && self.outgoing.is_empty();
        (is_idle && is_clean && self.is_persistent).then_some(&self.key)
    }
}
