//! One I/O queue that reads: commands in flight, and their data in any order of the commands. No I/O.

use std::collections::VecDeque;

use client::nvme::{Limits, Membership};
use client::{LoadError, Piece};
use nvme::Status;
use nvme::command::{Blocks, Sqe};
use nvme::pdu::{
    Capsule, Cqe, DIGEST_BYTES, DataHeader, Digests, FatalStatus, FromController, Parsed, PduError,
    Side, parse_from_controller, terminate,
};

use crate::checksum::Crc32c;
use crate::load::session::{Fault, Next, Predicted, Session};
use crate::parallel::InFlight;

/// Length of a response, and of a header of data, without digests.
const HEADER_BYTES: usize = 24;

/// The session of one queue.
#[derive(Debug)]
pub(crate) struct NvmeSession {
    host: String,
    limits: Limits,
    digests: Digests,
    /// Most commands in flight.
    window: usize,
    outgoing: Vec<u8>,
    /// Commands in flight, by their names.
    pending: InFlight<PendingRead>,
    /// Those whose first data have not come, in the order in which they were issued.
    unanswered: VecDeque<(u16, Piece)>,
    /// Commands whose data have come, or their last header, and whose response has not.
    unconfirmed: usize,
    /// The command whose data come in parts, if the last ones were not its last.
    in_parts: Option<u16>,
    /// How the controller answers, as far as it has.
    reply_form: ReplyForm,
    next_id: u16,
    /// Bytes of an incomplete header, or of an incomplete digest of data.
    text: Vec<u8>,
    next_part: NextPart,
    /// The checksum of the data of the current PDU so far.
    sum: Crc32c,
    completed: VecDeque<Piece>,
    last_word: Option<Vec<u8>>,
    membership: Membership,
}

/// A read.
#[derive(Clone, Copy, Debug)]
struct PendingRead {
    piece: Piece,
    /// Bytes that have come, or whose header has: data of a command come in their order (TCP Transport, "C2HData", DATAO).
    received: u64,
}

/// How a controller answers reads. It is likely to answer the next ones in the same way.
#[derive(Clone, Copy, Debug, Default)]
struct ReplyForm {
    /// Length of the parts in which the data of a command come; `None`: they come at once.
    part_bytes: Option<u64>,
    /// Whether a response follows the data.
    responds: bool,
}

/// What comes next.
#[derive(Clone, Copy, Debug)]
enum NextPart {
    Header,
    Data(Data),
    Digest(Data),
}

/// Data of a read.
#[derive(Clone, Copy, Debug)]
struct Data {
    command_id: u16,
    /// First byte in the source.
    at: u64,
    left: u64,
    is_last: bool,
    is_success: bool,
}

impl NvmeSession {
    pub(crate) fn new(
        host: &str,
        limits: Limits,
        digests: Digests,
        window: usize,
        membership: Membership,
    ) -> Self {
        Self {
            host: host.to_owned(),
            limits,
            digests,
            window,
            outgoing: Vec::new(),
            pending: InFlight::default(),
            unanswered: VecDeque::new(),
            unconfirmed: 0,
            in_parts: None,
            reply_form: ReplyForm::default(),
            next_id: 0,
            text: Vec::new(),
            next_part: NextPart::Header,
            sum: Crc32c::default(),
            completed: VecDeque::new(),
            last_word: None,
            membership,
        }
    }

    /// Returns the fault of a controller that breaks the rules, which is told so.
    fn invalid(&mut self, error: PduError, header: &[u8]) -> Fault {
        let mut word = Vec::new();
        terminate(Side::Host, &error, header, &mut word);
        self.last_word = Some(word);
        Fault::Fatal(LoadError::Invalid {
            host: self.host.clone(),
            problem: error.problem.into(),
        })
    }

    fn on_pdu(&mut self, pdu: FromController, header: &[u8]) -> Result<(), Fault> {
        match pdu {
            FromController::Data(data) => self.on_data(&data, header),
            FromController::Response(cqe) => self.on_response(&cqe, header),
            FromController::Terminated(end) => {
                let why = FatalStatus::meaning(end.status);
                let cause = format!("the controller ended the connection: {why}");
                Err(Fault::Broken(cause.into()))
            }
            FromController::Handshake(_) | FromController::ReadyToTransfer(_) => Err(self.invalid(
                out_of_sequence("a PDU that no read is answered with"),
                header,
            )),
        }
    }

    fn on_data(&mut self, data: &DataHeader, header: &[u8]) -> Result<(), Fault> {
        let Some(pending) = self.pending.get_mut(data.command_id.into()) else {
            return Err(self.invalid(out_of_sequence("data without a command"), header));
        };
        let (piece, received) = (pending.piece, pending.received);
        let end = received.saturating_add(data.len.into());
        if u64::from(data.offset) != received || end > piece.len() {
            let error = out_of_range("data before, behind or twice in those of their command");
            return Err(self.invalid(error, header));
        }
        pending.received = end;
        if data.is_last && end < piece.len() {
            let error = out_of_sequence("the last data of a command, and some are missing");
            return Err(self.invalid(error, header));
        }
        let len = u64::from(data.len);
        if received == 0 {
            self.forget_unanswered(data.command_id);
        }
        self.unconfirmed += usize::from(received < piece.len() && end == piece.len());
        self.in_parts = (!data.is_last).then_some(data.command_id);
        self.reply_form = match data.is_last {
            false => ReplyForm {
                part_bytes: Some(len),
                ..self.reply_form
            },
            true => ReplyForm {
                // Its other parts were as long, or longer.
                part_bytes: self
                    .reply_form
                    .part_bytes
                    .filter(|part| received > 0 && len <= *part),
                responds: !data.is_success,
            },
        };
        self.sum = Crc32c::default();
        self.next_part = NextPart::Data(Data {
            command_id: data.command_id,
            at: piece.start.saturating_add(received),
            left: data.len.into(),
            is_last: data.is_last,
            is_success: data.is_success,
        });
        Ok(())
    }

    fn on_response(&mut self, cqe: &Cqe, header: &[u8]) -> Result<(), Fault> {
        let id = cqe.command_id.get();
        let Some(PendingRead { piece, received }) = self.pending.get(id.into()).copied() else {
            return Err(self.invalid(out_of_sequence("a response without a command"), header));
        };
        let status = cqe.status();
        if !status.is_success() {
            return Err(self.failed(piece, status));
        }
        if received < piece.len() {
            let error = out_of_sequence("a read has succeeded, and data are missing");
            return Err(self.invalid(error, header));
        }
        self.complete(id);
        Ok(())
    }

    fn failed(&self, piece: Piece, status: Status) -> Fault {
        match status.is_of_the_path() {
            true => Fault::Broken(format!("a read: {status}").into()),
            false => Fault::Fatal(LoadError::NvmeRead {
                host: self.host.clone(),
                at: piece.start,
                status: status.to_string(),
                remedy: remedy_of(status).into(),
            }),
        }
    }

    fn forget_unanswered(&mut self, id: u16) {
        // Controllers answer in about the order of the commands.
        let index = self.unanswered.iter().position(|(other, _)| *other == id);
        index.and_then(|index| self.unanswered.remove(index));
    }

    /// Returns the length of a response or of a header of data.
    fn header_bytes(&self) -> usize {
        match self.digests.header {
            true => HEADER_BYTES + DIGEST_BYTES,
            false => HEADER_BYTES,
        }
    }

    fn complete(&mut self, id: u16) {
        self.forget_unanswered(id);
        self.unconfirmed = self.unconfirmed.saturating_sub(1);
        let pending = self.pending.remove(id.into());
        self.completed.extend(pending.map(|pending| pending.piece));
    }

    /// Adds the data from `at` to `end`, of one command, in parts as those before, until there are `most`. Returns the gap behind them.
    fn predict(
        &self,
        predicted: &mut Vec<Predicted>,
        most: usize,
        mut gap: usize,
        mut at: u64,
        end: u64,
    ) -> usize {
        let between = self.digests.data_bytes() + self.header_bytes();
        while at < end && predicted.len() < most {
            let part = self.reply_form.part_bytes.unwrap_or(u64::MAX).max(1);
            let len = part.min(end - at);
            predicted.push(Predicted { gap, at, len });
            at += len;
            gap = between;
        }
        match self.reply_form.responds {
            true => gap + self.header_bytes(),
            false => gap,
        }
    }

    /// Ends the data of a PDU.
    fn end_data(&mut self, data: Data) -> Result<(), Fault> {
        self.next_part = NextPart::Header;
        if data.is_last && data.is_success {
            self.complete(data.command_id);
        }
        Ok(())
    }

    fn on_header(&mut self) -> Result<(), Fault> {
        match parse_from_controller(&self.text, self.digests) {
            Ok(Parsed::More(_)) => Ok(()),
            Ok(Parsed::Whole(pdu)) => {
                let header = std::mem::take(&mut self.text);
                self.on_pdu(pdu, &header)
            }
            Err(error) => {
                let header = std::mem::take(&mut self.text);
                match error.status {
                    // Another connection may carry the bytes unchanged.
                    FatalStatus::HeaderDigest => {
                        let _ = self.invalid(error, &header);
                        Err(Fault::Broken(error.problem.into()))
                    }
                    _ => Err(self.invalid(error, &header)),
                }
            }
        }
    }

    fn on_digest(&mut self, data: Data) -> Result<(), Fault> {
        let Some(digest) = self.text.first_chunk::<DIGEST_BYTES>() else {
            return Ok(());
        };
        let is_right = u32::from_le_bytes(*digest) == self.sum.value();
        self.text.clear();
        match is_right {
            true => self.end_data(data),
            // It is an error of the transfer, not of the connection (TCP Transport, "Data Digest"), but the bytes
            // must be requested again, and here that is the work of another connection.
            false => Err(Fault::Broken("the digest of data is wrong".into())),
        }
    }
}

impl Session for NvmeSession {
    fn accepts(&self, _: Piece) -> bool {
        self.pending.len() < self.window
    }

    fn request(&mut self, piece: Piece) {
        while self.pending.has(self.next_id.into()) {
            self.next_id = self.next_id.wrapping_add(1);
        }
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        // A piece is at most `Limits::max_bytes` long.
        let len = u32::try_from(piece.len()).unwrap_or(u32::MAX);
        let sqe = Sqe::read(self.limits.nsid, blocks_of(piece, &self.limits), len).named(id);
        let capsule = Capsule {
            sqe: &sqe,
            data_bytes: 0,
        };
        capsule.write(self.digests, &mut self.outgoing);
        self.pending
            .add(id.into(), PendingRead { piece, received: 0 });
        self.unanswered.push_back((id, piece));
    }

    fn outgoing(&mut self) -> &mut Vec<u8> {
        &mut self.outgoing
    }

    fn next(&self) -> Next {
        match self.next_part {
            NextPart::Data(Data { at, left, .. }) => Next::Payload { at, len: left },
            NextPart::Digest(_) => {
                Next::Header(DIGEST_BYTES.saturating_sub(self.text.len()).max(1))
            }
            NextPart::Header if self.pending.is_empty() => Next::Nothing,
            NextPart::Header => match parse_from_controller(&self.text, self.digests) {
                Ok(Parsed::More(more)) => Next::Header(more),
                // `on_text` has taken whole headers, and refused wrong ones.
                Ok(Parsed::Whole(_)) | Err(_) => Next::Header(1),
            },
        }
    }

    /// The rest of a command whose data come in parts, and the data of the commands that were not answered, in their order.
    fn predicted(&self, most: usize) -> Vec<Predicted> {
        let header = self.header_bytes();
        let unread = |len: usize| len.saturating_sub(self.text.len());
        let (before, current) = match self.next_part {
            NextPart::Header => (unread(header), None),
            NextPart::Data(data) => (self.digests.data_bytes() + header, Some(data)),
            NextPart::Digest(data) => (unread(DIGEST_BYTES) + header, Some(data)),
        };
        let mut predicted = Vec::with_capacity(most);
        let in_parts = self.in_parts.and_then(|id| self.pending.get(id.into()));
        let in_parts = in_parts.filter(|pending| pending.received < pending.piece.len());
        let mut gap = match in_parts {
            Some(PendingRead { piece, received }) => {
                let at = piece.start.saturating_add(*received);
                self.predict(&mut predicted, most, before, at, piece.end)
            }
            None => {
                let succeeds = current.is_some_and(|data| data.is_last && data.is_success);
                let responses = self.unconfirmed.saturating_sub(usize::from(succeeds));
                before + responses * header
            }
        };
        for (_, piece) in &self.unanswered {
            if predicted.len() >= most {
                break;
            }
            gap = self.predict(&mut predicted, most, gap, piece.start, piece.end);
        }
        predicted
    }

    fn on_text(&mut self, bytes: &[u8]) -> Result<usize, Fault> {
        self.text.extend_from_slice(bytes);
        match self.next_part {
            NextPart::Digest(data) => self.on_digest(data)?,
            NextPart::Header | NextPart::Data(_) => self.on_header()?,
        }
        Ok(bytes.len())
    }

    fn on_bytes(&mut self, len: u64) -> Result<(), Fault> {
        let NextPart::Data(mut data) = self.next_part else {
            return Ok(());
        };
        data.at = data.at.saturating_add(len);
        data.left = data.left.saturating_sub(len);
        if data.left > 0 {
            self.next_part = NextPart::Data(data);
            return Ok(());
        }
        match self.digests.data {
            true => {
                self.next_part = NextPart::Digest(data);
                Ok(())
            }
            false => self.end_data(data),
        }
    }

    fn checksum(&mut self) -> Option<&mut Crc32c> {
        self.digests.data.then_some(&mut self.sum)
    }

    fn on_end(&mut self) -> Fault {
        Fault::Broken("the controller closed the connection".into())
    }

    fn completed(&mut self) -> Option<Piece> {
        self.completed.pop_front()
    }

    fn outstanding(&self) -> usize {
        self.pending.len()
    }

    fn take_outstanding(&mut self) -> Vec<Piece> {
        if !self.pending.is_empty() {
            self.membership.end_association();
        }
        self.unanswered.clear();
        self.pending.take().map(|pending| pending.piece).collect()
    }

    fn last_word(&mut self) -> Option<Vec<u8>> {
        self.last_word.take()
    }
}

impl Drop for NvmeSession {
    fn drop(&mut self) {
        if !self.pending.is_empty() {
            self.membership.end_association();
        }
    }
}

/// Returns the blocks of a piece, which begins and ends at their borders.
pub(crate) fn blocks_of(piece: Piece, limits: &Limits) -> Blocks {
    let count = piece.len() >> limits.block_log2;
    Blocks {
        start: piece.start >> limits.block_log2,
        count: u32::try_from(count).unwrap_or(u32::MAX),
    }
}

/// Returns the remedy for the status of a read.
fn remedy_of(status: Status) -> &'static str {
    match status {
        it if it.is(Status::LBA_OUT_OF_RANGE) => {
            "the namespace has shrunk since it was opened: load it again"
        }
        it if it.is(Status::INVALID_NAMESPACE) => {
            "the namespace has vanished since it was opened: enable it there, and load it again"
        }
        _ => "the log of the controller says why; another range avoids the place",
    }
}

fn out_of_sequence(problem: &'static str) -> PduError {
    PduError {
        status: FatalStatus::Sequence,
        offset: 0,
        problem,
    }
}

fn out_of_range(problem: &'static str) -> PduError {
    PduError {
        status: FatalStatus::OutOfRange,
        // DATAO.
        offset: 12,
        problem,
    }
}

#[cfg(test)]
mod tests;
