//! recvmsg: delivers payload in order, copied to the iovec or as tokens in control messages (linux net/ipv4/tcp.c
//! `tcp_recvmsg_dmabuf`); and giving the memory of tokens back. No call blocks and none sends; the next poll sends.
//!
//! A peek reads a second owner of the queue ([`RecvQueue::share`]). Control buffers and typed batches differ in [`CmsgSink`] only.

use devmem_uapi::{
    CmsgSink, DevmemCmsg, DmabufCmsg, DmabufId, DmabufToken, FragToken, MsgFlags, ZerocopyRange,
    cmsg_space,
};
use netmem::{Frag, FragList};
use nic::Nic;
use tcp::RecvQueue;
use zerocopy::FromBytes;

use super::Stack;
use super::serve::note_free;
use crate::socket::agenda::Mark;
use crate::socket::connection::ConnectionSocket;
use crate::socket::error::{DontneedError, RecvError};
use crate::socket::id::SocketId;
use crate::socket::limits::MAX_TOKENS;
use crate::socket::place::PlacedFrags;
use crate::socket::recv_msg::{RecvMsg, RecvOutcome, Stopped};
use crate::socket::token_table::{TokenMemory, TokenTable};

impl Stack {
    /// Receives payload in order into `msg` and `sink`. MSG_WAITALL and MSG_DONTWAIT have
    /// no effect, because no call blocks: [`RecvOutcome::stopped`] tells a blocking caller whether to wait for more.
    ///
    /// A net_iov with bytes that were received as tokens stays in use until [`Stack::dontneed`]: a reader that keeps
    /// all tokens can use up the memory of a binding (see [`Stack::bind_rx`]).
    ///
    /// # Errors
    /// [`RecvError`] if nothing was delivered. An error after delivered bytes is returned by the next call.
    pub fn recvmsg(
        &mut self,
        id: SocketId,
        msg: &mut RecvMsg<'_>,
        sink: &mut dyn CmsgSink,
        flags: MsgFlags,
    ) -> Result<RecvOutcome, RecvError> {
        let Self {
            nic,
            sockets,
            memory,
            ..
        } = self;
        let mut connection = sockets
            .connection_mut(id)?
            .ok_or(RecvError::NotConnected { id })?;
        if flags.contains(MsgFlags::ERRQUEUE) {
            let local = connection.tuple().dst_ip;
            return connection.writer.recv_error(local, sink);
        }
        let outcome = deliver(&mut connection, nic, msg, sink, flags);
        if outcome.is_ok() && !flags.contains(MsgFlags::PEEK) {
            note_free(&mut memory.windows, nic);
            if connection.is_served_after_read(id.slot(), &memory.windows, nic) {
                connection.mark(Mark::Touched);
            }
        }
        outcome
    }

    /// Takes the oldest range of completed zero-copy sends from the error queue, as MSG_ERRQUEUE does, without a
    /// control buffer.
    ///
    /// # Errors
    /// [`RecvError::ErrorQueueEmpty`], or the socket is not a connection.
    pub fn completion(&mut self, id: SocketId) -> Result<ZerocopyRange, RecvError> {
        let mut connection = self
            .sockets
            .connection_mut(id)?
            .ok_or(RecvError::NotConnected { id })?;
        connection
            .writer
            .errors
            .pop()
            .ok_or(RecvError::ErrorQueueEmpty)
    }

    /// Gives frags back by their tokens (SO_DEVMEM_DONTNEED); returns how many were freed. If it is fewer than given,
    /// call again for the rest: one call handles at most 1,024 tokens.
    ///
    /// # Errors
    /// [`DontneedError`], and nothing was freed.
    pub fn dontneed(&mut self, id: SocketId, ranges: &[DmabufToken]) -> Result<u32, DontneedError> {
        let Self { nic, sockets, .. } = self;
        // A listener is a TCP socket, too, but has no tokens.
        let Some(mut connection) = sockets.connection_mut(id)? else {
            return Ok(0);
        };
        let reader = &mut connection.reader;
        let freed = reader.tokens.release(ranges, |memory| {
            memory
                .into_iter()
                .for_each(|netmem| nic.recycle_netmem(netmem));
        })?;
        reader.note_gathered(ranges);
        if freed > 0 {
            connection.mark(Mark::Touched);
        }
        Ok(freed)
    }

    /// As [`Stack::dontneed`], from the bytes of the option's value.
    ///
    /// # Errors
    /// [`DontneedError`], and nothing was freed.
    pub fn dontneed_bytes(&mut self, id: SocketId, value: &[u8]) -> Result<u32, DontneedError> {
        self.sockets.get(id)?;
        if !value.len().is_multiple_of(size_of::<DmabufToken>()) {
            return Err(DontneedError::OddLength { len: value.len() });
        }
        let given = value.len() / size_of::<DmabufToken>();
        if given > devmem_uapi::MAX_DONTNEED_TOKENS {
            return Err(DontneedError::TooManyRanges { given });
        }
        let ranges = value
            .chunks_exact(size_of::<DmabufToken>())
            .map(DmabufToken::read_from_bytes);
        let ranges: Vec<_> = ranges.filter_map(Result::ok).collect();
        self.dontneed(id, &ranges)
    }
}

/// Delivers payload up to the limits of the call, or the end of the stream, or the error of the connection.
fn deliver(
    connection: &mut ConnectionSocket,
    nic: &mut Nic,
    msg: &mut RecvMsg<'_>,
    sink: &mut dyn CmsgSink,
    flags: MsgFlags,
) -> Result<RecvOutcome, RecvError> {
    let ConnectionSocket {
        conn,
        reader,
        options,
        ..
    } = &mut *connection;
    let queue = conn.recv_queue();
    let is_peek = flags.contains(MsgFlags::PEEK);
    let mut peeked = is_peek.then(|| queue.share(msg.len));
    let queue = peeked.as_mut().unwrap_or(queue);
    let mut delivery = Delivery {
        msg,
        sink,
        flags,
        merge: options.merge_frags,
        nic,
        tokens: &mut reader.tokens,
        placed_frags: reader.placed_frags.as_deref_mut(),
        bytes: 0,
        host_bytes: 0,
        unreadable: None,
        open: None,
    };
    let end = loop {
        match delivery.step(queue) {
            Ok(()) => {}
            Err(end) => break end,
        }
    };
    delivery.flush();
    let Delivery {
        bytes, host_bytes, ..
    } = delivery;
    let stopped = match end {
        End::Refused(error) if bytes == 0 => return Err(error),
        End::Refused(_) => Stopped::Refused,
        End::Stopped(Stopped::Empty) if bytes == 0 => return connection.end_of_queue(),
        End::Stopped(Stopped::ControlFull) if bytes == 0 => {
            return Err(RecvError::NoControlSpace {
                need: cmsg_space(size_of::<DmabufCmsg>()),
            });
        }
        End::Stopped(stopped) => stopped,
    };
    let arrived = connection.reader.arrival_of_next(bytes);
    if !is_peek {
        connection.note_read(bytes);
    }
    Ok(RecvOutcome {
        bytes,
        host_bytes,
        arrived,
        stopped,
    })
}

/// Most bytes that one step delivers: they fit the 32 bits of a control message.
const MAX_RUN: usize = 1 << 30;

/// Why the delivery ends.
enum End {
    Stopped(Stopped),
    Refused(RecvError),
}

/// A control message that adjacent frags can still be added to.
struct OpenCmsg {
    cmsg: DmabufCmsg,
    memory: TokenMemory,
}

impl OpenCmsg {
    fn touches(&self, id: DmabufId, frag: &Frag) -> bool {
        self.cmsg.dmabuf_id == id
            && self.cmsg.frag_offset + u64::from(self.cmsg.frag_size) == frag.dmabuf_offset()
    }
}

/// State of one call.
struct Delivery<'s, 'm> {
    msg: &'s mut RecvMsg<'m>,
    sink: &'s mut dyn CmsgSink,
    flags: MsgFlags,
    /// Adjacent frags share one control message and one token.
    merge: bool,
    /// Takes back the memory of payload that was copied or discarded.
    nic: &'s mut Nic,
    tokens: &'s mut TokenTable<TokenMemory>,
    /// Notes frags in places that the program has chosen.
    placed_frags: Option<&'s mut PlacedFrags>,
    bytes: usize,
    host_bytes: usize,
    /// Whether the bytes delivered so far are unreadable: one call does not mix both.
    unreadable: Option<bool>,
    open: Option<OpenCmsg>,
}

impl Delivery<'_, '_> {
    /// Delivers the next frag, or the part of it that is within the limits.
    fn step(&mut self, queue: &mut RecvQueue<FragList>) -> Result<(), End> {
        let left = self.msg.len - self.bytes;
        if left == 0 {
            return Err(End::Stopped(Stopped::Full));
        }
        let front = queue
            .front()
            .and_then(|payload| Some((payload, payload.first()?)));
        let Some((payload, frag)) = front else {
            let stopped = if queue.has_fin() {
                Stopped::Eof
            } else {
                Stopped::Empty
            };
            return Err(End::Stopped(stopped));
        };
        let (dmabuf, len) = (frag.dmabuf_id(), frag.len().min(left));
        // Linear bytes are in host memory, but of a packet that is not readable as a whole.
        let is_unreadable = dmabuf.is_some() || frag.is_linear();
        if self.flags.contains(MsgFlags::TRUNC) {
            self.nic.recycle(queue.pop(len).unwrap_or_default());
            self.bytes += len;
            return Ok(());
        }
        if self.unreadable.is_some_and(|it| it != is_unreadable) {
            return Err(End::Stopped(Stopped::Border));
        }
        if is_unreadable && !self.flags.contains(MsgFlags::SOCK_DEVMEM) {
            return Err(End::Refused(RecvError::Unreadable { bytes: len }));
        }
        match dmabuf {
            None if is_unreadable => self.deliver_linear(queue, len),
            None => self.copy(queue, len).map(drop),
            Some(id) => {
                let run = match self.merge {
                    true => payload.first_run(left.min(MAX_RUN)),
                    false => len,
                };
                self.deliver_device(queue, id, run)
            }
        }?;
        self.unreadable = Some(is_unreadable);
        Ok(())
    }

    /// Copies up to `len` bytes of the next frag to the iovec; returns how many.
    fn copy(&mut self, queue: &mut RecvQueue<FragList>, len: usize) -> Result<usize, End> {
        let room = self.msg.host.get_mut(self.host_bytes..).unwrap_or_default();
        let n = len.min(room.len());
        if n == 0 {
            return Err(End::Refused(RecvError::NoBuffer { bytes: len }));
        }
        let piece = queue.pop(n).unwrap_or_default();
        // It is readable, as checked before.
        let copied = piece.copy_to(&mut room[..n]);
        debug_assert!(copied.is_ok());
        self.nic.recycle(piece);
        self.host_bytes += n;
        self.bytes += n;
        Ok(n)
    }

    fn deliver_linear(&mut self, queue: &mut RecvQueue<FragList>, len: usize) -> Result<(), End> {
        self.flush();
        if self.sink.room() == 0 {
            return Err(End::Stopped(Stopped::ControlFull));
        }
        let copied = self.copy(queue, len)?;
        let pushed = self.sink.push(DevmemCmsg::Linear(copied as u32));
        debug_assert!(pushed.is_ok(), "a sink keeps its word about its room");
        Ok(())
    }

    fn deliver_device(
        &mut self,
        queue: &mut RecvQueue<FragList>,
        id: DmabufId,
        len: usize,
    ) -> Result<(), End> {
        let Some(frag) = queue.front().and_then(FragList::first) else {
            return Err(End::Stopped(Stopped::Empty));
        };
        let size = len as u32;
        if let Some(open) = &mut self.open
            && self.merge
            && open.touches(id, frag)
            && let Some(merged) = open.cmsg.frag_size.checked_add(size)
        {
            open.cmsg.frag_size = merged;
            open.memory.keep(queue.pop(len).unwrap_or_default());
            self.bytes += len;
            return Ok(());
        }
        let frag_offset = frag.dmabuf_offset();
        self.flush();
        if self.sink.room() == 0 {
            return Err(End::Stopped(Stopped::ControlFull));
        }
        if self.tokens.outstanding() >= MAX_TOKENS {
            return Err(End::Refused(RecvError::TooManyTokens));
        }
        let cmsg = DmabufCmsg {
            frag_offset,
            frag_size: size,
            frag_token: FragToken(0),
            dmabuf_id: id,
            flags: 0,
        };
        let mut memory = TokenMemory::default();
        memory.keep(queue.pop(len).unwrap_or_default());
        self.open = Some(OpenCmsg { cmsg, memory });
        self.bytes += len;
        Ok(())
    }

    /// Issues the token of the open control message, and pushes the message. Room for both was checked before.
    fn flush(&mut self) {
        let Some(OpenCmsg { mut cmsg, memory }) = self.open.take() else {
            return;
        };
        match self.tokens.issue(memory) {
            Some(token) => {
                cmsg.frag_token = token;
                if let Some(places) = &mut self.placed_frags {
                    places.on_lent(&cmsg);
                }
                let pushed = self.sink.push(DevmemCmsg::Dmabuf(cmsg));
                debug_assert!(pushed.is_ok(), "a sink keeps its word about its room");
            }
            None => debug_assert!(false, "room in the token table was asked before"),
        }
    }
}

#[cfg(test)]
mod tests;
