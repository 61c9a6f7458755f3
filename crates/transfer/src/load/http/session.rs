//! HTTP on one connection: requests in a row, and the responses to them in the same order.

use std::collections::VecDeque;

use super::chunks::{self, Chunks};
use super::file::HttpFile;
use super::head::{self, Head};
use crate::load::error::LoadError;
use crate::load::session::{Fault, Next, Session};
use crate::parallel::Piece;

/// Bytes to look at for a head.
const HEAD_PEEK_BYTES: usize = 2048;

/// The session of one connection.
#[derive(Debug)]
pub(crate) struct HttpSession {
    file: HttpFile,
    outgoing: Vec<u8>,
    /// Requested pieces, the one of the current response first.
    asked: VecDeque<Piece>,
    /// Most of them.
    window: usize,
    /// Bytes of an incomplete head.
    text: Vec<u8>,
    state: State,
    completed: VecDeque<Piece>,
    /// Whether a response has said that the connection stays open.
    is_persistent: bool,
}

#[derive(Debug)]
enum State {
    /// Before a response.
    Head,
    Body(Body),
    /// The connection carries no more responses.
    Over,
}

/// The body of a response.
#[derive(Debug)]
struct Body {
    /// Offset of its next byte in the file.
    at: u64,
    /// Whether it is the whole file, although a range was requested.
    is_whole_file: bool,
    framing: Framing,
    is_last: bool,
}

/// How the end of a body is found.
#[derive(Debug)]
enum Framing {
    /// After this many more bytes.
    Length(u64),
    Chunked(Chunks),
    /// At the end of the connection.
    Close,
}

impl Framing {
    fn is_over(&self) -> bool {
        match self {
            Self::Length(left) => *left == 0,
            Self::Chunked(chunks) => chunks.is_over(),
            Self::Close => false,
        }
    }

    /// Returns how many payload bytes follow; 0 if the next bytes belong to the coding.
    fn data_left(&self) -> u64 {
        match self {
            Self::Length(left) => *left,
            Self::Chunked(chunks) => chunks.data_left(),
            Self::Close => u64::MAX,
        }
    }
}

impl HttpSession {
    pub(crate) fn new(file: &HttpFile, window: usize) -> Self {
        Self {
            file: file.clone(),
            outgoing: Vec::new(),
            asked: VecDeque::new(),
            window,
            text: Vec::new(),
            state: State::Head,
            completed: VecDeque::new(),
            is_persistent: false,
        }
    }

    fn invalid(&self, problem: impl Into<String>) -> Fault {
        Fault::Fatal(LoadError::Invalid {
            host: self.file.host(),
            problem: problem.into(),
        })
    }

    /// Judges the head of the response to the first requested piece.
    fn on_head(&mut self, head: Head) -> Result<(), Fault> {
        let Some(&piece) = self.asked.front() else {
            return Err(self.invalid("a response without a request"));
        };
        self.is_persistent = head.is_persistent;
        let is_whole_file = match head.status {
            // Informational: the response follows (RFC 9110 15.2).
            100..=199 => return Ok(()),
            206 => false,
            200 => true,
            408 | 429 | 500..=599 => {
                return Err(Fault::Busy {
                    cause: format!("the server answers {} {}", head.status, head.reason).into(),
                    wait: head.retry_after,
                });
            }
            _ => return Err(Fault::Fatal(self.file.refused(&head))),
        };
        self.file.check_version(&head)?;
        let at = match is_whole_file {
            true => 0,
            false => self.start_of_range(&head, piece)?,
        };
        let framing = self.framing(&head, is_whole_file, piece)?;
        let is_last = !head.is_persistent
            || matches!(framing, Framing::Close)
            // The responses to further requests have no use after the whole file.
            || is_whole_file && self.asked.len() > 1;
        self.state = State::Body(Body {
            at,
            is_whole_file,
            framing,
            is_last,
        });
        self.settle()
    }

    /// Returns the start of a 206 response, which must have the requested bytes.
    fn start_of_range(&self, head: &Head, piece: Piece) -> Result<u64, Fault> {
        let range = head.range.as_ref().and_then(|range| range.bytes.clone());
        match range {
            Some(range) if range == (piece.start..piece.end) => Ok(piece.start),
            Some(range) => Err(self.invalid(format!(
                "bytes {} to {} were requested, and {} to {} sent",
                piece.start, piece.end, range.start, range.end
            ))),
            None => Err(self.invalid("a part without the field Content-Range")),
        }
    }

    fn framing(&self, head: &Head, is_whole_file: bool, piece: Piece) -> Result<Framing, Fault> {
        if head.is_chunked {
            // A length beside it does not count (RFC 9112 6.3).
            return Ok(Framing::Chunked(Chunks::new()));
        }
        let expected = match is_whole_file {
            true => self.file.size(),
            false => Some(piece.len()),
        };
        match (head.length, expected) {
            (Some(length), Some(expected)) if length != expected => {
                Err(self.invalid(format!("Content-Length is {length} for {expected} bytes")))
            }
            (Some(length), _) => Ok(Framing::Length(length)),
            (None, _) => Ok(Framing::Close),
        }
    }

    /// Moves on to the next piece, or to the next response, where one ends.
    fn settle(&mut self) -> Result<(), Fault> {
        let State::Body(body) = &mut self.state else {
            return Ok(());
        };
        let closes = matches!(body.framing, Framing::Close);
        let is_over = body.framing.is_over();
        while let Some(piece) = self.asked.front()
            && piece.end <= body.at
            // The rest of the coding belongs to the response for one piece.
            && (body.is_whole_file || is_over || closes)
        {
            self.completed.extend(self.asked.pop_front());
            if !body.is_whole_file {
                // The next response is for the next piece.
                return self.end_body();
            }
        }
        if is_over {
            let at = body.at;
            if self.asked.front().is_some_and(|piece| piece.end > at) {
                return Err(self.invalid(format!("the body ends at byte {at} of the file")));
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
        match self.asked.is_empty() {
            true => Ok(()),
            // The server does not answer further requests on this connection.
            false => Err(Fault::Closed),
        }
    }
}

impl Session for HttpSession {
    fn accepts(&self, piece: Piece) -> bool {
        if let State::Body(body) = &self.state
            && body.is_whole_file
        {
            // Its bytes come by themselves, if they have not passed.
            let from = self.asked.back().map_or(body.at, |last| last.end);
            return piece.start >= from && self.asked.len() < self.window.max(2);
        }
        let window = match self.is_persistent && self.file.serves_ranges() {
            true => self.window,
            // The server may close the connection after the first response, or send the whole file.
            false => 1,
        };
        !matches!(self.state, State::Over) && self.asked.len() < window
    }

    fn request(&mut self, piece: Piece) {
        let comes = matches!(&self.state, State::Body(body) if body.is_whole_file);
        if !comes {
            let range = self.file.serves_ranges().then_some(piece);
            self.file.request().write(range, &mut self.outgoing);
        }
        self.asked.push_back(piece);
    }

    fn outgoing(&mut self) -> &mut Vec<u8> {
        &mut self.outgoing
    }

    fn next(&self) -> Next {
        let Some(piece) = self.asked.front() else {
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

    fn on_text(&mut self, bytes: &[u8]) -> Result<usize, Fault> {
        if let State::Body(body) = &mut self.state {
            let at = body.at;
            let Framing::Chunked(chunks) = &mut body.framing else {
                return Ok(0);
            };
            let read = chunks.on_text(bytes);
            let (left, is_whole_file) = (chunks.data_left(), body.is_whole_file);
            let used = read.map_err(|problem| self.invalid(problem))?;
            let end = self.asked.front().map_or(at, |piece| piece.end);
            if !is_whole_file && at.checked_add(left).is_none_or(|reach| reach > end) {
                return Err(self.invalid("the body is longer than the requested range"));
            }
            self.settle()?;
            return Ok(used);
        }
        let before = self.text.len();
        self.text.extend_from_slice(bytes);
        match head::parse(&self.text) {
            Ok(None) => Ok(bytes.len()),
            Ok(Some((head, len))) => {
                self.text.clear();
                self.on_head(head)?;
                Ok(len.saturating_sub(before))
            }
            Err(error) => Err(self.invalid(error.to_string())),
        }
    }

    fn on_bytes(&mut self, len: u64) -> Result<(), Fault> {
        if let State::Body(body) = &mut self.state {
            body.at = body.at.saturating_add(len);
            match &mut body.framing {
                Framing::Length(left) => *left = left.saturating_sub(len),
                Framing::Chunked(chunks) => chunks.on_data(len),
                Framing::Close => {}
            }
        }
        self.settle()
    }

    fn on_end(&mut self) -> Fault {
        match &self.state {
            State::Head if self.text.is_empty() => Fault::Closed,
            State::Over => Fault::Closed,
            State::Head => Fault::Broken("the connection ended in the head of a response".into()),
            State::Body(body) if matches!(body.framing, Framing::Close) && body.is_whole_file => {
                match self.file.size() {
                    // The end of the connection is the end of the file, which is too short.
                    None => self.invalid(format!("the file ends at byte {}", body.at)),
                    Some(_) => Fault::Broken(format!("the body ended at byte {}", body.at).into()),
                }
            }
            State::Body(body) => {
                Fault::Broken(format!("the body ended at byte {}", body.at).into())
            }
        }
    }

    fn completed(&mut self) -> Option<Piece> {
        self.completed.pop_front()
    }

    fn outstanding(&self) -> usize {
        self.asked.len()
    }

    fn take_outstanding(&mut self) -> Vec<Piece> {
        self.state = State::Over;
        self.asked.drain(..).collect()
    }
}
