//! The side that a peer reads from and writes to: checks what is announced, and puts it in place.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::broken::Broken;
use crate::carriers::Carrier;
use crate::record::{Piece, Record, Violation, sources};
use crate::wires::{Context, TURN_RECORDS, Wires};

/// Writes that were announced and are not done, and bytes of their messages. An initiator begins fewer.
const MAX_WRITES: usize = 4096;
const MAX_MESSAGE_BYTES: usize = 32 << 20;

/// Pieces that were announced and are not moved, from which on no record is read.
const MAX_PIECES: usize = 4096;

/// A write that is going on.
#[derive(Debug)]
struct Incoming {
    /// Bytes that were not announced.
    unannounced: u64,
    /// Bytes that are not in place.
    left: u64,
    notification: Option<Vec<u8>>,
}

/// The connections of a peer that connected.
#[derive(Debug)]
pub(crate) struct Target {
    peer: Arc<str>,
    pub(crate) wires: Wires,
    writes: HashMap<u64, Incoming>,
    message_bytes: usize,
}

impl Target {
    pub(crate) fn new(peer: Arc<str>, wires: Wires) -> Self {
        Self {
            peer,
            wires,
            writes: HashMap::new(),
            message_bytes: 0,
        }
    }

    pub(crate) fn peer(&self) -> &str {
        &self.peer
    }

    /// Moves what can be moved. Returns whether that was something.
    pub(crate) fn turn(&mut self, context: &mut Context<'_>) -> Result<bool, Broken> {
        let mut worked = self.read_records(context)?;
        if !self.wires.has_failed()? {
            let moved = self.move_bytes(context);
            worked |= self.wires.moved(moved)?;
        }
        Ok(worked)
    }

    fn move_bytes(&mut self, context: &mut Context<'_>) -> Result<bool, Broken> {
        let mut worked = self.pull(context)?;
        worked |= self.wires.control.flush()?;
        worked |= self.wires.push(context)?;
        Ok(worked)
    }

    /// Receives payload.
    fn pull(&mut self, context: &mut Context<'_>) -> Result<bool, Broken> {
        let pulled = self.wires.pull(context);
        let mut all = std::mem::take(context.placed);
        for placed in all.drain(..) {
            self.on_placed(placed.transfer, placed.bytes, context);
        }
        *context.placed = all;
        let Err(Broken::Uncopied { transfer, .. }) = pulled else {
            return pulled;
        };
        // The peer may have cancelled the transfer, and freed its memory.
        self.read_records(context)?;
        match self.writes.contains_key(&transfer) {
            true => pulled,
            false => Ok(true),
        }
    }

    fn read_records(&mut self, context: &mut Context<'_>) -> Result<bool, Broken> {
        for count in 0..TURN_RECORDS {
            let has_room = context.inbox.has_room() && self.wires.carriers.pieces() < MAX_PIECES;
            let next = match has_room {
                true => self.wires.control.next()?,
                false => None,
            };
            let Some((record, behind)) = next else {
                return Ok(count > 0);
            };
            self.on_record(record, behind, context)?;
        }
        Ok(true)
    }

    fn on_record(
        &mut self,
        record: Record,
        behind: Range<usize>,
        context: &mut Context<'_>,
    ) -> Result<(), Broken> {
        match record {
            Record::Write {
                transfer,
                bytes,
                notification,
            } => {
                let message = self.wires.control.behind(behind).to_vec();
                self.on_write(transfer, bytes, notification.map(|_| message), context)
            }
            Record::Put(piece) => self.on_put(piece, behind, context),
            Record::Get(piece) => self.on_get(piece, behind, context),
            Record::Notify { .. } => {
                context
                    .inbox
                    .push(&self.peer, self.wires.control.behind(behind).to_vec());
                Ok(())
            }
            Record::Cancel { transfer } => {
                self.forget(transfer);
                self.wires.carriers.discard(transfer);
                Ok(())
            }
            Record::Failed(fault) => Err(Broken::Fault(fault)),
            Record::Hello { .. }
            | Record::Welcome { .. }
            | Record::Ready
            | Record::Granted { .. }
            | Record::Done { .. } => Err(Violation::Order.into()),
        }
    }

    fn on_write(
        &mut self,
        transfer: u64,
        bytes: u64,
        notification: Option<Vec<u8>>,
        context: &mut Context<'_>,
    ) -> Result<(), Broken> {
        self.message_bytes += notification.as_ref().map_or(0, Vec::len);
        if self.writes.len() >= MAX_WRITES || self.message_bytes > MAX_MESSAGE_BYTES {
            return Err(Violation::Long.into());
        }
        let incoming = Incoming {
            unannounced: bytes,
            left: bytes,
            notification,
        };
        if self.writes.insert(transfer, incoming).is_some() {
            return Err(Violation::Order.into());
        }
        self.on_placed(transfer, 0, context);
        Ok(())
    }

    fn on_put(
        &mut self,
        piece: Piece,
        behind: Range<usize>,
        context: &mut Context<'_>,
    ) -> Result<(), Broken> {
        self.announce(&piece)?;
        let Wires {
            control, carriers, ..
        } = &mut self.wires;
        let (entries, rest) = piece.split(control.behind(behind))?;
        let mut scatter = context.regions.resolve(&piece, entries)?;
        match carriers.get(piece.stream)? {
            Carrier::Record => {
                scatter.fill(rest)?;
                // Its regions may be deregistered as soon as the program learns of it.
                drop(scatter);
                context.counts.inline += piece.bytes;
                self.on_placed(piece.transfer, piece.bytes, context);
            }
            Carrier::Stream(stream) => stream.expect(piece.transfer, scatter),
            Carrier::Memory(near) => {
                let near = near.ok_or(Violation::Stream)?;
                near.expect(piece.transfer, scatter, sources(rest)?);
                near.grant_all();
            }
        }
        Ok(())
    }

    /// A piece of a write is announced.
    fn announce(&mut self, piece: &Piece) -> Result<(), Broken> {
        let incoming = self.writes.get_mut(&piece.transfer);
        let incoming = incoming.ok_or(Violation::Order)?;
        let rest = incoming.unannounced.checked_sub(piece.bytes);
        incoming.unannounced = rest.ok_or(Violation::Sum)?;
        Ok(())
    }

    fn on_get(
        &mut self,
        piece: Piece,
        behind: Range<usize>,
        context: &mut Context<'_>,
    ) -> Result<(), Broken> {
        let Wires {
            control, carriers, ..
        } = &mut self.wires;
        let (entries, _) = piece.split(control.behind(behind))?;
        let scatter = context.regions.resolve(&piece, entries)?;
        match carriers.get(piece.stream)? {
            Carrier::Record => return Err(Violation::Stream.into()),
            Carrier::Stream(stream) => stream.send(scatter),
            // The peer copies the bytes itself. Each range was checked all the same.
            Carrier::Memory(_) => {
                let transfer = piece.transfer;
                control.queue(Record::Granted { transfer });
            }
        }
        Ok(())
    }

    /// Bytes of a write are in place: if these were the last ones, the program gets the message, and the peer is told.
    fn on_placed(&mut self, transfer: u64, bytes: u64, context: &mut Context<'_>) {
        let Some(incoming) = self.writes.get_mut(&transfer) else {
            // It was cancelled.
            return;
        };
        incoming.left = incoming.left.saturating_sub(bytes);
        if incoming.left > 0 {
            return;
        }
        if let Some(message) = self.forget(transfer) {
            context.inbox.push(&self.peer, message);
        }
        self.wires.control.queue(Record::Done { transfer });
    }

    fn forget(&mut self, transfer: u64) -> Option<Vec<u8>> {
        let message = self.writes.remove(&transfer)?.notification?;
        self.message_bytes -= message.len();
        Some(message)
    }
}
