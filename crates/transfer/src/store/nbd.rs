//! NBD on one connection that writes: requests in flight, and replies in any order. No I/O.

use std::collections::VecDeque;

use super::error::{Operation, StoreError};
use super::session::{Acknowledge, Fault, Outgoing, Session, Write};
use crate::load::LoadError;
use crate::load::nbd::reply::{self, Content, Header, Parsed};
use crate::load::nbd::request::{
    CMD_FLUSH, CMD_TRIM, CMD_WRITE, CMD_WRITE_ZEROES, FLAG_FUA, REQUEST_BYTES, Request, SHUTDOWN,
};
use crate::parallel::InFlight;

/// The session of one connection.
#[derive(Debug)]
pub(crate) struct NbdSession {
    host: String,
    is_structured: bool,
    acknowledge: Acknowledge,
    /// Most requests in flight. A flush may be one more.
    window: usize,
    /// Requests without a reply, by their cookie.
    pending: InFlight<Write>,
    next_cookie: u64,
    /// Bytes of an incomplete reply.
    text: Vec<u8>,
    completed: VecDeque<(u64, Write)>,
    outgoing: VecDeque<Outgoing>,
}

impl NbdSession {
    pub(crate) fn new(
        host: &str,
        is_structured: bool,
        acknowledge: Acknowledge,
        window: usize,
    ) -> Self {
        Self {
            host: host.to_owned(),
            is_structured,
            acknowledge,
            window,
            pending: InFlight::default(),
            next_cookie: 1,
            text: Vec::new(),
            completed: VecDeque::new(),
            outgoing: VecDeque::new(),
        }
    }

    /// Returns the header of a request.
    fn header(&self, cookie: u64, write: Write) -> Vec<u8> {
        let (command, flags) = match (write.operation, self.acknowledge) {
            (Operation::Flush, _) => (CMD_FLUSH, 0),
            (operation, acknowledge) => (command(operation), flags(acknowledge)),
        };
        let mut header = Vec::with_capacity(REQUEST_BYTES);
        let request = Request {
            command,
            flags,
            cookie,
            offset: write.piece.start,
            // A piece is at most 32 MiB long: see `NbdExport::max_bytes`.
            len: u32::try_from(write.piece.len()).unwrap_or(u32::MAX),
        };
        request.write(&mut header);
        header
    }

    fn on_reply(&mut self, header: Header) -> Result<(), Fault> {
        let Header {
            cookie,
            is_last,
            content,
        } = header;
        let Some(write) = self.pending.get(cookie).copied() else {
            return Err(self.invalid("a reply without a request"));
        };
        match content {
            Content::Error(SHUTDOWN) => return Err(Fault::Broken("the server shuts down".into())),
            Content::Error(errno) => return Err(self.refused(write, errno)),
            // A server may answer any request but a read with a simple reply.
            Content::All => {}
            Content::Nothing if self.is_structured && is_last => {}
            Content::Nothing => {
                return Err(self.invalid("a reply of the kind that was not negotiated"));
            }
            Content::Data { .. } | Content::Hole { .. } => {
                return Err(self.invalid("the reply to a write has payload"));
            }
        }
        self.pending.remove(cookie);
        self.completed.push_back((cookie, write));
        Ok(())
    }

    fn refused(&self, write: Write, errno: u32) -> Fault {
        Fault::Fatal(StoreError::Server {
            host: self.host.clone(),
            operation: write.operation,
            start: write.piece.start,
            end: write.piece.end,
            errno,
        })
    }
}

impl Session for NbdSession {
    fn accepts(&self) -> bool {
        self.pending.len() < self.window
    }

    /// The payload of a write follows its header.
    fn request(&mut self, write: Write) -> u64 {
        let cookie = self.next_cookie;
        self.next_cookie = self.next_cookie.wrapping_add(1);
        let header = self.header(cookie, write);
        self.outgoing.push_back(Outgoing::Text(header));
        let payload = write.payload_bytes();
        if payload > 0 {
            self.outgoing.push_back(Outgoing::Payload {
                id: cookie,
                range: 0..payload,
            });
        }
        self.pending.add(cookie, write);
        cookie
    }

    fn outgoing(&mut self) -> Option<Outgoing> {
        self.outgoing.pop_front()
    }

    fn missing(&self) -> usize {
        match reply::parse(&self.text) {
            _ if self.pending.is_empty() => 0,
            Ok(Parsed::More(more)) => more,
            // `on_text` has taken whole replies, and refused wrong ones.
            Ok(Parsed::Whole(_)) | Err(_) => 1,
        }
    }

    fn on_text(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.text.extend_from_slice(bytes);
        match reply::parse(&self.text) {
            Ok(Parsed::More(_)) => Ok(()),
            Ok(Parsed::Whole(header)) => {
                self.text.clear();
                self.on_reply(header)
            }
            Err(problem) => Err(self.invalid(problem)),
        }
    }

    fn on_end(&self) -> Fault {
        Fault::Broken("the server closed the connection".into())
    }

    fn invalid(&mut self, problem: &'static str) -> Fault {
        let (host, problem) = (self.host.clone(), problem.to_owned());
        LoadError::Invalid {
            host,
            problem: problem.into(),
        }
        .into()
    }

    fn completed(&mut self) -> Option<(u64, Write)> {
        self.completed.pop_front()
    }

    fn is_waiting(&self) -> bool {
        !self.pending.is_empty()
    }

    fn take_outstanding(&mut self) -> Vec<Write> {
        self.pending.take().collect()
    }

    fn goodbye(&self) -> Vec<u8> {
        let mut goodbye = Vec::new();
        Request::GOODBYE.write(&mut goodbye);
        goodbye
    }
}

fn command(operation: Operation) -> u16 {
    match operation {
        Operation::Write => CMD_WRITE,
        Operation::WriteZeroes => CMD_WRITE_ZEROES,
        Operation::Trim => CMD_TRIM,
        Operation::Flush => CMD_FLUSH,
    }
}

fn flags(acknowledge: Acknowledge) -> u16 {
    match acknowledge {
        Acknowledge::Received => 0,
        Acknowledge::Durable => FLAG_FUA,
    }
}

/// Feeds an NBD session with a server's bytes, for the fuzz target.
#[cfg(feature = "test-util")]
pub(crate) fn fuzz(is_structured: bool, window: usize, cut: u8, bytes: &[u8]) {
    let session = NbdSession::new("host", is_structured, Acknowledge::Received, window);
    super::fuzz::drive(Box::new(session), cut, bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use client::Piece;

    fn write(start: u64) -> Write {
        let end = start + 512;
        Write {
            operation: Operation::Write,
            piece: Piece { start, end },
        }
    }

    fn session(is_structured: bool, acknowledge: Acknowledge) -> NbdSession {
        NbdSession::new("host", is_structured, acknowledge, 2)
    }

    /// A simple reply.
    fn simple(cookie: u64, errno: u32) -> Vec<u8> {
        let mut bytes = 0x6744_6698u32.to_be_bytes().to_vec();
        bytes.extend(errno.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes
    }

    /// A last chunk without payload.
    fn none(cookie: u64) -> Vec<u8> {
        let mut bytes = 0x668e_33efu32.to_be_bytes().to_vec();
        bytes.extend([0, 1, 0, 0]);
        bytes.extend(cookie.to_be_bytes());
        bytes.extend([0; 4]);
        bytes
    }

    /// Makes a request; returns its cookie and its header.
    fn request(session: &mut NbdSession, write: Write) -> (u64, Vec<u8>) {
        let cookie = session.request(write);
        let Some(Outgoing::Text(header)) = session.outgoing() else {
            panic!("a request begins with its header");
        };
        if write.payload_bytes() > 0 {
            let range = 0..write.payload_bytes();
            let payload = Outgoing::Payload { id: cookie, range };
            assert_eq!(session.outgoing(), Some(payload));
        }
        assert_eq!(session.outgoing(), None);
        (cookie, header)
    }

    fn feed(session: &mut NbdSession, mut bytes: &[u8]) -> Result<(), Fault> {
        while !bytes.is_empty() && session.missing() > 0 {
            let (now, rest) = bytes.split_at(session.missing().min(bytes.len()));
            session.on_text(now)?;
            bytes = rest;
        }
        Ok(())
    }

    #[test]
    fn replies_of_both_kinds_come_in_any_order() {
        let mut session = session(true, Acknowledge::Received);
        let (first, header) = request(&mut session, write(0));
        assert_eq!(header.len(), REQUEST_BYTES);
        let (second, _) = request(&mut session, write(512));
        assert!(!session.accepts());
        feed(&mut session, &[none(second), simple(first, 0)].concat()).unwrap();
        assert_eq!(session.completed(), Some((second, write(512))));
        assert_eq!(session.completed(), Some((first, write(0))));
        assert!(!session.is_waiting() && session.missing() == 0);
    }

    #[test]
    fn fua_is_a_flag_of_writes_and_not_of_a_flush() {
        let mut session = session(false, Acknowledge::Durable);
        let flags = |header: Vec<u8>| u16::from_be_bytes([header[4], header[5]]);
        assert_eq!(flags(request(&mut session, write(0)).1), FLAG_FUA);
        let flush = Write {
            operation: Operation::Flush,
            piece: Piece { start: 0, end: 0 },
        };
        assert_eq!(flags(request(&mut session, flush).1), 0);
    }

    #[test]
    fn an_error_is_fatal_with_its_range_and_a_shutdown_breaks_the_connection() {
        let mut a = session(false, Acknowledge::Received);
        let (cookie, _) = request(&mut a, write(1024));
        let Err(Fault::Fatal(error)) = feed(&mut a, &simple(cookie, 28)) else {
            panic!("ENOSPC is no success");
        };
        let text = format!("{error}; {}", error.remedy().unwrap());
        assert!(
            text.contains("write bytes 1024 to 1536: No space left"),
            "{text}"
        );
        assert!(text.contains("make room"), "{text}");
        let (cookie, _) = request(&mut a, write(0));
        let broken = feed(&mut a, &simple(cookie, SHUTDOWN));
        assert!(matches!(broken, Err(Fault::Broken(_))), "{broken:?}");
        assert_eq!(a.take_outstanding().len(), 2);
    }

    #[test]
    fn replies_that_no_request_explains_are_invalid() {
        let mut bytes = none(1);
        bytes[5] = 0;
        for (is_structured, bytes) in [
            (true, none(9)),
            (false, none(1)),
            (true, bytes),
            (true, vec![7; 16]),
        ] {
            let mut session = session(is_structured, Acknowledge::Received);
            let _ = request(&mut session, write(0));
            let fault = feed(&mut session, &bytes).unwrap_err();
            assert!(matches!(
                fault,
                Fault::Fatal(StoreError::Export(LoadError::Invalid { .. }))
            ));
        }
    }
}
