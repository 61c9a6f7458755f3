//! sendmsg: sends host memory of the caller, which is copied, or ranges of device memory, which are not.
//!
//! A packet never has both host and device bytes: the send queue gets a boundary between them.

use std::ops::Range;

use devmem_uapi::{CmsgIter, DmabufId, MsgFlags, UIO_MAXIOV, ZerocopyId};
use netmem::{FragList, FragSource, FragUse, Payload};
use tcp::{Push, StateKind};

use super::Stack;
use crate::binding::Bindings;
use crate::memory::SendPools;
use crate::route::Routes;
use crate::socket::agenda::Mark;
use crate::socket::connection::{ConnectionSocket, SourceMemory, acked_offset};
use crate::socket::error::SendError;
use crate::socket::errqueue::SendMemory;
use crate::socket::id::SocketId;

/// The bytes and control messages of a [`sendmsg`](crate::Stack::sendmsg).
#[derive(Debug, Clone, Copy)]
pub struct SendMsg<'a> {
    iovec: Iovec<'a>,
    control: &'a [u8],
    /// For host memory: the entries of the caller's iovec.
    pieces: &'a [Range<usize>],
}

/// The iovec: host memory, or offsets into a dma-buf in place of addresses.
#[derive(Debug, Clone, Copy)]
enum Iovec<'a> {
    Host(&'a [u8]),
    Device(&'a [Range<usize>]),
}

impl<'a> SendMsg<'a> {
    /// Returns a message that sends `host`.
    pub const fn new(host: &'a [u8]) -> Self {
        Self::with_control(host, &[])
    }

    /// Returns a message with host memory and control messages.
    pub const fn with_control(host: &'a [u8], control: &'a [u8]) -> Self {
        Self {
            iovec: Iovec::Host(host),
            control,
            pieces: &[],
        }
    }

    /// Returns a message that sends `ranges`, in this order, of the dma-buf that a control message in `control` names.
    pub const fn device(ranges: &'a [Range<usize>], control: &'a [u8]) -> Self {
        Self {
            iovec: Iovec::Device(ranges),
            control,
            pieces: &[],
        }
    }

    /// Sets the entries of the caller's iovec. With MSG_ZEROCOPY each entry is a frag in Linux, and a packet has at most
    /// 17 frags; this stack then ends its packets at the same bytes.
    #[must_use]
    pub const fn in_pieces(self, pieces: &'a [Range<usize>]) -> Self {
        Self { pieces, ..self }
    }

    /// Returns the host memory; empty if the message sends from a dma-buf.
    pub const fn host(&self) -> &'a [u8] {
        match self.iovec {
            Iovec::Host(host) => host,
            Iovec::Device(_) => &[],
        }
    }

    /// Returns the ranges of a dma-buf; empty if the message sends host memory.
    pub const fn ranges(&self) -> &'a [Range<usize>] {
        match self.iovec {
            Iovec::Host(_) => &[],
            Iovec::Device(ranges) => ranges,
        }
    }

    /// Returns the control messages.
    pub const fn control(&self) -> &'a [u8] {
        self.control
    }
}

/// A send that takes several calls because the send queue was full (a blocking sendmsg). It has one zero-copy id and one
/// set of timestamps. It begins empty, and cannot complete before [`Stack::finish_send`].
#[derive(Debug, Default)]
#[must_use = "a send that is not finished is never reported"]
pub struct Sending {
    number: Option<ZerocopyId>,
    /// Stream offset after the last queued byte.
    end: Option<u64>,
}

/// Maximum bytes copied at once. If the page pool runs out, at most this number of bytes was copied needlessly.
const COPIED_BYTES: usize = 64 << 10;

/// Maximum frags queued as one piece (linux MAX_SKB_FRAGS).
const PIECE_FRAGS: usize = 17;

impl Stack {
    /// Queues as many bytes as there is room for; returns how many. Device memory must not be changed until the error
    /// queue reports the send as complete. Zero-copy sends that queued at least one byte are numbered from 0.
    ///
    /// # Errors
    /// [`SendError`] if none was queued.
    pub fn sendmsg(
        &mut self,
        id: SocketId,
        msg: &SendMsg<'_>,
        flags: MsgFlags,
    ) -> Result<usize, SendError> {
        let mut sending = Sending::default();
        let sent = self.sendmsg_on(id, msg, flags, &mut sending);
        self.finish_send(id, sending);
        sent
    }

    /// As [`Stack::sendmsg`], for a send that takes several calls: call it with the remaining bytes and the same
    /// `sending` until all are queued or the caller gives up, and then [`Stack::finish_send`].
    ///
    /// # Errors
    /// [`SendError`] if none was queued.
    pub fn sendmsg_on(
        &mut self,
        id: SocketId,
        msg: &SendMsg<'_>,
        flags: MsgFlags,
        sending: &mut Sending,
    ) -> Result<usize, SendError> {
        let Self {
            sockets,
            memory,
            network,
            nic,
            ..
        } = self;
        let mut connection = sockets
            .connection_mut(id)?
            .ok_or(SendError::NotConnected { id })?;
        let pools = &mut memory.send_pools;
        pools.use_memory_of_peer(nic.link().send_memory());
        let sent = match (parse_tx(msg.control)?, msg.iovec) {
            (None, Iovec::Host(host)) => {
                can_send(id, &mut connection)?;
                let options = &mut connection.options;
                options.limit_send_buffer(memory.host_send_buffer);
                send_host(&mut connection, pools, sending, host, msg.pieces, flags)?
            }
            (Some(dmabuf), Iovec::Device(ranges)) => {
                let (bindings, routes) = (&memory.bindings, network.routes());
                let memory = judge_device(
                    &connection,
                    bindings,
                    routes,
                    sending,
                    dmabuf,
                    ranges,
                    flags,
                )?;
                can_send(id, &mut connection)?;
                send_device(&mut connection, memory, sending, ranges, flags)?
            }
            // An address must not be taken for an offset, nor an offset for an address.
            (Some(_), Iovec::Host(_)) => return Err(SendError::NotOffsets),
            (None, Iovec::Device(_)) => return Err(SendError::NoDmabufNamed),
        };
        if flags.contains(MsgFlags::EOR) {
            connection.conn.push_boundary();
        }
        if sent > 0 {
            connection.mark(Mark::Touched);
            self.turns += 1;
        }
        Ok(sent)
    }

    /// Ends a send: no more bytes belong to it. Does nothing if the socket has been closed.
    pub fn finish_send(&mut self, id: SocketId, sending: Sending) {
        let Sending { number, end } = sending;
        let Ok(Some(mut connection)) = self.sockets.connection_mut(id) else {
            return;
        };
        if let Some(number) = number {
            let ConnectionSocket { conn, writer, .. } = &mut *connection;
            writer.errors.finish(number);
            writer.errors.collect(acked_offset(conn));
        }
        // As in Linux (`tcp_tx_timestamp`), the last packet gets timestamps if it is still queued; if it has been sent
        // already, only that of its acknowledgement.
        if let Some(end) = end.filter(|end| *end > acked_offset(&connection.conn)) {
            let is_unsent = end > connection.conn.sent_offset();
            let mut wanted = connection.options.timestamping;
            wanted.scheduled &= is_unsent;
            wanted.sent &= is_unsent;
            connection.writer.errors.stamps.push(end, wanted);
        }
    }
}

/// Returns the dma-buf that the control buffer of a sendmsg names; ignores other messages that Linux knows. It is bad if it is malformed,
/// or has a message that no send knows, or a dma-buf message of the wrong size.
fn parse_tx(control: &[u8]) -> Result<Option<DmabufId>, SendError> {
    let mut messages = CmsgIter::new(control);
    let mut dmabuf = None;
    for message in messages.by_ref() {
        match message.tx_dmabuf() {
            None if message.is_unknown_to_send() => return Err(SendError::BadControl),
            None => {}
            Some(Some(id)) => dmabuf = Some(id),
            Some(None) => return Err(SendError::BadControl),
        }
    }
    match messages.is_malformed() {
        true => Err(SendError::BadControl),
        false => Ok(dmabuf),
    }
}

/// Copies host bytes and queues them. With MSG_ZEROCOPY they are copied, too, and the completion says so.
///
/// The program may change or unmap its memory at any time, and a retransmission must have the same bytes; also, the
/// slice is not valid after the call. Linux copies, too, for loopback and for packet sockets.
fn send_host(
    socket: &mut ConnectionSocket,
    pools: &mut SendPools,
    sending: &mut Sending,
    host: &[u8],
    pieces: &[Range<usize>],
    flags: MsgFlags,
) -> Result<usize, SendError> {
    // Without SO_ZEROCOPY the flag has no effect on host memory (linux `tcp_sendmsg_locked`).
    let reports = flags.contains(MsgFlags::ZEROCOPY) && socket.options.zerocopy;
    if reports && sending.number.is_none() && !socket.writer.errors.has_room() {
        return Err(SendError::TooManySends);
    }
    let admitted = socket.conn.admit(host.len(), &socket.options.tcp);
    let (mut sent, mut end) = (0, 0);
    let refused = loop {
        let Some(rest) = host.get(sent..).filter(|rest| !rest.is_empty()) else {
            break None;
        };
        let cut = packet_end(if reports { pieces } else { &[] }, sent).unwrap_or(host.len());
        let room = (admitted - sent).min(cut - sent);
        let n = rest.len().min(COPIED_BYTES).min(room);
        let Some(piece) = rest.get(..n).filter(|piece| !piece.is_empty()) else {
            break Some(SendError::WouldBlock);
        };
        let Some(payload) = pools.copy_for_peer(piece) else {
            break Some(SendError::NoMemory);
        };
        let is_full = sent + n == cut && n < rest.len();
        let more = !is_full && (n < rest.len() || flags.contains(MsgFlags::MORE));
        let push = if more { Push::Later } else { Push::Now };
        let ConnectionSocket { conn, writer, .. } = &mut *socket;
        let Some(behind) = writer.queue(conn, payload, SourceMemory::Host, push) else {
            break Some(SendError::WouldBlock);
        };
        if is_full {
            socket.conn.push_boundary();
        }
        (sent, end) = (sent + n, behind);
    };
    if sent > 0 {
        let memory = reports.then_some(SendMemory::Copied);
        sending.queued(socket, memory, end);
    }
    outcome(sent, refused)
}

/// Returns the end of the packet with the byte `at`, if the entries of the iovec limit it: a packet has at most
/// [`PIECE_FRAGS`] entries.
fn packet_end(pieces: &[Range<usize>], at: usize) -> Option<usize> {
    let mut end = 0_usize;
    let packets = pieces.chunks(PIECE_FRAGS).map(|packet| {
        end = packet
            .iter()
            .fold(end, |end, piece| end.saturating_add(piece.len()));
        end
    });
    packets.into_iter().find(|end| *end > at)
}

impl Sending {
    /// Notes that bytes were queued up to the stream offset `end`. With `memory`, their completion is reported.
    fn queued(&mut self, socket: &mut ConnectionSocket, memory: Option<SendMemory>, end: u64) {
        self.end = Some(end);
        match (memory, self.number) {
            (None, _) => {}
            (Some(memory), Some(number)) => socket.writer.errors.extend(number, memory, end),
            (Some(memory), None) => self.number = Some(socket.writer.errors.begin(memory, end)),
        }
    }
}

/// Checks a send from device memory, in the order of the kernel (linux net/ipv4/tcp.c `tcp_sendmsg_locked`). The bounds
/// of all ranges are checked before the first byte is queued.
fn judge_device<'b>(
    socket: &ConnectionSocket,
    bindings: &'b Bindings,
    routes: &Routes,
    sending: &Sending,
    dmabuf: DmabufId,
    ranges: &[Range<usize>],
    flags: MsgFlags,
) -> Result<&'b FragSource, SendError> {
    if ranges.len() > UIO_MAXIOV {
        return Err(SendError::TooManyRanges {
            given: ranges.len(),
        });
    }
    if !flags.contains(MsgFlags::ZEROCOPY) {
        return Err(SendError::ZerocopyNeeded);
    }
    if !socket.options.zerocopy {
        return Err(SendError::ZerocopyOff);
    }
    let memory = bindings.tx(dmabuf, routes, socket.tuple().src_ip)?;
    for range in ranges {
        let (offset, len) = (range.start, range.len());
        if range.start > range.end || memory.check(offset, len).is_err() {
            return Err(SendError::OutOfBounds {
                dmabuf,
                offset,
                end: range.end,
                size: memory.size(),
            });
        }
    }
    if sending.number.is_none() && !socket.writer.errors.has_room() {
        return Err(SendError::TooManySends);
    }
    Ok(memory)
}

/// Queues ranges of device memory as far as there is room.
fn send_device(
    socket: &mut ConnectionSocket,
    memory: &FragSource,
    sending: &mut Sending,
    ranges: &[Range<usize>],
    flags: MsgFlags,
) -> Result<usize, SendError> {
    let total = ranges
        .iter()
        .fold(0_usize, |sum, range| sum.saturating_add(range.len()));
    let begun = sending
        .number
        .and_then(|id| socket.writer.errors.take_memory(id));
    let send = begun.unwrap_or_else(|| memory.begin());
    let mut rest = ranges.iter().cloned();
    // No memory of this host is used up.
    socket.options.limit_send_buffer(usize::MAX);
    let admitted = socket.conn.admit(total, &socket.options.tcp);
    let mut current = 0..0;
    let (mut sent, mut end) = (0, 0);
    while sent < total {
        let room = admitted - sent;
        let piece = next_piece(&send, &mut current, &mut rest, room);
        let len = piece.len();
        if len == 0 {
            break;
        }
        let more = sent + len < total || flags.contains(MsgFlags::MORE);
        let push = if more { Push::Later } else { Push::Now };
        let ConnectionSocket { conn, writer, .. } = &mut *socket;
        let Some(behind) = writer.queue(conn, piece, SourceMemory::Device, push) else {
            break;
        };
        (sent, end) = (sent + len, behind);
    }
    // The memory goes to the error queue; back there if the send has begun and nothing was added to it.
    let end = if sent > 0 { Some(end) } else { sending.end };
    if let Some(end) = end {
        sending.queued(socket, Some(SendMemory::Device(send)), end);
    }
    outcome(sent, (sent < total).then_some(SendError::WouldBlock))
}

/// Takes up to `room` bytes from the beginning of the ranges.
fn next_piece(
    send: &FragUse,
    current: &mut Range<usize>,
    rest: &mut impl Iterator<Item = Range<usize>>,
    room: usize,
) -> FragList {
    let mut piece = FragList::new();
    while piece.len() < room && piece.frag_count() < PIECE_FRAGS {
        if Range::is_empty(current) {
            match rest.next() {
                Some(range) => *current = range,
                None => break,
            }
        }
        let n = current.len().min(room - piece.len());
        if send.append(current.start, n, &mut piece).is_err() {
            debug_assert!(false, "every range was judged before the first was queued");
            break;
        }
        current.start += n;
    }
    piece
}

fn outcome(sent: usize, refused: Option<SendError>) -> Result<usize, SendError> {
    match refused {
        Some(error) if sent == 0 => Err(error),
        _ => Ok(sent),
    }
}

/// Checks whether the connection accepts bytes to send.
fn can_send(id: SocketId, socket: &mut ConnectionSocket) -> Result<(), SendError> {
    if let Some(error) = socket.take_error() {
        return Err(SendError::Connection(error));
    }
    let (conn, settings) = (&socket.conn, &socket.options.tcp);
    match conn.state() {
        StateKind::Established | StateKind::CloseWait if conn.has_unsent_room(1, settings) => {
            Ok(())
        }
        StateKind::Established | StateKind::CloseWait => Err(SendError::WouldBlock),
        // The SYN takes payload (RFC 7413).
        StateKind::SynSent if conn.write_room(settings) > 0 => Ok(()),
        StateKind::SynSent | StateKind::SynReceived => Err(SendError::WouldBlock),
        _ => Err(SendError::Shutdown { id }),
    }
}

#[cfg(test)]
mod tests {
    use devmem_uapi::{CmsgWriter, sockopt};

    use super::*;

    fn control(write: impl FnOnce(&mut CmsgWriter<'_>)) -> Vec<u8> {
        let mut bytes = vec![0; 256];
        let mut writer = CmsgWriter::new(&mut bytes);
        write(&mut writer);
        let written = writer.written();
        bytes.truncate(written);
        bytes
    }

    #[test]
    fn a_message_of_another_size_or_a_broken_buffer_is_bad() {
        let level = (sockopt::SOL_SOCKET, sockopt::SCM_DEVMEM_DMABUF);
        for len in [0, 3, 5, 8] {
            let bytes = control(|cmsg| cmsg.push(level.0, level.1, &vec![0; len]).unwrap());
            assert_eq!(parse_tx(&bytes), Err(SendError::BadControl), "{len}");
        }
        let mut bytes = control(|cmsg| cmsg.push_tx_dmabuf(DmabufId(7)).unwrap());
        bytes[0] = 255;
        assert_eq!(parse_tx(&bytes), Err(SendError::BadControl));
    }

    #[test]
    fn messages_of_others_are_passed_over() {
        let bytes = control(|cmsg| cmsg.push(41, 50, &[1, 2, 3]).unwrap());
        assert_eq!(parse_tx(&bytes), Ok(None));
    }
}
