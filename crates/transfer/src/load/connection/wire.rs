//! What a connection and its two kinds of wire have in common.

use std::fmt;

use client::Transport;
use devmem_tcp::Stream;

use crate::load::landing::Landing;
use crate::load::session::{Fault, Next, Session};

/// What carries the bytes of a connection, and brings payload to its place.
pub(super) trait Wire: fmt::Debug {
    /// Returns the TCP stream.
    fn stream(&self) -> &Stream;

    /// Sends as many of `bytes` as there is room for, and removes them.
    fn send(&mut self, bytes: &mut Vec<u8>) -> Result<(), Fault>;

    /// Receives once, and gives what comes to the session or its place. Returns its bytes, `None` if there are none yet.
    fn receive(
        &mut self,
        session: &mut dyn Session,
        landing: &mut Landing<'_>,
    ) -> Result<Option<Received>, Fault>;

    /// Returns how many bytes were received and not given away.
    fn held(&self) -> usize;

    /// Prepares the place of the payload that comes next.
    fn place_next(&mut self, session: &dyn Session, landing: &Landing<'_>) -> Result<(), Fault>;

    /// Returns what it has counted.
    fn counts(&self) -> Counts;

    /// Announces the end of the connection, if the protocol has a way.
    fn say_end(&mut self);

    /// Returns the connection for another session; `None`: it has received what nobody took.
    fn into_transport(self: Box<Self>) -> Option<Transport>;
}

/// The bytes of one receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Received {
    /// All that were taken, those of headers, too.
    pub(super) bytes: u64,
    /// Those of payload.
    pub(super) payload: u64,
    /// Those of a file that was sent whole, which nobody wants: it ends.
    pub(super) skipped: u64,
}

impl Received {
    /// Counts bytes of what was to come.
    pub(super) fn count(&mut self, next: Next, bytes: u64) {
        self.bytes += bytes;
        match next {
            Next::Payload { .. } | Next::Zeros { .. } => self.payload += bytes,
            Next::Skip(_) => self.skipped += bytes,
            Next::Nothing | Next::Text(_) | Next::Header(_) => {}
        }
    }
}

/// What a wire counts beside its stream.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    /// How often other payload came than was predicted.
    pub(crate) mispredicted: u64,
    /// Payload bytes that were decrypted in host memory, and copied to their place.
    pub(crate) decrypted: u64,
}

pub(super) fn to_usize(len: u64) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}
