//! One NVMe I/O queue that writes: commands in flight, and the transfers that the controller requests. No I/O.

mod outbox;

use std::collections::VecDeque;

use client::nvme::{IoQueue, Limits, Membership};
use nvme::Status;
use nvme::command::{DEALLOCATED_BYTES, DataPlace, Sqe, deallocated};
use nvme::pdu::{
    Capsule, Cqe, Data, DataHeader, Digests, FatalStatus, FromController, Parsed, PduError, Side,
    Transfer, parse_from_controller, terminate,
};

use super::error::{Operation, StoreError};
use super::session::{Acknowledge, Fault, Outgoing, Session, Write};
use crate::load::LoadError;
use crate::load::nvme::blocks_of;
use crate::parallel::InFlight;
use outbox::{Outbox, OutgoingPdu};

/// The session of one queue.
#[derive(Debug)]
pub(crate) struct NvmeSession {
    host: String,
    limits: Limits,
    digests: Digests,
    /// Most bytes of data in one PDU.
    most_data: u32,
    acknowledge: Acknowledge,
    /// Most commands in flight. A flush may be one more.
    window: usize,
    /// Commands in flight, by their names.
    pending: InFlight<PendingCommand>,
    next_id: u16,
    /// Bytes of an incomplete PDU.
    text: Vec<u8>,
    outbox: Outbox,
    completed: VecDeque<(u64, Write)>,
    last_word: Option<Vec<u8>>,
    membership: Membership,
}

/// A command.
#[derive(Clone, Copy, Debug)]
struct PendingCommand {
    write: Write,
    /// Bytes of its data that are sent in the capsule, or that the controller has requested, in their order.
    requested: u64,
}

impl PendingCommand {
    /// Returns the length of the data of the command.
    fn data_bytes(&self) -> u64 {
        match self.write.operation {
            // The description of one range.
            Operation::Trim => DEALLOCATED_BYTES as u64,
            _ => self.write.payload_bytes(),
        }
    }
}

impl NvmeSession {
    /// Returns the session of a queue that was connected for one more command than it has in flight, which is a flush.
    pub(crate) fn new(
        host: &str,
        limits: Limits,
        queue: &QueueLimits,
        acknowledge: Acknowledge,
        membership: Membership,
    ) -> Self {
        Self {
            host: host.to_owned(),
            limits,
            digests: queue.digests,
            most_data: queue.most_data,
            acknowledge,
            window: queue.depth.saturating_sub(1).max(1),
            pending: InFlight::default(),
            next_id: 0,
            text: Vec::new(),
            outbox: Outbox::new(queue.digests.data),
            completed: VecDeque::new(),
            last_word: None,
            membership,
        }
    }

    fn new_id(&mut self) -> u16 {
        while self.pending.has(self.next_id.into()) {
            self.next_id = self.next_id.wrapping_add(1);
        }
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        id
    }

    fn is_durable(&self) -> bool {
        self.acknowledge == Acknowledge::Durable
    }

    /// Queues a write; returns how many bytes of its data are in the capsule.
    fn write(&mut self, id: u16, write: Write) -> u64 {
        let bytes = write.payload_bytes();
        // A piece is at most `Limits::max_bytes` long.
        let len = u32::try_from(bytes).unwrap_or(u32::MAX);
        let (place, data_bytes) = match bytes <= self.limits.capsule_bytes {
            true => (DataPlace::InCapsule, len),
            false => (DataPlace::OnRequest, 0),
        };
        let blocks = blocks_of(write.piece, &self.limits);
        let sqe = Sqe::write(self.limits.nsid, blocks, len, place, self.is_durable()).named(id);
        let capsule = Capsule {
            sqe: &sqe,
            data_bytes,
        };
        let mut text = Vec::new();
        capsule.write(self.digests, &mut text);
        let payload = (data_bytes > 0).then_some((id, 0..bytes));
        self.outbox.push_command(OutgoingPdu { text, payload });
        data_bytes.into()
    }

    /// Queues a deallocation; returns how many bytes of its data are in the capsule.
    fn deallocate(&mut self, id: u16, write: Write) -> u64 {
        let description = deallocated(blocks_of(write.piece, &self.limits));
        let (place, data) = match self.limits.capsule_bytes >= DEALLOCATED_BYTES as u64 {
            true => (DataPlace::InCapsule, &description[..]),
            false => (DataPlace::OnRequest, &[][..]),
        };
        let sqe = Sqe::deallocate(self.limits.nsid, place).named(id);
        self.send_without_payload(sqe, data);
        data.len() as u64
    }

    fn without_data(&mut self, sqe: Sqe) -> u64 {
        self.send_without_payload(sqe, &[]);
        0
    }

    /// Queues a command with `data` in its capsule.
    fn send_without_payload(&mut self, sqe: Sqe, data: &[u8]) {
        let mut text = Vec::new();
        Capsule::write_all(&sqe, data, self.digests, &mut text);
        let payload = None;
        self.outbox.push_command(OutgoingPdu { text, payload });
    }

    fn on_pdu(&mut self, pdu: FromController, header: &[u8]) -> Result<(), Fault> {
        match pdu {
            FromController::Response(cqe) => self.on_response(&cqe, header),
            FromController::ReadyToTransfer(transfer) => self.on_transfer(&transfer, header),
            FromController::Terminated(end) => {
                let why = FatalStatus::meaning(end.status);
                let cause = format!("the controller ended the connection: {why}");
                Err(Fault::Broken(cause.into()))
            }
            FromController::Handshake(_) | FromController::Data(_) => Err(self.wrong(
                FatalStatus::Sequence,
                "a PDU that no write is answered with",
                header,
            )),
        }
    }

    fn on_transfer(&mut self, transfer: &Transfer, header: &[u8]) -> Result<(), Fault> {
        let Transfer {
            command_id,
            tag,
            offset,
            len,
        } = *transfer;
        let Some(pending) = self.pending.get_mut(command_id.into()) else {
            return Err(self.wrong(
                FatalStatus::Sequence,
                "a request for data without a command",
                header,
            ));
        };
        let end = u64::from(offset).saturating_add(len.into());
        if u64::from(offset) != pending.requested || end > pending.data_bytes() {
            return Err(self.wrong(
                FatalStatus::OutOfRange,
                "a request for data before, behind or twice in those of their command",
                header,
            ));
        }
        pending.requested = end;
        let write = pending.write;
        // Until it is sent, the controller may not request more of it, because the host has agreed to one transfer of a command at a
        // time (TCP Transport, "ICReq", MAXR2T).
        if self.outbox.has_payload_of(command_id) {
            return Err(self.wrong(
                FatalStatus::LimitExceeded,
                "a request for data while those of the last one are sent",
                header,
            ));
        }
        let mut start = u64::from(offset);
        while start < end {
            let now = (end - start).min(self.most_data.into());
            // Both are parts of a range of 32 bits.
            let part = DataHeader {
                command_id,
                transfer_tag: tag,
                offset: u32::try_from(start).unwrap_or(u32::MAX),
                len: u32::try_from(now).unwrap_or(u32::MAX),
                is_last: start + now == end,
                is_success: false,
            };
            self.send_part(&part, write);
            start += now;
        }
        Ok(())
    }

    /// Queues one PDU of data.
    fn send_part(&mut self, part: &DataHeader, write: Write) {
        let mut text = Vec::new();
        Data::from_host(part, self.digests, &mut text);
        if write.operation != Operation::Trim {
            let (start, len) = (u64::from(part.offset), u64::from(part.len));
            let payload = Some((part.command_id, start..start + len));
            self.outbox.push_data(OutgoingPdu { text, payload });
            return;
        }
        let description = deallocated(blocks_of(write.piece, &self.limits));
        let bytes = description.iter().skip(part.offset as usize);
        let bytes: Vec<u8> = bytes.take(part.len as usize).copied().collect();
        text.extend_from_slice(&bytes);
        if self.digests.data {
            text.extend_from_slice(&nvme::pdu::digest_after(0, &bytes).to_le_bytes());
        }
        let payload = None;
        self.outbox.push_data(OutgoingPdu { text, payload });
    }

    fn on_response(&mut self, cqe: &Cqe, header: &[u8]) -> Result<(), Fault> {
        let id = cqe.command_id.get();
        let Some(pending) = self.pending.get(id.into()).copied() else {
            return Err(self.wrong(
                FatalStatus::Sequence,
                "a response without a command",
                header,
            ));
        };
        let status = cqe.status();
        if !status.is_success() {
            return Err(self.refused(pending.write, status));
        }
        if pending.requested < pending.data_bytes() {
            return Err(self.wrong(
                FatalStatus::Sequence,
                "a write has succeeded, and its data were not requested",
                header,
            ));
        }
        self.pending.remove(id.into());
        self.completed.push_back((id.into(), pending.write));
        Ok(())
    }

    fn refused(&self, write: Write, status: Status) -> Fault {
        match status.is_of_the_path() {
            true => Fault::Broken(format!("a write: {status}").into()),
            false => Fault::Fatal(StoreError::Nvme {
                host: self.host.clone(),
                operation: write.operation,
                start: write.piece.start,
                end: write.piece.end,
                status: status.to_string(),
                remedy: remedy_of(status).into(),
            }),
        }
    }

    /// Returns the fault of a controller that breaks the rules, which is told so.
    fn wrong(&mut self, status: FatalStatus, problem: &'static str, header: &[u8]) -> Fault {
        let error = PduError {
            status,
            offset: 0,
            problem,
        };
        self.invalid_pdu(&error, header)
    }

    /// Returns the fault of a PDU that makes no sense, of which the controller is notified when the connection ends.
    fn invalid_pdu(&mut self, error: &PduError, header: &[u8]) -> Fault {
        let mut word = Vec::new();
        terminate(Side::Host, error, header, &mut word);
        self.last_word = Some(word);
        let (host, problem) = (self.host.clone(), error.problem.to_owned());
        LoadError::Invalid {
            host,
            problem: problem.into(),
        }
        .into()
    }
}

impl Session for NvmeSession {
    fn accepts(&self) -> bool {
        self.pending.len() < self.window
    }

    fn request(&mut self, write: Write) -> u64 {
        let id = self.new_id();
        let nsid = self.limits.nsid;
        let requested = match write.operation {
            Operation::Write => self.write(id, write),
            Operation::WriteZeroes => {
                let blocks = blocks_of(write.piece, &self.limits);
                let sqe = Sqe::write_zeroes(nsid, blocks, self.is_durable());
                self.without_data(sqe.named(id))
            }
            Operation::Trim => self.deallocate(id, write),
            Operation::Flush => self.without_data(Sqe::flush(nsid).named(id)),
        };
        self.pending
            .add(id.into(), PendingCommand { write, requested });
        id.into()
    }

    fn outgoing(&mut self) -> Option<Outgoing> {
        self.outbox.next()
    }

    fn missing(&self) -> usize {
        match parse_from_controller(&self.text, self.digests) {
            _ if self.pending.is_empty() => 0,
            Ok(Parsed::More(more)) => more,
            // `on_text` has taken whole PDUs, and refused wrong ones.
            Ok(Parsed::Whole(_)) | Err(_) => 1,
        }
    }

    fn on_text(&mut self, bytes: &[u8]) -> Result<(), Fault> {
        self.text.extend_from_slice(bytes);
        let parsed = parse_from_controller(&self.text, self.digests);
        if let Ok(Parsed::More(_)) = parsed {
            return Ok(());
        }
        let header = std::mem::take(&mut self.text);
        match parsed {
            Ok(Parsed::Whole(pdu)) => self.on_pdu(pdu, &header),
            Ok(Parsed::More(_)) => Ok(()),
            Err(error) => {
                let fault = self.invalid_pdu(&error, &header);
                match error.status {
                    // Another connection may carry the bytes unchanged.
                    FatalStatus::HeaderDigest => Err(Fault::Broken(error.problem.into())),
                    _ => Err(fault),
                }
            }
        }
    }

    fn on_end(&self) -> Fault {
        Fault::Broken("the controller closed the connection".into())
    }

    fn invalid(&mut self, problem: &'static str) -> Fault {
        self.wrong(FatalStatus::Sequence, problem, &[])
    }

    fn completed(&mut self) -> Option<(u64, Write)> {
        self.completed.pop_front()
    }

    fn is_waiting(&self) -> bool {
        !self.pending.is_empty()
    }

    fn take_outstanding(&mut self) -> Vec<Write> {
        if !self.pending.is_empty() {
            self.membership.end_association();
        }
        self.pending.take().map(|pending| pending.write).collect()
    }

    fn check(&self) -> Result<(), Fault> {
        match self.membership.has_ended() {
            // A flush of another association need not cover what this one has acknowledged.
            true => Err(Fault::Broken(
                "another queue of the association was lost".into(),
            )),
            false => Ok(()),
        }
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

/// What a handshake and a Connect have found of a queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueLimits {
    pub(crate) digests: Digests,
    pub(crate) most_data: u32,
    pub(crate) depth: usize,
}

impl QueueLimits {
    pub(crate) fn of(queue: &IoQueue) -> Self {
        Self {
            digests: queue.digests,
            most_data: queue.most_data,
            depth: queue.depth,
        }
    }
}

/// Returns the remedy for the status of a write.
fn remedy_of(status: Status) -> &'static str {
    match status {
        it if it.is(Status::WRITE_PROTECTED) || it.is(Status::READ_ONLY_RANGE) => {
            "the namespace is read-only: end its write protection there"
        }
        it if it.is(Status::LBA_OUT_OF_RANGE) => {
            "the namespace has shrunk since it was opened: make it larger, and store all bytes again"
        }
        it if it.is(Status::INVALID_NAMESPACE) => {
            "the namespace has vanished since it was opened: enable it there, and store all bytes again"
        }
        it if it.is(Status::CAPACITY_EXCEEDED) => {
            "make room where the controller keeps the namespace, and store all bytes again"
        }
        _ => "the log of the controller says why",
    }
}

/// Feeds a session with a controller's bytes, for the fuzz target. Writes are in their capsule, or on request.
#[cfg(feature = "test-util")]
pub(crate) fn fuzz(digests: Digests, is_in_capsule: bool, depth: usize, cut: u8, bytes: &[u8]) {
    let limits = Limits {
        capsule_bytes: if is_in_capsule { 1 << 20 } else { 0 },
        ..Limits::FOR_TESTS
    };
    let queue = QueueLimits {
        digests,
        most_data: 4096,
        depth,
    };
    let membership = Membership::of_nobody();
    let session = NvmeSession::new("host", limits, &queue, Acknowledge::Received, membership);
    super::fuzz::drive(Box::new(session), cut, bytes);
}

#[cfg(test)]
mod tests;
