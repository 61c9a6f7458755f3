//! The interface of a protocol: what to send on one connection, and what the received bytes are. No I/O.

use std::fmt;
use std::time::Duration;

use client::{Cause, ConnectionKey, LoadError, Piece};

use super::stale_location::StaleLocation;
use crate::checksum::Crc32c;

/// What the next bytes of a connection are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Unknown, because nothing is requested.
    Nothing,
    /// A header whose length is found by reading it: look at up to this many bytes without taking them.
    Text(usize),
    /// At least this many bytes of a header: none of its payload among them.
    Header(usize),
    /// Payload: up to `len` bytes, of which the first is at `at` in the source.
    Payload { at: u64, len: u64 },
    /// No bytes: the payload of `len` bytes from `at` on is zeros, which the server does not send.
    Zeros { at: u64, len: u64 },
    /// Up to this many bytes that nobody wants.
    Skip(u64),
}

/// Payload that is likely to come behind what is known to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Predicted {
    /// Bytes before it: from the end of the payload before it, or from the next byte on.
    pub(crate) gap: usize,
    /// Offset of its first byte in the source.
    pub(crate) at: u64,
    /// Its length.
    pub(crate) len: u64,
}

/// The protocol on one connection.
pub(crate) trait Session: fmt::Debug {
    /// Returns whether `piece` can be requested on this connection now.
    fn accepts(&self, piece: Piece) -> bool;

    /// Requests a piece that is [accepted](Self::accepts).
    fn request(&mut self, piece: Piece);

    /// Returns the bytes to send. The connection removes those that it has sent.
    fn outgoing(&mut self) -> &mut Vec<u8>;

    /// Returns what the next bytes are.
    fn next(&self) -> Next;

    /// Returns the payload that is likely to come behind what comes next, if the requests in flight and their lengths tell: up to
    /// `most` ranges of it, each behind a gap.
    fn predicted(&self, most: usize) -> Vec<Predicted> {
        let _ = most;
        Vec::new()
    }

    /// Takes bytes after [`Next::Text`] or [`Next::Header`], at least one, and returns how many of them belong to the header.
    ///
    /// # Errors
    /// The header is invalid, or an error.
    fn on_text(&mut self, bytes: &[u8]) -> Result<usize, Fault>;

    /// Counts bytes after [`Next::Payload`], [`Next::Zeros`] or [`Next::Skip`].
    ///
    /// # Errors
    /// The response is complete, but not the piece.
    fn on_bytes(&mut self, len: u64) -> Result<(), Fault>;

    /// Returns the checksum that the payload of [`Next::Payload`] is added to, before its bytes are counted, if the protocol
    /// has one.
    fn checksum(&mut self) -> Option<&mut Crc32c> {
        None
    }

    /// Returns why the connection ended, after its last byte.
    fn on_end(&mut self) -> Fault;

    /// Returns a piece that has become whole, once.
    fn completed(&mut self) -> Option<Piece>;

    /// Returns a part of a requested piece that the server leaves out of its answer, once: it is to be requested again.
    fn left_out(&mut self) -> Option<Piece> {
        None
    }

    /// Returns the number of pieces that were requested and are not whole.
    fn outstanding(&self) -> usize;

    /// Returns whether the server answers one request after the other: some servers stop if there are others behind.
    fn answers_in_order(&self) -> bool {
        false
    }

    /// Returns whether a response is awaited.
    fn is_waiting(&self) -> bool {
        self.outstanding() > 0
    }

    /// Takes the pieces that were requested and are not whole. What has come of one, and stays, is [completed](Self::completed) then.
    fn take_outstanding(&mut self) -> Vec<Piece>;

    /// Returns the other end of the connection, if it takes requests of another session now.
    fn reusable(&self) -> Option<&ConnectionKey> {
        None
    }

    /// Prepares the message that ends a connection, if the protocol has one.
    fn say_goodbye(&mut self) {}

    /// Returns the message that tells the server of its mistake after a fault, once, if the protocol has one.
    fn last_word(&mut self) -> Option<Vec<u8>> {
        None
    }
}

/// Why a connection cannot be used any more.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The server closed it between responses, as servers may.
    Closed,
    /// It broke, or stopped: another one may do better.
    Broken(Cause),
    /// The server asks to come back later.
    Busy {
        cause: Cause,
        wait: Option<Duration>,
    },
    /// The file is not there any more: the user's URL is asked again.
    StaleLocation(Box<StaleLocation>),
    /// No other connection would do better.
    Fatal(LoadError),
}

impl From<LoadError> for Fault {
    fn from(error: LoadError) -> Self {
        Self::Fatal(error)
    }
}
