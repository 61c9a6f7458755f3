//! The interface of a protocol that writes: what to send on one connection, and what the received bytes are. No I/O.

use std::fmt;
use std::ops::Range;

use client::{Cause, Piece};

use super::error::{Operation, StoreError};
use crate::load::LoadError;

/// Why a connection cannot be used any more.
#[derive(Debug)]
pub(crate) enum Fault {
    /// It broke, or stopped: another one may do better.
    Broken(Cause),
    /// No other connection would do better.
    Fatal(StoreError),
}

impl From<LoadError> for Fault {
    fn from(error: LoadError) -> Self {
        Self::Fatal(error.into())
    }
}

/// A request that awaits its reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Write {
    pub(crate) operation: Operation,
    /// The range of the sink; empty for a flush.
    pub(crate) piece: Piece,
}

impl Write {
    /// Returns the length of the payload that is sent for it.
    pub(crate) fn payload_bytes(&self) -> u64 {
        match self.operation {
            Operation::Write => self.piece.len(),
            Operation::WriteZeroes | Operation::Trim | Operation::Flush => 0,
        }
    }
}

/// When the server may acknowledge a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Acknowledge {
    /// When it has the bytes.
    Received,
    /// When they are on storage (FUA).
    Durable,
}

/// What to send next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outgoing {
    /// These bytes.
    Text(Vec<u8>),
    /// A range of the payload of the request `id`, from where it lies.
    Payload { id: u64, range: Range<u64> },
    /// The CRC-32C of a range of the payload, least significant byte first.
    Digest { id: u64, range: Range<u64> },
}

/// The protocol on one connection.
pub(crate) trait Session: fmt::Debug {
    /// Returns whether another piece can be requested now. A flush may be one more.
    fn accepts(&self) -> bool;

    /// Makes a request; returns its name, which no other request of the connection has.
    fn request(&mut self, write: Write) -> u64;

    /// Returns what to send next, once.
    fn outgoing(&mut self) -> Option<Outgoing>;

    /// Returns how many bytes to receive next: they belong to a reply. 0 if none is awaited.
    fn missing(&self) -> usize;

    /// Takes received bytes, at most those that are [missing](Self::missing).
    ///
    /// # Errors
    /// The reply is invalid, or an error.
    fn on_text(&mut self, bytes: &[u8]) -> Result<(), Fault>;

    /// Returns why the connection ended, after its last byte.
    fn on_end(&self) -> Fault;

    /// Returns the fault of a server that breaks the rules.
    fn invalid(&mut self, problem: &'static str) -> Fault;

    /// Returns a request that was acknowledged, once, with its name.
    fn completed(&mut self) -> Option<(u64, Write)>;

    /// Returns whether a reply is awaited.
    fn is_waiting(&self) -> bool;

    /// Takes the requests without a reply.
    fn take_outstanding(&mut self) -> Vec<Write>;

    /// Checks that nothing outside of the connection has ended it.
    ///
    /// # Errors
    /// It may not be used any more.
    fn check(&self) -> Result<(), Fault> {
        Ok(())
    }

    /// Returns the message that ends a connection, if the protocol has one.
    fn goodbye(&self) -> Vec<u8> {
        Vec::new()
    }

    /// Returns the message that tells the server of its mistake after a fault, once, if the protocol has one.
    fn last_word(&mut self) -> Option<Vec<u8>> {
        None
    }
}
