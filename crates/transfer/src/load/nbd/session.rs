//! NBD on one connection: reads in flight, and replies in any order.

use std::collections::VecDeque;

use client::{LoadError, Piece};

use super::reply::{self, Content, Header, Parsed};
use super::request::{CMD_READ, Request, SHUTDOWN};
use crate::load::session::{Fault, Next, Session};
use crate::parallel::{Done, InFlight};

/// Most separate ranges of one read that wait for those between them. Servers send chunks in order.
const MAX_RANGES: usize = 1024;

/// The session of one connection.
#[derive(Debug)]
pub(crate) struct NbdSession {
    host: String,
    is_structured: bool,
    outgoing: Vec<u8>,
    /// Requested pieces, by their cookie.
    pending: InFlight<PendingRead>,
    /// Most of them.
    window: usize,
    next_cookie: u64,
    /// Bytes of an incomplete header.
    text: Vec<u8>,
    payload: Option<Payload>,
    completed: VecDeque<Piece>,
}

/// A read.
#[derive(Debug)]
struct PendingRead {
    piece: Piece,
    received: Done,
}

/// Payload that follows, from the connection or as zeros.
#[derive(Clone, Copy, Debug)]
struct Payload {
    cookie: u64,
    at: u64,
    left: u64,
    is_hole: bool,
    is_last: bool,
}

impl PendingRead {
    /// Records a range; returns whether it lies in the piece and was not received before.
    fn receive(&mut self, at: u64, len: u64) -> bool {
        let Some(end) = at.checked_add(len).filter(|end| *end <= self.piece.end) else {
            return false;
        };
        let is_inside = at >= self.piece.start && len > 0;
        if !is_inside || self.received.iter().len() >= MAX_RANGES {
            return false;
        }
        let is_new = !self.received.has_some_of(&(at..end));
        if is_new {
            self.received.add(at..end);
        }
        is_new
    }

    fn is_whole(&self) -> bool {
        let Piece { start, end } = self.piece;
        self.received.iter().eq([start..end])
    }
}

impl NbdSession {
    pub(crate) fn new(host: &str, is_structured: bool, window: usize) -> Self {
        Self {
            host: host.to_owned(),
            is_structured,
            outgoing: Vec::new(),
            pending: InFlight::default(),
            window,
            next_cookie: 1,
            text: Vec::new(),
            payload: None,
            completed: VecDeque::new(),
        }
    }

    fn invalid(&self, problem: &str) -> Fault {
        Fault::Fatal(LoadError::Invalid {
            host: self.host.clone(),
            problem: problem.into(),
        })
    }

    fn on_header(&mut self, header: Header) -> Result<(), Fault> {
        let Header {
            cookie,
            is_last,
            content,
        } = header;
        let is_simple = matches!(content, Content::All);
        let Some(pending) = self.pending.get_mut(cookie) else {
            return Err(self.invalid("a reply without a request"));
        };
        let piece = pending.piece;
        let (at, left, is_hole) = match content {
            Content::Error(SHUTDOWN) => return Err(Fault::Broken("the server shuts down".into())),
            Content::Error(errno) => {
                let host = self.host.clone();
                let at = piece.start;
                return Err(Fault::Fatal(LoadError::NbdRead { host, at, errno }));
            }
            Content::Nothing => return self.end_reply(cookie, is_last),
            Content::All => (piece.start, piece.len(), false),
            Content::Data { at, len } => (at, len, false),
            Content::Hole { at, len } => (at, len, true),
        };
        if !pending.receive(at, left) {
            return Err(self.invalid("a reply has bytes that were not requested, or some twice"));
        }
        if is_simple == self.is_structured {
            return Err(self.invalid("a reply of the kind that was not negotiated"));
        }
        self.payload = Some(Payload {
            cookie,
            at,
            left,
            is_hole,
            is_last,
        });
        Ok(())
    }

    /// Ends a reply with its last chunk: then all bytes must have come.
    fn end_reply(&mut self, cookie: u64, is_last: bool) -> Result<(), Fault> {
        if !is_last {
            return Ok(());
        }
        if !self.pending.get(cookie).is_some_and(PendingRead::is_whole) {
            return Err(self.invalid("a reply ends before its last byte"));
        }
        let pending = self.pending.remove(cookie);
        self.completed.extend(pending.map(|pending| pending.piece));
        Ok(())
    }
}

impl Session for NbdSession {
    fn accepts(&self, _: Piece) -> bool {
        self.pending.len() < self.window
    }

    fn request(&mut self, piece: Piece) {
        let cookie = self.next_cookie;
        self.next_cookie = self.next_cookie.wrapping_add(1);
        // A piece is at most 32 MiB long: see `NbdExport::max_bytes`.
        let len = u32::try_from(piece.len()).unwrap_or(u32::MAX);
        let request = Request {
            command: CMD_READ,
            flags: 0,
            cookie,
            offset: piece.start,
            len,
        };
        request.write(&mut self.outgoing);
        let received = Done::default();
        self.pending.add(cookie, PendingRead { piece, received });
    }

    fn outgoing(&mut self) -> &mut Vec<u8> {
        &mut self.outgoing
    }

    fn next(&self) -> Next {
        match self.payload {
            Some(Payload {
                at, left, is_hole, ..
            }) => match is_hole {
                true => Next::Zeros { at, len: left },
                false => Next::Payload { at, len: left },
            },
            None if self.pending.is_empty() => Next::Nothing,
            None => match reply::parse(&self.text) {
                Ok(Parsed::More(more)) => Next::Header(more),
                // `on_text` has taken whole headers, and refused wrong ones.
                Ok(Parsed::Whole(_)) | Err(_) => Next::Header(1),
            },
        }
    }

    fn on_text(&mut self, bytes: &[u8]) -> Result<usize, Fault> {
        self.text.extend_from_slice(bytes);
        match reply::parse(&self.text) {
            Ok(Parsed::More(_)) => {}
            Ok(Parsed::Whole(header)) => {
                self.text.clear();
                self.on_header(header)?;
            }
            Err(problem) => return Err(self.invalid(problem)),
        }
        Ok(bytes.len())
    }

    fn on_bytes(&mut self, len: u64) -> Result<(), Fault> {
        let Some(mut payload) = self.payload.take() else {
            return Ok(());
        };
        payload.at = payload.at.saturating_add(len);
        payload.left = payload.left.saturating_sub(len);
        if payload.left > 0 {
            self.payload = Some(payload);
            return Ok(());
        }
        self.end_reply(payload.cookie, payload.is_last)
    }

    fn on_end(&mut self) -> Fault {
        Fault::Broken("the server closed the connection".into())
    }

    fn completed(&mut self) -> Option<Piece> {
        self.completed.pop_front()
    }

    fn outstanding(&self) -> usize {
        self.pending.len()
    }

    fn take_outstanding(&mut self) -> Vec<Piece> {
        self.pending.take().map(|pending| pending.piece).collect()
    }

    fn say_goodbye(&mut self) {
        Request::GOODBYE.write(&mut self.outgoing);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending(start: u64, end: u64) -> PendingRead {
        PendingRead {
            piece: Piece { start, end },
            received: Done::default(),
        }
    }

    #[test]
    fn a_read_is_whole_when_every_byte_has_come_once() {
        let mut read = pending(100, 200);
        for (at, len) in [(150, 10), (190, 10), (100, 50), (160, 30)] {
            assert!(!read.is_whole());
            assert!(read.receive(at, len), "{at}");
        }
        assert!(read.is_whole());
        assert_eq!(read.received.iter().len(), 1);
    }

    #[test]
    fn bytes_outside_of_the_read_or_twice_are_refused() {
        let mut read = pending(100, 200);
        assert!(read.receive(120, 20));
        for (at, len) in [
            (99, 1),
            (199, 2),
            (120, 20),
            (110, 11),
            (139, 1),
            (110, 90),
            (150, 0),
            (150, u64::MAX),
        ] {
            assert!(!read.receive(at, len), "{at} {len}");
        }
        assert!(read.receive(110, 10) && read.receive(140, 1));
    }
}
