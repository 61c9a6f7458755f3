//! sendmsg: bytes of the caller's memory, copied to host pages, or ranges of device memory, named and not touched
//! (ABI.md 5).
//!
//! Host and device bytes of one stream never share a packet: the send queue gets a boundary wherever they meet.

use std::ops::Range;

use devmem_uapi::{DmabufId, MsgFlags, UIO_MAXIOV, ZerocopyId};
use netmem::{FragList, PagePool, Payload, TxSend};
use tcp::{Push, StateKind};

use super::cmsg::{TxSource, parse_tx};
use super::error::SendError;
use super::errqueue::Memory;
use super::{ConnectionSocket, SocketId};
use crate::Stack;
use crate::binding::Bindings;
use crate::binding_tx::{Egress, TxBinding};

/// What a [`sendmsg`](crate::Stack::sendmsg) sends.
#[derive(Debug, Clone, Copy)]
pub struct SendMsg<'a> {
    iovec: Iovec<'a>,
    control: &'a [u8],
    /// Of host memory: what the iovec's entries were.
    pieces: &'a [Range<usize>],
}

/// What the kernel's iovec is: memory, or offsets written where addresses stand otherwise.
#[derive(Debug, Clone, Copy)]
enum Iovec<'a> {
    Host(&'a [u8]),
    Device(&'a [Range<usize>]),
}

impl<'a> SendMsg<'a> {
    /// Sends `host`.
    pub const fn new(host: &'a [u8]) -> Self {
        Self {
            iovec: Iovec::Host(host),
            control: &[],
            pieces: &[],
        }
    }

    /// Sends what the control messages in `control` say of `host`.
    pub const fn with_control(host: &'a [u8], control: &'a [u8]) -> Self {
        Self {
            iovec: Iovec::Host(host),
            control,
            pieces: &[],
        }
    }

    /// Sends `ranges`, in this order, of the dma-buf that a control message in `control` names.
    pub const fn device(ranges: &'a [Range<usize>], control: &'a [u8]) -> Self {
        Self {
            iovec: Iovec::Device(ranges),
            control,
            pieces: &[],
        }
    }

    /// Says how long the entries of the iovec were whose bytes are sent. With MSG_ZEROCOPY, where each is a frag of its
    /// own in Linux, a packet has no more than 17 of them.
    #[must_use]
    pub const fn in_pieces(self, pieces: &'a [Range<usize>]) -> Self {
        Self { pieces, ..self }
    }

    /// Returns the bytes in host memory; none if it sends from a dma-buf.
    pub const fn host(&self) -> &'a [u8] {
        match self.iovec {
            Iovec::Host(host) => host,
            Iovec::Device(_) => &[],
        }
    }

    /// Returns the ranges of a dma-buf; none if it sends host memory.
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

/// What kind of memory the last bytes of a stream were sent from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Host,
    Device,
}

/// A send that goes on when there is room again (a blocking sendmsg): whatever the number of calls, it has one number
/// and one set of times. It begins empty and ends with [`Stack::finish_send`]; until then it is not over.
#[derive(Debug, Default)]
#[must_use = "a send that is not finished is never reported"]
pub struct Sending {
    number: Option<ZerocopyId>,
    /// Stream offset behind the last byte queued.
    end: Option<u64>,
}

/// What a send needs of the stack.
struct SendContext<'a> {
    pool: &'a mut PagePool,
    bindings: &'a Bindings,
    egress: Egress<'a>,
    sending: &'a mut Sending,
}

/// Most bytes copied at once: what is copied in vain when the pages run out.
const COPIED_BYTES: usize = 64 << 10;

/// Most frags queued at once (linux MAX_SKB_FRAGS): what is queued is charged by the piece. Of device memory that may be
/// a whole send, which is then shared, acknowledged and let go of as one piece.
const PIECE_FRAGS: usize = 17;

impl Stack {
    /// Queues bytes for sending, as many as there is room for; returns how many. From device memory that is a
    /// promise to leave them alone until the error queue reports the send; zero-copy sends that queued anything are
    /// numbered from 0.
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

    /// As [`Stack::sendmsg`], but what it queues belongs to the send that `sending` began, if it did: to be called
    /// with the rest of the bytes until all are queued, or the caller gives up, and [`Stack::finish_send`] then.
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
            send_pool: pool,
            bindings,
            network,
            ifindex,
            ..
        } = self;
        let mut connection = sockets
            .connection_mut(id)?
            .ok_or(SendError::NotConnected { id })?;
        let context = SendContext {
            pool,
            bindings,
            egress: Egress {
                routes: network.routes(),
                ifindex: *ifindex,
            },
            sending,
        };
        let sent = sendmsg(id, &mut connection, context, msg, flags);
        if sent.is_ok() && flags.contains(MsgFlags::EOR) {
            connection.conn.push_boundary();
        }
        if matches!(sent, Ok(1..)) {
            connection.touch();
        }
        sent
    }

    /// Ends a send: nothing more belongs to it. A socket that is gone took it along.
    pub fn finish_send(&mut self, id: SocketId, sending: Sending) {
        let Sending { number, end } = sending;
        let Ok(Some(mut connection)) = self.sockets.connection_mut(id) else {
            return;
        };
        if let Some(number) = number {
            connection.errors.finish(number);
            let acked = connection.acked_offset();
            connection.errors.collect(acked);
        }
        // The last packet is stamped, if it is still there (linux `tcp_tx_timestamp`): one that left already only
        // when it is acknowledged.
        if let Some(end) = end.filter(|end| *end > connection.acked_offset()) {
            let is_unsent = end > connection.conn.sent_offset();
            let mut wanted = connection.options.timestamping;
            wanted.scheduled &= is_unsent;
            wanted.sent &= is_unsent;
            connection.errors.stamps.push(end, wanted);
        }
    }
}

/// Queues as many bytes as there is room for, returns how many.
fn sendmsg(
    id: SocketId,
    socket: &mut ConnectionSocket,
    cx: SendContext<'_>,
    msg: &SendMsg<'_>,
    flags: MsgFlags,
) -> Result<usize, SendError> {
    let SendMsg {
        iovec,
        control,
        pieces,
    } = *msg;
    match (parse_tx(control).map_err(|_| SendError::BadControl)?, iovec) {
        (TxSource::Host, Iovec::Host(host)) => {
            can_send(id, socket)?;
            send_host(socket, cx, host, pieces, flags)
        }
        (TxSource::Devmem(dmabuf), Iovec::Device(ranges)) => {
            let binding = judge_device(socket, &cx, dmabuf, ranges, flags)?;
            can_send(id, socket)?;
            let lent = cx.sending.number.and_then(|id| socket.errors.lend(id));
            let send = lent.unwrap_or_else(|| binding.memory.begin());
            send_device(socket, send, cx.sending, ranges, flags)
        }
        // Taken as the other, an address is no offset and an offset no address.
        (TxSource::Devmem(_), Iovec::Host(_)) => Err(SendError::NotOffsets),
        (TxSource::Host, Iovec::Device(_)) => Err(SendError::NoDmabufNamed),
    }
}

/// Copies host bytes. With MSG_ZEROCOPY, too: the completion says so.
///
/// A program's memory may change, or go, at any time: only a copy keeps what is sent again what was sent at first, and
/// a slice of it does not outlive the call. Linux copies as well where packets loop back or somebody looks on.
fn send_host(
    socket: &mut ConnectionSocket,
    cx: SendContext<'_>,
    host: &[u8],
    pieces: &[Range<usize>],
    flags: MsgFlags,
) -> Result<usize, SendError> {
    let SendContext { pool, sending, .. } = cx;
    // Without SO_ZEROCOPY the flag means nothing here (linux `tcp_sendmsg_locked`).
    let reports = flags.contains(MsgFlags::ZEROCOPY) && socket.options.zerocopy;
    if reports && sending.number.is_none() && !socket.errors.has_room() {
        return Err(SendError::TooManySends);
    }
    let (mut sent, mut end) = (0, 0);
    let refused = loop {
        let Some(rest) = host.get(sent..).filter(|rest| !rest.is_empty()) else {
            break None;
        };
        let cut = packet_end(if reports { pieces } else { &[] }, sent).unwrap_or(host.len());
        let room = socket.conn.write_room().min(cut - sent);
        let n = rest.len().min(COPIED_BYTES).min(room);
        let Some(piece) = rest.get(..n).filter(|piece| !piece.is_empty()) else {
            break Some(SendError::WouldBlock);
        };
        let Some(payload) = FragList::from_host_bytes(pool, piece) else {
            break Some(SendError::NoMemory);
        };
        let is_full = sent + n == cut && n < rest.len();
        let more = !is_full && (n < rest.len() || flags.contains(MsgFlags::MORE));
        let Some(behind) = socket.queue(payload, Kind::Host, more) else {
            break Some(SendError::WouldBlock);
        };
        if is_full {
            socket.conn.push_boundary();
        }
        (sent, end) = (sent + n, behind);
    };
    if sent > 0 {
        let memory = reports.then_some(Memory::Copied);
        sending.queued(socket, memory, end);
    }
    outcome(sent, refused)
}

/// Returns behind which byte a packet is full that byte `at` belongs to: it has as many frags as fit.
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
    /// Notes that bytes were queued up to the stream offset `end`; those of `memory` are reported.
    fn queued(&mut self, socket: &mut ConnectionSocket, memory: Option<Memory>, end: u64) {
        self.end = Some(end);
        match (memory, self.number) {
            (None, _) => {}
            (Some(memory), Some(number)) => socket.errors.go_on(number, memory, end),
            (Some(memory), None) => self.number = Some(socket.errors.begin(memory, end)),
        }
    }
}

/// Judges a send from device memory, in the order of the kernel (linux net/ipv4/tcp.c `tcp_sendmsg_locked`); bounds of
/// all ranges before the first byte is queued.
fn judge_device<'b>(
    socket: &ConnectionSocket,
    cx: &SendContext<'b>,
    dmabuf: DmabufId,
    ranges: &[Range<usize>],
    flags: MsgFlags,
) -> Result<&'b TxBinding, SendError> {
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
    let binding = cx.bindings.tx(dmabuf, &cx.egress, socket.tuple.src_ip)?;
    for range in ranges {
        let (offset, len) = (range.start, range.len());
        if range.start > range.end || binding.memory.check(offset, len).is_err() {
            return Err(SendError::OutOfBounds {
                dmabuf,
                offset,
                end: range.end,
                size: binding.memory.size(),
            });
        }
    }
    if cx.sending.number.is_none() && !socket.errors.has_room() {
        return Err(SendError::TooManySends);
    }
    Ok(binding)
}

/// Queues ranges of device memory as far as there is room.
fn send_device(
    socket: &mut ConnectionSocket,
    send: TxSend,
    sending: &mut Sending,
    ranges: &[Range<usize>],
    flags: MsgFlags,
) -> Result<usize, SendError> {
    let total = ranges
        .iter()
        .fold(0_usize, |sum, range| sum.saturating_add(range.len()));
    let mut rest = ranges.iter().cloned();
    let mut current = 0..0;
    let (mut sent, mut end) = (0, 0);
    while sent < total {
        let room = socket.conn.write_room();
        let piece = next_piece(&send, &mut current, &mut rest, room);
        let len = piece.len();
        if len == 0 {
            break;
        }
        let more = sent + len < total || flags.contains(MsgFlags::MORE);
        let Some(behind) = socket.queue(piece, Kind::Device, more) else {
            break;
        };
        (sent, end) = (sent + len, behind);
    }
    match sending.end {
        _ if sent > 0 => sending.queued(socket, Some(Memory::Device(send)), end),
        // The memory goes back to where it was taken from.
        Some(end) => sending.queued(socket, Some(Memory::Device(send)), end),
        None => {}
    }
    outcome(sent, (sent < total).then_some(SendError::WouldBlock))
}

/// Takes up to `room` bytes off the ranges.
fn next_piece(
    send: &TxSend,
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

impl ConnectionSocket {
    /// Returns whether there is room for more that was never sent (linux `__sk_stream_memory_free`).
    pub(crate) fn has_unsent_room(&self, times: u64) -> bool {
        let Some(lowat) = self.options.notsent_lowat else {
            return true;
        };
        self.conn.info().notsent_bytes.saturating_mul(times) < u64::from(lowat)
    }

    /// Queues a piece that there is room for, apart from bytes of the other kind; returns the stream offset behind it.
    fn queue(&mut self, piece: FragList, kind: Kind, more: bool) -> Option<u64> {
        if self
            .last_sent
            .replace(kind)
            .is_some_and(|last| last != kind)
        {
            self.conn.push_boundary();
        }
        self.conn
            .send(piece, if more { Push::Later } else { Push::Now })
            .ok()
    }
}

/// Returns whether the connection takes bytes, or why not.
fn can_send(id: SocketId, socket: &mut ConnectionSocket) -> Result<(), SendError> {
    if let Some(error) = socket.take_error() {
        return Err(SendError::Connection(error));
    }
    match socket.conn.state() {
        StateKind::Established | StateKind::CloseWait if socket.has_unsent_room(1) => Ok(()),
        StateKind::Established | StateKind::CloseWait => Err(SendError::WouldBlock),
        StateKind::SynSent | StateKind::SynReceived => Err(SendError::WouldBlock),
        _ => Err(SendError::Shutdown { id }),
    }
}
