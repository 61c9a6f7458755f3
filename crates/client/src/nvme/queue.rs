//! One connection of an association: its handshake, and commands one at a time on host memory.

use std::io::Write;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use devmem_tcp::{Netdev, RecvError, RxBatch, Stream};
use nvme::Status;
use nvme::command::Sqe;
use nvme::pdu::{
    Capsule, Cqe, DIGEST_BYTES, DataHeader, Digests, FatalStatus, FromController, Handshake,
    HandshakeAnswer, HandshakeRequest, Parsed, digest_after, parse_from_controller,
};

use super::refusal::refused;
use crate::cause::Cause;
use crate::dial::{self, CancelCheck, SLICE};
use crate::error::LoadError;

/// How long to wait for each answer.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Least bytes of data that a controller must take in one PDU (TCP Transport, "ICResp", MAXH2CDATA).
const LEAST_MOST_DATA: u32 = 4096;
/// Frags of an answer: a page at most.
const BATCH_FRAGS: usize = 64;

/// A connection with a handshake.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) stream: Stream,
    batch: RxBatch,
    host: String,
    pub(super) digests: Digests,
    /// Most bytes of data in one PDU to the controller.
    pub(super) most_data: u32,
    next_id: u16,
    limit: Duration,
}

impl Queue {
    /// Connects, and agrees on the shape of PDUs.
    ///
    /// # Errors
    /// Nobody listens, or it is no NVMe/TCP controller, or one with other requirements.
    pub(super) fn open(
        nic: &Netdev,
        addresses: &[SocketAddr],
        host: &str,
        digests: Digests,
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<Self, LoadError> {
        let stream = dial::connect(nic, addresses, cancel_check)?;
        stream.set_timeout(Some(SLICE));
        let mut queue = Self {
            stream,
            batch: RxBatch::with_capacity(BATCH_FRAGS),
            host: host.to_owned(),
            digests: Digests::default(),
            most_data: 0,
            next_id: 0,
            limit: ANSWER_LIMIT,
        };
        let request = HandshakeRequest {
            version: 0,
            alignment: 0,
            digests,
            most_transfers: 0,
        };
        queue.write(&Handshake::request(request))?;
        match queue.read_pdu(cancel_check)? {
            FromController::Handshake(answer) => {
                queue.most_data = queue.check(&answer, digests)?;
                queue.digests = digests;
                Ok(queue)
            }
            _ => Err(queue.invalid("its first PDU is not the answer to the first of the host")),
        }
    }

    /// Checks the answer to the handshake; returns the most data of one PDU.
    fn check(&self, answer: &HandshakeAnswer, digests: Digests) -> Result<u32, LoadError> {
        let HandshakeAnswer {
            version,
            alignment,
            digests: theirs,
            most_data,
        } = *answer;
        if version != 0 {
            return Err(self.invalid("it has another version of the PDU format than 0"));
        }
        if alignment != 0 {
            return Err(self.invalid("it wants data to be aligned, which this host does not do"));
        }
        if theirs != digests {
            let remedy =
                "leave hdr-digest= and data-digest= away, or ask for what its configuration has";
            let problem = format!(
                "digests of header and data {:?} were requested, and it has {:?}",
                (digests.header, digests.data),
                (theirs.header, theirs.data)
            );
            return Err(refused(&self.host, problem, remedy));
        }
        if most_data < LEAST_MOST_DATA || most_data % 4 != 0 {
            return Err(self.invalid("it takes fewer than 4096 bytes of data in one PDU"));
        }
        Ok(most_data)
    }

    /// Sets how long to wait for each answer.
    pub(super) fn set_limit(&mut self, limit: Duration) {
        self.limit = limit;
    }

    /// Issues a command with `data` in its capsule, and waits for its end. What it reads is in `out`. Returns the result, or
    /// the status of a command that failed.
    ///
    /// # Errors
    /// The connection broke, or the answer makes no sense.
    pub(super) fn command(
        &mut self,
        sqe: Sqe,
        data: &[u8],
        out: &mut [u8],
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<Result<u64, Status>, LoadError> {
        let id = self.issue(sqe, data)?;
        let mut filled = 0;
        let result = loop {
            match self.read_pdu(cancel_check)? {
                FromController::Data(data) => {
                    filled = self.read_data(&data, id, out, filled, cancel_check)?;
                    if data.is_success {
                        break Ok(0);
                    }
                }
                FromController::Response(cqe) if cqe.command_id.get() == id => {
                    break result_of(&cqe);
                }
                FromController::Response(_) => {
                    return Err(self.invalid("a response without a command"));
                }
                FromController::Terminated(end) => {
                    let why = FatalStatus::meaning(end.status);
                    return Err(self.broken(format!("the controller ended the connection: {why}")));
                }
                FromController::Handshake(_) | FromController::ReadyToTransfer(_) => {
                    return Err(self.invalid("a PDU that may not come now"));
                }
            }
        };
        match result.is_ok() && filled < out.len() {
            true => Err(self.invalid("a command has succeeded, and data are missing")),
            false => Ok(result),
        }
    }

    /// Sends a command with data in its capsule; returns its name.
    pub(super) fn issue(&mut self, sqe: Sqe, data: &[u8]) -> Result<u16, LoadError> {
        let id = self.next_id;
        self.next_id = self.next_id.wrapping_add(1);
        let mut capsule = Vec::new();
        Capsule::write_all(&sqe.named(id), data, self.digests, &mut capsule);
        self.write(&capsule)?;
        Ok(id)
    }

    /// Reads the data of a PDU to `out`, of which `filled` bytes are there; returns how many are then.
    fn read_data(
        &mut self,
        data: &DataHeader,
        id: u16,
        out: &mut [u8],
        filled: usize,
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<usize, LoadError> {
        let end = filled.checked_add(data.len as usize);
        let place = end.and_then(|end| out.get_mut(filled..end));
        let Some(place) = place.filter(|_| data.command_id == id && data.offset as usize == filled)
        else {
            return Err(self.invalid("data that were not requested"));
        };
        self.read(place, cancel_check)?;
        if self.digests.data {
            let mut digest = [0; DIGEST_BYTES];
            self.read(&mut digest, cancel_check)?;
            if u32::from_le_bytes(digest) != digest_after(0, place) {
                return Err(self.broken("the digest of data is wrong"));
            }
        }
        Ok(filled + place.len())
    }

    fn read_pdu(
        &mut self,
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<FromController, LoadError> {
        let mut header = Vec::new();
        loop {
            match parse_from_controller(&header, self.digests) {
                Ok(Parsed::Whole(pdu)) => return Ok(pdu),
                Ok(Parsed::More(more)) => {
                    let before = header.len();
                    header.resize(before + more, 0);
                    self.read(&mut header[before..], cancel_check)?;
                }
                Err(error) => return Err(self.invalid(error.problem)),
            }
        }
    }

    fn read(
        &mut self,
        out: &mut [u8],
        cancel_check: &mut CancelCheck<'_>,
    ) -> Result<(), LoadError> {
        let (mut filled, start) = (0, Instant::now());
        while filled < out.len() {
            dial::check_cancelled(cancel_check)?;
            if start.elapsed() >= self.limit {
                return Err(self.broken("the controller does not answer in time"));
            }
            filled += self.read_some(&mut out[filled..])?;
        }
        Ok(())
    }

    /// Reads what is there, or waits for the time of a slice, unless the stream does not block; 0 if nothing came.
    pub(super) fn read_some(&mut self, out: &mut [u8]) -> Result<usize, LoadError> {
        match self.stream.recv_at_most(&mut self.batch, out.len()) {
            Ok(0) => Err(self.broken("the controller closed the connection")),
            Ok(_) => {
                let copied = self.batch.copy_to(out).map_err(LoadError::Gather)?;
                // Their memory is needed for the next bytes.
                let released = self.batch.release();
                released.map_err(|error| self.broken(Cause::of(&error)))?;
                Ok(copied)
            }
            Err(RecvError::TimedOut { .. } | RecvError::WouldBlock) => Ok(0),
            Err(RecvError::Failed(error)) => Err(self.broken(Cause::of(&error))),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), LoadError> {
        let written = self.stream.write_all(bytes);
        written.map_err(|error| self.broken(Cause::of_io(error)))
    }

    pub(super) fn invalid(&self, problem: &str) -> LoadError {
        LoadError::Invalid {
            host: self.host.clone(),
            problem: problem.into(),
        }
    }

    pub(super) fn broken(&self, problem: impl Into<Cause>) -> LoadError {
        LoadError::Broken {
            host: self.host.clone(),
            problem: problem.into(),
        }
    }
}

fn result_of(cqe: &Cqe) -> Result<u64, Status> {
    match cqe.status().is_success() {
        true => Ok(cqe.result.get()),
        false => Err(cqe.status()),
    }
}
