//! A wire without TLS: the NIC receives payload at its place, or a copy from the bound memory takes it there.

mod plan;
mod prediction;

use std::collections::VecDeque;
use std::io::Write;

use client::retry::is_not_ready;
use client::{Cause, LoadError, Transport, retry};
use devmem_tcp::{RecvError, RxBatch, Stream};

use self::plan::Plan;
use super::host_bytes::{TEXT_BYTES, give};
use super::wire::{Counts, Received, Wire, to_usize};
use crate::load::landing::Landing;
use crate::load::session::{Fault, Next, Session};

/// Most frags of one receive.
const BATCH_FRAGS: usize = 1024;

/// Most bytes of one receive in place: between two of them other connections have a turn.
const IN_PLACE_BYTES: usize = 4 << 20;

/// A TCP connection.
#[derive(Debug)]
pub(super) struct Direct {
    stream: Box<Stream>,
    batch: RxBatch,
    text: Vec<u8>,
    /// The kernel may write payload to its place.
    tries_in_place: bool,
    /// What the NIC was told of the places of the next bytes.
    plan: Plan,
    /// Requests in flight when the plan was made, less those that are answered.
    planned: usize,
    /// It has payload of the last of those, whose end may have to wait for a place. Until there are new ones, nothing is added to it.
    plans_all: bool,
    /// Received bytes that lay in the place of other payload than was predicted.
    moved: VecDeque<u8>,
    /// Bytes that the session has taken.
    taken: u64,
    mispredicted: u64,
}

impl Wire for Direct {
    fn stream(&self) -> &Stream {
        &self.stream
    }

    fn send(&mut self, bytes: &mut Vec<u8>) -> Result<(), Fault> {
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(sent) => drop(bytes.drain(..sent)),
                Err(error) if is_not_ready(&error) => break,
                Err(error) => {
                    return Err(Fault::Broken(Cause::of_io(error).during("send a request")));
                }
            }
        }
        Ok(())
    }

    fn receive(
        &mut self,
        session: &mut dyn Session,
        landing: &mut Landing<'_>,
    ) -> Result<Option<Received>, Fault> {
        let next = session.next();
        let taken = match next {
            next if !self.moved.is_empty() => Some(self.give_moved(next, session, landing)?),
            Next::Text(most) => self.read_text(most, session)?,
            Next::Header(len) => self.read_header(len, session)?,
            Next::Payload { at, len } => self.read_payload(at, len, session, landing)?,
            Next::Skip(len) => self.skip(len, session)?,
            Next::Nothing | Next::Zeros { .. } => None,
        };
        let mut received = Received::default();
        received.count(next, taken.unwrap_or(0) as u64);
        self.taken += received.bytes;
        Ok(taken.map(|_| received))
    }

    fn held(&self) -> usize {
        self.moved.len()
    }

    fn place_next(&mut self, session: &dyn Session, landing: &Landing<'_>) -> Result<(), Fault> {
        self.name_places(session, landing)
    }

    fn counts(&self) -> Counts {
        Counts {
            mispredicted: self.mispredicted,
            ..Counts::default()
        }
    }

    fn say_end(&mut self) {}

    fn into_transport(mut self: Box<Self>) -> Option<Transport> {
        // The counters then show frags that could not be returned.
        let is_released = self.batch.release().is_ok();
        is_released.then_some(Transport::Tcp(self.stream))
    }
}

impl Direct {
    pub(super) fn new(stream: Box<Stream>) -> Self {
        Self {
            stream,
            batch: RxBatch::with_capacity(BATCH_FRAGS),
            text: Vec::new(),
            tries_in_place: true,
            plan: Plan::default(),
            planned: 0,
            plans_all: false,
            moved: VecDeque::new(),
            taken: 0,
            mispredicted: 0,
        }
    }

    /// Looks at the next bytes, and takes those of the header. The rest may be payload, which must not be copied here.
    fn read_text(
        &mut self,
        most: usize,
        session: &mut dyn Session,
    ) -> Result<Option<usize>, Fault> {
        self.text.resize(most.min(TEXT_BYTES), 0);
        let seen = match self.stream.peek(&mut self.text) {
            Ok(0) => return Err(session.on_end()),
            Ok(seen) => seen,
            Err(error) => return none_yet(error),
        };
        let of_header = session.on_text(&self.text[..seen])?.min(seen);
        let mut left = of_header;
        while left > 0 {
            // These bytes are queued, so no receive waits.
            match self.stream.recv_at_most(&mut self.batch, left) {
                Ok(0) => return Err(session.on_end()),
                Ok(received) => left -= received.min(left),
                Err(error) => return Err(broken(error)),
            }
        }
        self.release()?;
        Ok(Some(of_header))
    }

    /// Receives the next bytes, all of which belong to a header.
    fn read_header(
        &mut self,
        len: usize,
        session: &mut dyn Session,
    ) -> Result<Option<usize>, Fault> {
        let received = match self.receive_bytes(len.min(TEXT_BYTES)) {
            Ok(received) => received,
            Err(error) => return none_yet(error),
        };
        if received == 0 {
            return Err(session.on_end());
        }
        self.text.resize(received, 0);
        let copied = self.batch.copy_to(&mut self.text);
        copied.map_err(LoadError::Gather)?;
        self.release()?;
        session.on_text(&self.text)?;
        Ok(Some(received))
    }

    fn read_payload(
        &mut self,
        at: u64,
        len: u64,
        session: &mut dyn Session,
        landing: &mut Landing<'_>,
    ) -> Result<Option<usize>, Fault> {
        let most = to_usize(len.min(landing.room(at)));
        let (received, is_in_place) = match self.receive_payload(at, most, landing) {
            Ok(received) => received,
            Err(error) => return none_yet(error),
        };
        if received == 0 {
            return Err(session.on_end());
        }
        match is_in_place {
            true => landing.landed(at, received, session.checksum())?,
            false => {
                landing.place(at, &mut self.batch, session.checksum())?;
                self.release()?;
            }
        }
        session.on_bytes(received as u64)?;
        Ok(Some(received))
    }

    fn skip(&mut self, len: u64, session: &mut dyn Session) -> Result<Option<usize>, Fault> {
        let received = match self.receive_bytes(to_usize(len)) {
            Ok(received) => received,
            Err(error) => return none_yet(error),
        };
        if received == 0 {
            return Err(session.on_end());
        }
        self.release()?;
        session.on_bytes(received as u64)?;
        Ok(Some(received))
    }

    /// Receives payload in its place if the kernel can, otherwise into the batch. Returns the number of bytes, and whether they are in place.
    fn receive_payload(
        &mut self,
        at: u64,
        most: usize,
        landing: &Landing<'_>,
    ) -> Result<(usize, bool), RecvError> {
        if self.tries_in_place
            && let Some((memory, offset)) = landing.memory_at(at)
        {
            let end = offset.saturating_add(most.min(IN_PLACE_BYTES));
            if let Some(received) = self.stream.recv_into(memory, offset..end)? {
                return Ok((received, true));
            }
            // It does not change for a connection, and each try may be a system call.
            self.tries_in_place = false;
        }
        Ok((self.receive_bytes(most)?, false))
    }

    fn receive_bytes(&mut self, most: usize) -> Result<usize, RecvError> {
        self.stream.recv_at_most(&mut self.batch, most.max(1))
    }

    /// Gives bytes that were moved away to the session, or to their place. Returns their number.
    fn give_moved(
        &mut self,
        next: Next,
        session: &mut dyn Session,
        landing: &mut Landing<'_>,
    ) -> Result<usize, Fault> {
        let count = give(next, self.moved.make_contiguous(), session, landing)?;
        self.moved.drain(..count);
        Ok(count)
    }

    /// Returns the tokens at once: the memory is needed for the next bytes.
    fn release(&mut self) -> Result<(), Fault> {
        match self.batch.release() {
            Ok(_) => Ok(()),
            Err(error) => Err(broken(error.into())),
        }
    }
}

/// Returns `None` if there are no bytes yet.
fn none_yet<T>(error: RecvError) -> Result<Option<T>, Fault> {
    match error {
        RecvError::WouldBlock | RecvError::TimedOut { .. } => Ok(None),
        error => Err(broken(error)),
    }
}

fn broken(error: RecvError) -> Fault {
    match retry::may_help(error.kind()) {
        true => Fault::Broken(error.into()),
        false => Fault::Fatal(error.into()),
    }
}
