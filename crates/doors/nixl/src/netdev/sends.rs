//! Sends from memory of GPUs, without a copy: TCP has the bytes where they are until the peer has acknowledged them.

use std::io;

use devmem_tcp::{Completions, Interest, Stream};

use crate::raw::scatter::{Lists, Scatter};

/// Sends that are not complete, from which on nothing more is sent. A peer decides how many bytes TCP takes at a time: if it is one, each of
/// them would be a send of its own to remember.
const MAX_FLIGHT: u64 = 4096;

/// The sends of a connection.
#[derive(Debug, Default)]
pub(super) struct Sends {
    /// Made at the first send.
    completions: Option<Completions>,
    bytes: u64,
}

impl Sends {
    /// Queues what there is room for of the next places, which are memory of a GPU.
    pub(super) fn send(
        &mut self,
        stream: &mut Stream,
        from: &mut Scatter,
        at_most: usize,
        lists: &mut Lists,
    ) -> io::Result<usize> {
        let completions = self.completions.get_or_insert_with(|| stream.completions());
        if completions.pending()? >= MAX_FLIGHT {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let sent = from.send_by(at_most, lists, |bound, ranges| {
            Ok(stream.send(bound, ranges)?.bytes())
        })?;
        self.bytes += sent as u64;
        Ok(sent)
    }

    /// Reads what TCP has finished with: reports that nobody reads make the connection ready again and again.
    pub(super) fn collect(&self) {
        if let Some(completions) = &self.completions {
            // What is wrong with the connection is said when it is used.
            let _ = completions.pending();
        }
    }

    /// Returns what a send waits for that was not possible.
    pub(super) fn awaited(&self) -> Interest {
        let pending = self.completions.as_ref().and_then(|it| it.pending().ok());
        match pending {
            Some(MAX_FLIGHT..) => Interest::Complete,
            _ => Interest::Send,
        }
    }

    /// Returns the bytes that were queued since the last call.
    pub(super) fn take_bytes(&mut self) -> u64 {
        std::mem::take(&mut self.bytes)
    }
}
