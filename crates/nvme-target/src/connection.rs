//! One connection: PDUs in, PDUs out.

use std::io::{self, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nvme::Status;
use nvme::command::{CONNECT, CONNECT_BYTES, ConnectData, FABRICS, Sqe};
use nvme::pdu::{
    Cqe, DIGEST_BYTES, DataHeader, Digests, FatalStatus, FromHost, Handshake, HandshakeAnswer,
    HandshakeRequest, Parsed, PduError, Side, digest_after, parse_from_host, response, terminate,
};

use crate::controller::Controller;
use crate::disk::write_parts;
use crate::mistake::Mistake;
use crate::{Counts, Shared, admin, io_queue};

/// Most data that a host may send with one command or PDU in this target.
const MOST_DATA: u32 = 4 << 20;

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum End {
    /// The host has closed it, or the target does.
    #[error("the connection is closed")]
    Closed,
    /// It broke.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The host has made a mistake.
    #[error(transparent)]
    Host(#[from] PduError),
}

/// A connection.
pub(crate) struct Connection {
    reader: BufReader<TcpStream>,
    writer: TcpStream,
    /// PDUs that leave together, before the next wait for the host.
    outgoing: Vec<u8>,
    pub(crate) digests: Digests,
    /// The PDU that was read last.
    header: Vec<u8>,
    pub(crate) shared: Arc<Shared>,
}

/// Serves a connection to its end.
pub(crate) fn serve(stream: TcpStream, shared: &Arc<Shared>) {
    let _ = stream.set_nodelay(true);
    let Ok(writer) = stream.try_clone() else {
        return;
    };
    let mut connection = Connection {
        reader: BufReader::with_capacity(64 << 10, stream),
        writer,
        outgoing: Vec::new(),
        digests: Digests::default(),
        header: Vec::new(),
        shared: Arc::clone(shared),
    };
    Counts::add(&shared.counts.open, 1);
    if let Err(End::Host(error)) = connection.run() {
        let mut last = Vec::new();
        terminate(Side::Controller, &error, &connection.header, &mut last);
        connection.send(&last);
    }
    let _ = connection.flush();
    let _ = connection.writer.shutdown(std::net::Shutdown::Both);
    shared.counts.open.fetch_sub(1, Ordering::Relaxed);
}

impl Connection {
    fn run(&mut self) -> Result<(), End> {
        self.shake_hands()?;
        let FromHost::Command { sqe, data_bytes } = self.read_pdu()? else {
            return Err(sequence("the first command is missing").into());
        };
        let data = self.read_capsule_data(data_bytes)?;
        let is_connect = sqe.opcode == FABRICS && sqe.fabrics_type() == CONNECT;
        if !is_connect || data.len() != CONNECT_BYTES {
            return Err(sequence("the first command is no Connect").into());
        }
        let id = sqe.command_id.get();
        let queue = sqe.as_connect().queue;
        match self.connect(&sqe, &data) {
            Ok(controller) => {
                // The higher bits would ask for authentication.
                let authentication = match self.shared.subsystem.wants_authentication && queue == 0
                {
                    true => 1 << 17,
                    false => 0,
                };
                self.respond(
                    id,
                    u64::from(controller.id) | authentication,
                    Status::SUCCESS,
                );
                self.serve_queue(queue, &sqe, &controller)
            }
            Err(status) => {
                self.respond(id, 0, status);
                Ok(())
            }
        }
    }

    fn serve_queue(
        &mut self,
        queue: u16,
        connect: &Sqe,
        controller: &Controller,
    ) -> Result<(), End> {
        if queue == 0 {
            let ended = admin::serve(self, controller);
            Arc::clone(&self.shared).controllers.remove(controller);
            return ended;
        }
        let ended = io_queue::serve(self, queue, connect);
        controller.disconnect(queue);
        ended
    }

    fn shake_hands(&mut self) -> Result<(), End> {
        let FromHost::Handshake(request) = self.read_pdu()? else {
            return Err(sequence("the first PDU is no handshake").into());
        };
        let HandshakeRequest {
            version, alignment, ..
        } = request;
        if version != 0 || alignment != 0 {
            return Err(PduError {
                status: FatalStatus::Unsupported,
                offset: 8,
                problem: "version of the PDU format, or alignment",
            }
            .into());
        }
        let (subsystem, counts) = (&self.shared.subsystem, &self.shared.counts);
        let number = counts.connections.fetch_add(1, Ordering::Relaxed);
        let agreed = Digests {
            header: request.digests.header && subsystem.digests.header,
            data: request.digests.data && subsystem.digests.data,
        };
        let mut answer = HandshakeAnswer {
            version: 0,
            alignment: 0,
            digests: agreed,
            most_data: subsystem.most_data.min(MOST_DATA),
        };
        match subsystem.mistakes.take(number, Mistake::is_of_handshake) {
            Some(Mistake::OtherVersion) => answer.version = 1,
            Some(Mistake::Alignment) => answer.alignment = 31,
            Some(Mistake::LittleData) => answer.most_data = 512,
            Some(Mistake::NoHandshake) => {
                self.respond(0, 0, Status::SUCCESS);
                return Ok(());
            }
            _ => {}
        }
        self.send(&Handshake::answer(answer));
        self.digests = agreed;
        Ok(())
    }

    fn connect(&mut self, sqe: &Sqe, data: &[u8]) -> Result<Arc<Controller>, Status> {
        let subsystem = &self.shared.subsystem;
        let data = ConnectData::parse(data).ok_or(Status::CONNECT_FORMAT.do_not_retry())?;
        let is_discovery = data.subsystem_nqn == nvme::DISCOVERY_NQN;
        if data.subsystem_nqn != subsystem.nqn && !is_discovery {
            return Err(Status::CONNECT_INVALID.do_not_retry());
        }
        let allowed = subsystem.allowed_host.as_ref();
        if allowed.is_some_and(|allowed| *allowed != data.host_nqn) {
            return Err(Status::CONNECT_HOST.do_not_retry());
        }
        let connect = sqe.as_connect();
        if connect.entries > subsystem.queue_entries.max(32) {
            return Err(Status::CONNECT_INVALID.do_not_retry());
        }
        let stream = self.writer.try_clone().map_err(|_| Status::INTERNAL)?;
        if connect.queue == 0 {
            let added = self.shared.controllers.add(data.host_nqn, stream);
            Counts::add(&self.shared.counts.associations, 1);
            return added.ok_or(Status::CONNECT_BUSY);
        }
        if connect.queue > subsystem.queues
            || (connect.without_flow_control && !subsystem.allows_no_flow_control)
        {
            return Err(Status::CONNECT_INVALID.do_not_retry());
        }
        let found = self
            .shared
            .controllers
            .get(data.controller_id, &data.host_nqn);
        let controller = found.ok_or(Status::CONNECT_INVALID.do_not_retry())?;
        controller.connect(connect.queue, stream)?;
        Ok(controller)
    }

    /// Returns whether the next PDU has begun to arrive.
    pub(crate) fn has_more(&self) -> bool {
        !self.reader.buffer().is_empty()
    }

    /// Reads a PDU up to its data.
    pub(crate) fn read_pdu(&mut self) -> Result<FromHost, End> {
        self.header.clear();
        loop {
            match parse_from_host(&self.header, self.digests)? {
                Parsed::Whole(FromHost::Terminated(_)) => {
                    Counts::add(&self.shared.counts.terminations, 1);
                    return Err(End::Closed);
                }
                Parsed::Whole(pdu) => return Ok(pdu),
                Parsed::More(more) => {
                    let before = self.header.len();
                    self.header.resize(before + more, 0);
                    self.read(before)?;
                }
            }
        }
    }

    fn read(&mut self, from: usize) -> Result<(), End> {
        self.flush_before(self.header.len() - from)?;
        let read = self.reader.read_exact(&mut self.header[from..]);
        read.map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => End::Closed,
            _ => End::Io(error),
        })
    }

    /// Reads the data of a command, and checks their digest.
    pub(crate) fn read_capsule_data(&mut self, len: u32) -> Result<Vec<u8>, End> {
        if len > self.shared.subsystem.capsule_bytes.max(8 << 10) {
            return Err(limit("more data in a capsule than it may have").into());
        }
        let mut data = Vec::new();
        if len > 0 {
            self.read_data(len, &mut data)?;
        }
        Ok(data)
    }

    /// Reads data of a PDU to `data`, and checks their digest.
    pub(crate) fn read_data(&mut self, len: u32, data: &mut Vec<u8>) -> Result<(), End> {
        if len > MOST_DATA {
            return Err(limit("more data in one PDU than were agreed on").into());
        }
        self.flush_before(len as usize + self.digests.data_bytes())?;
        data.resize(len as usize, 0);
        self.reader.read_exact(data)?;
        if self.digests.data {
            let mut digest = [0; DIGEST_BYTES];
            self.reader.read_exact(&mut digest)?;
            if u32::from_le_bytes(digest) != digest_after(0, data) {
                return Err(End::Host(PduError {
                    status: FatalStatus::InvalidField,
                    offset: 0,
                    problem: "the digest of data is wrong",
                }));
            }
        }
        Ok(())
    }

    /// Queues PDUs, which leave before the next wait for the host, or with the next data.
    pub(crate) fn send(&mut self, pdus: &[u8]) {
        self.outgoing.extend_from_slice(pdus);
    }

    fn flush(&mut self) -> io::Result<()> {
        let sent = self.writer.write_all(&self.outgoing);
        self.outgoing.clear();
        sent
    }

    /// Sends what is queued if the next `len` bytes have not all come yet.
    fn flush_before(&mut self, len: usize) -> io::Result<()> {
        match self.reader.buffer().len() < len && !self.outgoing.is_empty() {
            true => self.flush(),
            false => Ok(()),
        }
    }

    pub(crate) fn respond(&mut self, id: u16, result: u64, status: Status) {
        response(&cqe(id, result, status), self.digests, &mut self.outgoing);
    }

    /// Sends data in host memory for a command that has succeeded, and its response.
    pub(crate) fn respond_with(&mut self, id: u16, data: &[u8]) -> Result<(), End> {
        let header = DataHeader {
            command_id: id,
            transfer_tag: 0,
            offset: 0,
            len: u32::try_from(data.len()).unwrap_or(u32::MAX),
            is_last: true,
            is_success: false,
        };
        self.send_data(&header, data)?;
        self.respond(id, 0, Status::SUCCESS);
        Ok(())
    }

    /// Sends one PDU of data, behind what is queued.
    pub(crate) fn send_data(&mut self, header: &DataHeader, data: &[u8]) -> Result<(), End> {
        nvme::pdu::Data::from_controller(header, self.digests, &mut self.outgoing);
        let digest = match self.digests.data {
            true => digest_after(0, data).to_le_bytes().to_vec(),
            false => Vec::new(),
        };
        let sent = write_parts(&mut self.writer, [&self.outgoing, data, &digest]);
        self.outgoing.clear();
        Ok(sent?)
    }
}

pub(crate) fn cqe(id: u16, result: u64, status: Status) -> Cqe {
    Cqe {
        result: result.into(),
        sq_head: 0.into(),
        sq_id: 0.into(),
        command_id: id.into(),
        status: status.to_field().into(),
    }
}

pub(crate) fn sequence(problem: &'static str) -> PduError {
    PduError {
        status: FatalStatus::Sequence,
        offset: 0,
        problem,
    }
}

pub(crate) fn limit(problem: &'static str) -> PduError {
    PduError {
        status: FatalStatus::LimitExceeded,
        offset: 0,
        problem,
    }
}
