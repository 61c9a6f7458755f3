//! An I/O queue: reads, writes, and what they may do wrong.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nvme::Status;
use nvme::command::{
    Connect, DATASET_MANAGEMENT, DEALLOCATED_BYTES, FLUSH, READ, Sqe, WRITE, WRITE_ZEROES,
    as_deallocated,
};
use nvme::pdu::{
    DataHeader, FatalStatus, FromHost, PduError, Transfer, ready_to_transfer, response,
};

use crate::connection::{Connection, End, cqe, limit, sequence};
use crate::disk::Disk;
use crate::mistake::Mistake;
use crate::{Counts, Shared};

/// Most commands that are answered in reverse order together.
const MOST_TOGETHER: usize = 8;

/// The queue of a connection.
struct Queue<'a> {
    connection: &'a mut Connection,
    shared: Arc<Shared>,
    number: u16,
    connect: Connect,
    /// Writes whose data were requested, by the tag of their transfer.
    writes: BTreeMap<u16, Pending>,
    next_tag: u16,
    /// The data of the last PDU: its memory is used again.
    data: Vec<u8>,
}

/// A write whose data were requested.
#[derive(Debug)]
struct Pending {
    sqe: Sqe,
    /// Bytes that have come.
    received: u32,
    /// End of the bytes that were requested.
    requested: u32,
    total: u32,
    /// The data of a command that has none of the namespace.
    text: Vec<u8>,
    /// What its response does wrong.
    mistake: Option<Mistake>,
}

/// Serves an I/O queue to its end.
pub(crate) fn serve(connection: &mut Connection, number: u16, connect: &Sqe) -> Result<(), End> {
    let shared = Arc::clone(&connection.shared);
    let mut queue = Queue {
        connection,
        shared,
        number,
        connect: connect.as_connect(),
        writes: BTreeMap::new(),
        next_tag: 1,
        data: Vec::new(),
    };
    loop {
        queue.turn()?;
    }
}

impl Queue<'_> {
    /// Answers the commands that have come together.
    fn turn(&mut self) -> Result<(), End> {
        let mut commands = Vec::new();
        loop {
            match self.connection.read_pdu()? {
                FromHost::Command { sqe, data_bytes } => {
                    let data = self.connection.read_capsule_data(data_bytes)?;
                    commands.push((sqe, data));
                }
                FromHost::Data(data) => self.on_data(&data)?,
                FromHost::Handshake(_) | FromHost::Terminated(_) => {
                    return Err(sequence("a second handshake").into());
                }
            }
            let goes_on = self.shared.subsystem.reverses && commands.len() < MOST_TOGETHER;
            if !goes_on || !self.connection.has_more() {
                break;
            }
        }
        for (sqe, data) in commands.into_iter().rev() {
            self.on_command(&sqe, &data)?;
        }
        Ok(())
    }

    fn on_command(&mut self, sqe: &Sqe, data: &[u8]) -> Result<(), End> {
        let counts = &self.shared.counts;
        let number = counts.commands.fetch_add(1, Ordering::Relaxed);
        let fits = |mistake: Mistake| {
            !mistake.is_of_handshake()
                && !mistake.is_of_admin()
                && (!mistake.is_of_read() || sqe.opcode == READ)
                && (!mistake.is_of_write() || sqe.opcode == WRITE)
        };
        let mistake = self.shared.subsystem.mistakes.take(number, fits);
        let id = sqe.command_id.get();
        match mistake {
            Some(Mistake::Closes) => return Err(End::Closed),
            Some(Mistake::Silence) => loop {
                // Until the host gives up.
                self.connection.read_pdu()?;
                Counts::add(&self.shared.counts.commands, 1);
            },
            Some(Mistake::Terminates) => {
                return Err(limit("a mistake that the host has not made").into());
            }
            Some(Mistake::Fails(status)) => {
                self.connection.respond(id, 0, status);
                return Ok(());
            }
            Some(Mistake::ResponseForNobody) => {
                let nobody = id.wrapping_add(999);
                self.connection.respond(nobody, 0, Status::SUCCESS);
                return Ok(());
            }
            Some(Mistake::HeaderDigest) => {
                self.respond_wrongly(id);
                return Ok(());
            }
            _ => {}
        }
        match self.execute(sqe, data, mistake)? {
            Some(done) => self.respond(id, done, mistake),
            None if mistake == Some(Mistake::EarlyResponse) => self.respond(id, Ok(()), None),
            None => {}
        }
        Ok(())
    }

    /// Executes a command. Returns how it ended, `None` if it has been answered or goes on.
    fn execute(
        &mut self,
        sqe: &Sqe,
        data: &[u8],
        mistake: Option<Mistake>,
    ) -> Result<Option<Result<(), Status>>, End> {
        let disk = match self.disk(sqe) {
            Ok(disk) => disk,
            Err(status) => return Ok(Some(Err(status))),
        };
        let has_optional = self.shared.subsystem.has_optional_commands;
        match sqe.opcode {
            READ => self.read(&disk, sqe, mistake),
            WRITE => self.write(&disk, sqe, data, mistake),
            FLUSH => {
                Counts::add(&self.shared.counts.flushes, 1);
                Ok(Some(disk.flush().map_err(|_| Status::INTERNAL)))
            }
            WRITE_ZEROES if has_optional => {
                let zeroed = disk.writable_range(sqe.as_blocks());
                let zeroed = zeroed.and_then(|range| write_zeroes(&disk, range, sqe.is_durable()));
                Ok(Some(zeroed))
            }
            DATASET_MANAGEMENT if has_optional => match sqe.has_data_in_capsule() {
                true => Ok(Some(deallocate(&disk, data))),
                false => {
                    self.request(sqe, DEALLOCATED_BYTES as u32, mistake);
                    Ok(None)
                }
            },
            _ => Ok(Some(Err(Status::INVALID_OPCODE.do_not_retry()))),
        }
    }

    fn disk(&self, sqe: &Sqe) -> Result<Arc<Disk>, Status> {
        if !sqe.is_well_formed() {
            return Err(Status::INVALID_FIELD.do_not_retry());
        }
        let index = sqe.nsid().checked_sub(1).map(|index| index as usize);
        let disk = index.and_then(|index| self.shared.subsystem.disks.get(index));
        disk.filter(|disk| disk.is_active())
            .cloned()
            .ok_or(Status::INVALID_NAMESPACE.do_not_retry())
    }

    fn check_length(&self, sqe: &Sqe, range: &Range<u64>) -> Result<u32, Status> {
        let len = range.end - range.start;
        let longest = match self.shared.subsystem.transfer_log2 {
            0 => u64::from(u32::MAX),
            log2 => 4096 << log2,
        };
        if len > longest {
            return Err(Status::INVALID_FIELD.do_not_retry());
        }
        match u64::from(sqe.data_bytes()) == len {
            // It is the length of the data, of 32 bits.
            true => Ok(sqe.data_bytes()),
            false => Err(Status::INVALID_SGL_LENGTH.do_not_retry()),
        }
    }

    fn read(
        &mut self,
        disk: &Disk,
        sqe: &Sqe,
        mistake: Option<Mistake>,
    ) -> Result<Option<Result<(), Status>>, End> {
        let range = disk.range(sqe.as_blocks());
        let checked = range.and_then(|range| Ok((self.check_length(sqe, &range)?, range)));
        let (len, range) = match checked {
            Ok(checked) => checked,
            Err(status) => return Ok(Some(Err(status))),
        };
        if mistake == Some(Mistake::NoData) {
            return Ok(Some(Ok(())));
        }
        let id = sqe.command_id.get();
        let without_response = self.connect.without_flow_control && mistake.is_none();
        let part_bytes = self.shared.subsystem.part_bytes.max(1) as usize;
        let (mut ended, mut offset) = (Ok(()), 0);
        let read = disk.read(range, &mut |bytes| {
            for part in bytes.chunks(part_bytes) {
                // A part of a transfer of 32 bits.
                let part_len = u32::try_from(part.len()).unwrap_or(u32::MAX);
                let is_last = offset + part_len == len;
                let header = DataHeader {
                    command_id: id,
                    transfer_tag: 0,
                    offset,
                    len: part_len,
                    is_last,
                    is_success: is_last && without_response,
                };
                ended = match mistake.filter(|_| offset == 0) {
                    Some(mistake) => self.send_wrongly(header, part, mistake),
                    None => self.connection.send_data(&header, part),
                };
                if ended.is_err() {
                    return Err(std::io::ErrorKind::Other.into());
                }
                offset += part_len;
            }
            Ok(())
        });
        ended?;
        Ok(match (read, without_response) {
            (Err(_), _) => Some(Err(Status::UNRECOVERED_READ)),
            (Ok(()), true) => None,
            (Ok(()), false) => Some(Ok(())),
        })
    }

    /// Sends data with a mistake.
    fn send_wrongly(
        &mut self,
        mut header: DataHeader,
        data: &[u8],
        mistake: Mistake,
    ) -> Result<(), End> {
        match mistake {
            Mistake::DataForNobody => header.command_id = header.command_id.wrapping_add(999),
            Mistake::DataBefore => header.offset = header.offset.wrapping_sub(4),
            Mistake::DataBeyond => {
                header.len = header.len.saturating_add(512);
                let longer = [data, &[0xbd; 512]].concat();
                return self.connection.send_data(&header, &longer);
            }
            Mistake::DataTwice => {
                header.is_last = false;
                self.connection.send_data(&header, data)?;
            }
            Mistake::DataOverlaps => {
                let (first, second) = data.split_at(data.len() / 2);
                header.is_last = false;
                // Halves of a part of a transfer of 32 bits.
                header.len = first.len() as u32;
                self.connection.send_data(&header, first)?;
                header.offset += header.len - 4;
                header.len = second.len() as u32;
                return self.connection.send_data(&header, second);
            }
            Mistake::ShortLength | Mistake::DataDigest | Mistake::ClosesInData => {
                return self.send_damaged(&header, data, mistake);
            }
            _ => {}
        }
        self.connection.send_data(&header, data)
    }

    fn send_damaged(
        &mut self,
        header: &DataHeader,
        data: &[u8],
        mistake: Mistake,
    ) -> Result<(), End> {
        let digests = self.connection.digests;
        let mut bytes = Vec::new();
        nvme::pdu::Data::from_controller(header, digests, &mut bytes);
        if mistake == Mistake::ShortLength {
            // The length of the PDU, without one byte of its data.
            bytes[4] = bytes[4].wrapping_sub(1);
        }
        let sent = match mistake {
            Mistake::ClosesInData => &data[..data.len() / 2],
            _ => data,
        };
        bytes.extend_from_slice(sent);
        if digests.data {
            bytes.extend_from_slice(&[0; 4]);
        }
        self.connection.send(&bytes);
        match mistake {
            Mistake::ClosesInData => Err(End::Closed),
            _ => Ok(()),
        }
    }

    fn write(
        &mut self,
        disk: &Disk,
        sqe: &Sqe,
        data: &[u8],
        mistake: Option<Mistake>,
    ) -> Result<Option<Result<(), Status>>, End> {
        let range = disk.writable_range(sqe.as_blocks());
        let checked = range.and_then(|range| Ok((self.check_length(sqe, &range)?, range)));
        let (len, range) = match checked {
            Ok(checked) => checked,
            Err(status) => return Ok(Some(Err(status))),
        };
        if mistake == Some(Mistake::NoTransfer) {
            return Ok(Some(Ok(())));
        }
        if !sqe.has_data_in_capsule() {
            self.request(sqe, len, mistake);
            return Ok(None);
        }
        if data.len() != len as usize {
            return Ok(Some(Err(Status::INVALID_SGL_LENGTH.do_not_retry())));
        }
        Counts::add(&self.shared.counts.capsule_bytes, len.into());
        let written = disk.write(range.start, data);
        Ok(Some(written_as(disk, written, sqe.is_durable())))
    }

    /// Requests the data of a command.
    fn request(&mut self, sqe: &Sqe, total: u32, mistake: Option<Mistake>) {
        let tag = self.next_tag;
        self.next_tag = self.next_tag.wrapping_add(1);
        let pending = Pending {
            sqe: *sqe,
            received: 0,
            requested: 0,
            total,
            text: Vec::new(),
            mistake,
        };
        self.writes.insert(tag, pending);
        self.request_next(tag, mistake);
    }

    /// Requests the next data of a write.
    fn request_next(&mut self, tag: u16, mistake: Option<Mistake>) {
        let most = self.shared.subsystem.transfer_bytes.max(1);
        let Some(pending) = self.writes.get_mut(&tag) else {
            return;
        };
        let offset = pending.requested;
        let len = (pending.total - offset).min(most);
        pending.requested = offset + len;
        let mut transfer = Transfer {
            command_id: pending.sqe.command_id.get(),
            tag,
            offset,
            len,
        };
        match mistake {
            Some(Mistake::TransferForNobody) => {
                transfer.command_id = transfer.command_id.wrapping_add(999);
            }
            Some(Mistake::TransferBeyond) => transfer.len = transfer.len.saturating_add(512),
            Some(Mistake::TransferTag) => transfer.tag = transfer.tag.wrapping_add(999),
            _ => {}
        }
        let mut bytes = Vec::new();
        ready_to_transfer(&transfer, self.connection.digests, &mut bytes);
        if mistake == Some(Mistake::TransferTwice) {
            ready_to_transfer(&transfer, self.connection.digests, &mut bytes);
        }
        self.connection.send(&bytes);
    }

    /// Takes data that were requested.
    fn on_data(&mut self, data: &DataHeader) -> Result<(), End> {
        let Some(pending) = self.writes.get(&data.transfer_tag) else {
            return Err(sequence("data of a transfer that was not requested").into());
        };
        let end = data.offset.checked_add(data.len);
        let is_inside = end.is_some_and(|end| end <= pending.requested);
        let is_last = end == Some(pending.requested);
        if pending.sqe.command_id.get() != data.command_id
            || data.offset != pending.received
            || !is_inside
            || data.is_last != is_last
        {
            return Err(End::Host(PduError {
                status: FatalStatus::OutOfRange,
                offset: 12,
                problem: "data outside of their transfer",
            }));
        }
        if data.len > self.shared.subsystem.most_data {
            return Err(limit("more data in one PDU than were agreed on").into());
        }
        let mut bytes = std::mem::take(&mut self.data);
        self.connection.read_data(data.len, &mut bytes)?;
        self.take(data.transfer_tag, &bytes);
        self.data = bytes;
        Ok(())
    }

    fn take(&mut self, tag: u16, bytes: &[u8]) {
        let Some(mut pending) = self.writes.remove(&tag) else {
            return;
        };
        let (sqe, offset) = (pending.sqe, pending.received);
        let disk = self.disk(&sqe);
        let taken = match (sqe.opcode, &disk) {
            (DATASET_MANAGEMENT, _) => {
                pending.text.extend_from_slice(bytes);
                Ok(())
            }
            (_, Err(status)) => Err(*status),
            (_, Ok(disk)) => disk.writable_range(sqe.as_blocks()).and_then(|range| {
                let written = disk.write(range.start + u64::from(offset), bytes);
                written.map_err(|_| Status::WRITE_FAULT)
            }),
        };
        pending.received += u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let id = sqe.command_id.get();
        if taken.is_err() {
            return self.respond(id, taken, None);
        }
        if pending.received < pending.total {
            let is_due = pending.received == pending.requested;
            self.writes.insert(tag, pending);
            if is_due {
                self.request_next(tag, None);
            }
            return;
        }
        let done = disk.and_then(|disk| match sqe.opcode {
            DATASET_MANAGEMENT => deallocate(&disk, &pending.text),
            _ => written_as(&disk, Ok(()), sqe.is_durable()),
        });
        self.respond(id, done, pending.mistake);
    }

    fn respond(&mut self, id: u16, done: Result<(), Status>, mistake: Option<Mistake>) {
        let status = done.err().unwrap_or(Status::SUCCESS);
        let mut cqe = cqe(id, 0, status);
        cqe.sq_id = self.number.into();
        let mut bytes = Vec::new();
        response(&cqe, self.connection.digests, &mut bytes);
        if mistake == Some(Mistake::ResponseTwice) {
            response(&cqe, self.connection.digests, &mut bytes);
        }
        self.connection.send(&bytes);
    }

    /// Responds with a damaged header.
    fn respond_wrongly(&mut self, id: u16) {
        let mut bytes = Vec::new();
        response(
            &cqe(id, 0, Status::SUCCESS),
            self.connection.digests,
            &mut bytes,
        );
        bytes[8] ^= 0x40;
        self.connection.send(&bytes);
    }
}

fn write_zeroes(disk: &Disk, range: Range<u64>, is_durable: bool) -> Result<(), Status> {
    written_as(disk, disk.write_zeroes(range), is_durable)
}

/// Deallocated blocks are zeros here.
fn deallocate(disk: &Disk, description: &[u8]) -> Result<(), Status> {
    let blocks = as_deallocated(description).ok_or(Status::INVALID_FIELD.do_not_retry())?;
    let range = disk.writable_range(blocks)?;
    write_zeroes(disk, range, false)
}

fn written_as(disk: &Disk, written: std::io::Result<()>, is_durable: bool) -> Result<(), Status> {
    let flushed = written.and_then(|()| match is_durable {
        true => disk.flush(),
        false => Ok(()),
    });
    flushed.map_err(|_| Status::WRITE_FAULT)
}
