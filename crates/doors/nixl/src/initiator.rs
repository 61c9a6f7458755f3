//! The side that posts transfers: cuts them into pieces, announces these, and learns when they are done.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::broken::Broken;
use crate::carriers::Carrier;
use crate::data::DataStream;
use crate::raw::scatter::Scatter;
use crate::record::{MAX_PIECE_BYTES, NEAR, Piece, Record, Violation};
use crate::status::{Failure, Status};
use crate::transfer::{Op, Posted, Transfer};
use crate::wires::{Context, TURN_RECORDS, Wires};

/// A connection with more than that to send gets no further piece. Another one may be faster.
const FULL_QUEUE: (u64, usize) = (2 * MAX_PIECE_BYTES, 64);

/// A connection that owes more than that is not asked for more: the bytes on the way at 100 Gbit/s and half a millisecond.
const FULL_WINDOW: (u64, usize) = (8 * MAX_PIECE_BYTES, 64);

/// Writes that were announced and are not done, and bytes of their messages, from which on none is begun. A target takes more.
const MAX_BEGUN: usize = 1024;
const MAX_BEGUN_BYTES: usize = 8 << 20;

/// Bytes of records that wait for a peer that takes none, from which on notifications are refused.
const MAX_WAITING: usize = 64 << 20;

/// What the program wants of a peer.
#[derive(Debug)]
pub(crate) enum Job {
    Transfer(Posted),
    Notify(Vec<u8>),
}

/// Connections that were made.
#[derive(Debug)]
pub(crate) struct Connected {
    pub(crate) wires: Wires,
    /// The peer can read the memory of this process.
    pub(crate) is_near: bool,
}

/// The connections to a peer, and the transfers on them.
#[derive(Debug)]
pub(crate) struct Initiator {
    pub(crate) peer: Arc<str>,
    pub(crate) wires: Wires,
    /// The peer can read the memory of this process.
    is_near: bool,
    /// Transfers that are not cut up, in order.
    queue: VecDeque<u64>,
    active: HashMap<u64, Posted>,
    /// Writes that were announced, and the bytes of their messages.
    begun: HashMap<u64, usize>,
    begun_bytes: usize,
}

impl Initiator {
    pub(crate) fn new(peer: Arc<str>, Connected { wires, is_near }: Connected) -> Self {
        Self {
            peer,
            wires,
            is_near,
            queue: VecDeque::new(),
            active: HashMap::new(),
            begun: HashMap::new(),
            begun_bytes: 0,
        }
    }

    /// Takes a job. What can be sent is sent at once, by [`advance`](Self::advance).
    pub(crate) fn take(&mut self, job: Job) -> Result<(), Failure> {
        match job {
            Job::Notify(_) if self.wires.control.queued() > MAX_WAITING => Err(Failure::new(
                Status::Backend,
                format!(
                    "the agent {} takes no records, and 64 MiB of them wait",
                    self.peer.escape_debug()
                ),
            )),
            Job::Notify(message) => {
                self.notify(&message);
                Ok(())
            }
            Job::Transfer(posted) => {
                self.queue.push_back(posted.number);
                self.active.insert(posted.number, posted);
                Ok(())
            }
        }
    }

    fn notify(&mut self, message: &[u8]) {
        // Checked where the message came from the program.
        let bytes = message.len() as u32;
        self.wires
            .control
            .queue_with(Record::Notify { bytes }, message);
    }

    /// Cuts, announces and sends what can be sent now.
    pub(crate) fn advance(&mut self, context: &mut Context<'_>) -> Result<bool, Broken> {
        if self.wires.has_failed()? {
            return Ok(false);
        }
        let sent = self.send(context);
        self.wires.moved(sent)
    }

    fn send(&mut self, context: &mut Context<'_>) -> Result<bool, Broken> {
        self.cut(context)?;
        let mut worked = self.wires.control.flush()?;
        worked |= self.wires.push(context)?;
        Ok(worked)
    }

    /// Moves what can be moved. Returns whether that was something.
    pub(crate) fn turn(&mut self, context: &mut Context<'_>) -> Result<bool, Broken> {
        let mut worked = self.read_records()?;
        if !self.wires.has_failed()? {
            let pulled = self.pull(context);
            worked |= self.wires.moved(pulled)?;
        }
        worked |= self.advance(context)?;
        Ok(worked)
    }

    /// Receives payload.
    fn pull(&mut self, context: &mut Context<'_>) -> Result<bool, Broken> {
        let pulled = self.wires.pull(context);
        let mut all = std::mem::take(context.placed);
        for placed in all.drain(..) {
            self.on_placed(placed.transfer, placed.bytes);
        }
        *context.placed = all;
        pulled
    }

    fn read_records(&mut self) -> Result<bool, Broken> {
        for count in 0..TURN_RECORDS {
            let Some((record, _)) = self.wires.control.next()? else {
                return Ok(count > 0);
            };
            match record {
                Record::Done { transfer } => self.on_done(transfer)?,
                Record::Granted { transfer } => self.on_granted(transfer)?,
                Record::Failed(fault) => return Err(Broken::Fault(fault)),
                _ => return Err(Violation::Order.into()),
            }
        }
        Ok(true)
    }

    /// The peer has checked the ranges of a piece that is copied here.
    fn on_granted(&mut self, transfer: u64) -> Result<(), Broken> {
        let near = self.wires.carriers.near.as_mut();
        match near.is_some_and(|near| near.grant(transfer)) {
            true => Ok(()),
            false => Err(Violation::Order.into()),
        }
    }

    /// The peer says that a write is in place.
    fn on_done(&mut self, number: u64) -> Result<(), Broken> {
        let Some(posted) = self.active.get(&number) else {
            // It was cancelled.
            return Ok(());
        };
        if !self.begun.contains_key(&number) || !posted.is_cut() {
            return Err(Violation::Order.into());
        }
        self.finish(number, Status::Success);
        Ok(())
    }

    /// Bytes of a read are in place.
    fn on_placed(&mut self, number: u64, bytes: u64) {
        let Some(posted) = self.active.get_mut(&number) else {
            return;
        };
        posted.left = posted.left.saturating_sub(bytes);
        if posted.left == 0 {
            if let Some(message) = posted.notification.take() {
                self.notify(&message);
            }
            self.finish(number, Status::Success);
        }
    }

    fn finish(&mut self, number: u64, status: Status) {
        if let Some(bytes) = self.begun.remove(&number) {
            self.begun_bytes -= bytes;
        }
        let Some(posted) = self.active.remove(&number) else {
            return;
        };
        let transfer = Arc::clone(&posted.transfer);
        // Before the program learns of it: it may deregister the memory.
        drop(posted);
        transfer.set_status(status);
    }

    /// Ends a transfer that the program does not wait for any more. Pieces of a write that were announced are still sent.
    pub(crate) fn cancel(&mut self, number: u64) {
        self.queue.retain(|it| *it != number);
        if self.begun.contains_key(&number) {
            self.wires
                .control
                .queue(Record::Cancel { transfer: number });
        }
        self.wires.carriers.discard(number);
        // Before the program frees the memory, which the peer may be about to read.
        let _ = self.wires.control.flush();
        self.finish(number, Status::Cancelled);
    }

    /// Cuts transfers into pieces, as many as the connections take.
    fn cut(&mut self, context: &mut Context<'_>) -> Result<(), Broken> {
        while let Some(number) = self.queue.front().copied()
            && self.wires.control.has_room()
        {
            let Some(posted) = self.active.get_mut(&number) else {
                self.queue.pop_front();
                continue;
            };
            let (op, is_host) = (posted.transfer.op, posted.transfer.is_host());
            let can_go_on = match op {
                Op::Write => self.begin_write(number),
                Op::Read => true,
            };
            let Some(stream) = self.carrier(op, is_host).filter(|_| can_go_on) else {
                return Ok(());
            };
            let Some(posted) = self.active.get_mut(&number) else {
                continue;
            };
            let scatter = posted
                .cut(context.entries, context.sources)
                .ok_or(Broken::Memory)?;
            let is_cut = posted.is_cut();
            if is_cut {
                self.queue.pop_front();
            }
            if !context.entries.is_empty() {
                self.announce((number, op), stream, scatter, context)?;
            }
            if is_cut && op == Op::Read {
                // It may have no bytes.
                self.on_placed(number, 0);
            }
        }
        Ok(())
    }

    /// Announces a write, if it is not. Returns whether it is.
    fn begin_write(&mut self, number: u64) -> bool {
        if self.begun.contains_key(&number) {
            return true;
        }
        if self.begun.len() >= MAX_BEGUN || self.begun_bytes >= MAX_BEGUN_BYTES {
            return false;
        }
        let Some(posted) = self.active.get_mut(&number) else {
            return false;
        };
        let message = posted.notification.take();
        let record = Record::Write {
            transfer: number,
            bytes: posted.transfer.bytes(),
            notification: message.as_ref().map(|message| message.len() as u32),
        };
        let message = message.unwrap_or_default();
        self.wires.control.queue_with(record, &message);
        self.begun.insert(number, message.len());
        self.begun_bytes += message.len();
        true
    }

    /// Returns what carries the next piece: the number of a connection, or `NEAR`. `None`: all have enough to do.
    fn carrier(&self, op: Op, is_host: bool) -> Option<u16> {
        match (op, &self.wires.carriers.near) {
            (Op::Read, Some(near)) if is_host => {
                let (bytes, pieces) = near.owed();
                (bytes < FULL_WINDOW.0 && pieces < FULL_WINDOW.1).then_some(NEAR)
            }
            (Op::Write, _) if self.is_near && is_host => Some(NEAR),
            // At most `MAX_CONNECTIONS` of them.
            _ => emptiest(&self.wires.carriers.streams, op).map(|index| index as u16 + 1),
        }
    }

    fn announce(
        &mut self,
        (number, op): (u64, Op),
        carrier: u16,
        mut scatter: Scatter,
        context: &mut Context<'_>,
    ) -> Result<(), Broken> {
        let bytes = scatter.left();
        let is_inline = op == Op::Write && bytes <= context.inline_bytes;
        let piece = Piece {
            transfer: number,
            stream: if is_inline { 0 } else { carrier },
            entries: context.entries.len() as u32,
            bytes,
        };
        let record = match op {
            Op::Read => Record::Get(piece),
            Op::Write => Record::Put(piece),
        };
        let out = self.wires.control.queue_piece(record, context.entries);
        match (op, self.wires.carriers.get(piece.stream)?) {
            (Op::Write, Carrier::Record) => {
                scatter.append_to(out)?;
                context.counts.inline += bytes;
            }
            (Op::Write, Carrier::Stream(stream)) => stream.send(scatter),
            (Op::Write, Carrier::Memory(_)) => {
                for address in scatter.addresses() {
                    out.extend_from_slice(&address.to_le_bytes());
                }
            }
            (Op::Read, Carrier::Stream(stream)) => stream.expect(number, scatter),
            (Op::Read, Carrier::Memory(Some(near))) => {
                let sources = context.sources.iter().map(|source| source.get());
                near.expect(number, scatter, sources.collect());
            }
            (Op::Read, Carrier::Record | Carrier::Memory(None)) => {
                return Err(Violation::Stream.into());
            }
        }
        Ok(())
    }

    /// Returns whether no transfer is going on.
    pub(crate) fn is_idle(&self) -> bool {
        self.active.is_empty()
    }

    /// Returns whether a turn would move something without a report of the network.
    pub(crate) fn can_go_on(&self) -> bool {
        self.wires.can_go_on()
    }

    /// The connections are gone: takes out the transfers that were going on.
    pub(crate) fn into_transfers(self) -> impl Iterator<Item = Arc<Transfer>> {
        let Self { active, wires, .. } = self;
        drop(wires);
        active
            .into_values()
            .map(|posted| Arc::clone(&posted.transfer))
    }
}

/// Returns the connection with the least to do, if it takes another piece.
fn emptiest(data: &[DataStream], op: Op) -> Option<usize> {
    let load = |data: &DataStream| match op {
        Op::Read => (data.owed(), FULL_WINDOW),
        Op::Write => (data.queued(), FULL_QUEUE),
    };
    let (index, ((bytes, pieces), full)) = data
        .iter()
        .map(load)
        .enumerate()
        .min_by_key(|(_, ((bytes, _), _))| *bytes)?;
    (bytes < full.0 && pieces < full.1).then_some(index)
}
