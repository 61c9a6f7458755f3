//! recvmsg: delivers payload in order, copied to the iovec or as tokens in control messages (linux net/ipv4/tcp.c `tcp_recvmsg_dmabuf`).
//!
//! A peek reads a second owner of the queue ([`RecvQueue::share`]). Control buffers and typed batches differ in [`CmsgSink`] only.

use devmem_uapi::{CmsgSink, DevmemCmsg, DmabufCmsg, DmabufId, FragToken, MsgFlags, cmsg_space};
use netmem::{Frag, FragList};
use tcp::RecvQueue;
use wire::Instant;

use super::error::RecvError;
use super::place::PlacedFrags;
use super::token_table::{MAX_TOKENS, TokenMemory, TokenTable};

/// Destination of the bytes of a [`recvmsg`](crate::Stack::recvmsg), and their maximum number.
#[derive(Debug)]
pub struct RecvMsg<'a> {
    host: &'a mut [u8],
    len: usize,
}

impl<'a> RecvMsg<'a> {
    /// Receives at most `host.len()` bytes. Bytes in host memory are copied to `host`.
    pub fn new(host: &'a mut [u8]) -> Self {
        let len = host.len();
        Self { host, len }
    }

    /// Receives at most `len` bytes. Bytes in host memory are copied to `host`.
    ///
    /// An empty `host` corresponds to a NULL `iov_base`, of a caller that expects device memory only.
    pub fn with_len(host: &'a mut [u8], len: usize) -> Self {
        Self { host, len }
    }
}

/// Why a [`recvmsg`](crate::Stack::recvmsg) did not return more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// It returned the requested number of bytes.
    Full,
    /// No more data has arrived. Only in this case a blocking caller with MSG_WAITALL continues to wait.
    Empty,
    /// The peer sends no more; the next call returns 0.
    Eof,
    /// A border between readable and unreadable data.
    Border,
    /// The control buffer has no room for the next message.
    ControlFull,
    /// The next call returns the reason as an error.
    Refused,
    /// It read the error queue: one entry, and no bytes.
    ErrorQueue,
}

/// Result of a [`recvmsg`](crate::Stack::recvmsg).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecvOutcome {
    /// Payload bytes delivered: copied, discarded, or described by control messages. 0 is the end of the stream.
    pub bytes: usize,
    /// Of those, bytes copied to the iovec.
    pub host_bytes: usize,
    /// Arrival time of the segment with the last of these bytes, if timestamps were enabled then.
    pub arrived: Option<Instant>,
    /// Why it did not return more.
    pub stopped: Stopped,
}

impl RecvOutcome {
    /// Returns the outcome of a call that delivered nothing.
    pub(crate) const fn without_bytes(stopped: Stopped) -> Self {
        Self {
            bytes: 0,
            host_bytes: 0,
            arrived: None,
            stopped,
        }
    }
}

/// Arguments of one call.
pub(crate) struct RecvCall<'a, 'm> {
    pub(crate) msg: &'a mut RecvMsg<'m>,
    pub(crate) sink: &'a mut dyn CmsgSink,
    pub(crate) flags: MsgFlags,
    /// Adjacent frags share one control message and one token.
    pub(crate) merge: bool,
    /// Takes back the memory of payload that was copied or discarded.
    pub(crate) home: &'a mut dyn FnMut(FragList),
}

impl RecvCall<'_, '_> {
    /// Returns whether the payload stays in the queue.
    pub(crate) fn is_peek(&self) -> bool {
        self.flags.contains(MsgFlags::PEEK)
    }
}

/// Most bytes that one step delivers: they fit the 32 bits of a control message.
const MAX_RUN: usize = 1 << 30;

/// Kind of memory of a frag, as recvmsg distinguishes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FragKind {
    /// Host memory of a readable packet.
    Readable,
    /// Host memory of an unreadable packet.
    Linear,
    /// Device memory of a binding.
    Device(DmabufId),
    /// Device memory of another memory provider.
    Foreign,
}

impl FragKind {
    fn of(frag: &Frag) -> Self {
        match (frag.is_readable(), frag.is_linear(), frag.dmabuf_id()) {
            (true, false, _) => Self::Readable,
            (true, true, _) => Self::Linear,
            (false, _, Some(id)) => Self::Device(id),
            (false, _, None) => Self::Foreign,
        }
    }

    fn is_unreadable(self) -> bool {
        self != Self::Readable
    }
}

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

/// Delivers payload of `queue`, up to the limits of the call.
pub(crate) fn recvmsg(
    queue: &mut RecvQueue<FragList>,
    tokens: &mut TokenTable<TokenMemory>,
    placed_frags: Option<&mut PlacedFrags>,
    call: RecvCall<'_, '_>,
) -> Result<RecvOutcome, RecvError> {
    let mut peeked = call.is_peek().then(|| queue.share(call.msg.len));
    let queue = peeked.as_mut().unwrap_or(queue);
    let mut delivery = Delivery {
        call,
        tokens,
        placed_frags,
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
        End::Stopped(Stopped::Empty) if bytes == 0 => return Err(RecvError::WouldBlock),
        End::Stopped(Stopped::ControlFull) if bytes == 0 => {
            return Err(RecvError::NoControlSpace {
                need: cmsg_space(size_of::<DmabufCmsg>()),
            });
        }
        End::Stopped(stopped) => stopped,
    };
    Ok(RecvOutcome {
        bytes,
        host_bytes,
        arrived: None,
        stopped,
    })
}

/// State of one call.
struct Delivery<'s, 'a, 'm> {
    call: RecvCall<'a, 'm>,
    tokens: &'s mut TokenTable<TokenMemory>,
    /// Notes frags in places that the program has chosen.
    placed_frags: Option<&'s mut PlacedFrags>,
    bytes: usize,
    host_bytes: usize,
    /// Whether the bytes delivered so far are unreadable: one call does not mix both.
    unreadable: Option<bool>,
    open: Option<OpenCmsg>,
}

impl Delivery<'_, '_, '_> {
    /// Delivers the next frag, or the part of it that is within the limits.
    fn step(&mut self, queue: &mut RecvQueue<FragList>) -> Result<(), End> {
        let left = self.call.msg.len - self.bytes;
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
        let (kind, len) = (FragKind::of(frag), frag.len().min(left));
        if self.call.flags.contains(MsgFlags::TRUNC) {
            (self.call.home)(queue.pop(len).unwrap_or_default());
            self.bytes += len;
            return Ok(());
        }
        if self
            .unreadable
            .is_some_and(|unreadable| unreadable != kind.is_unreadable())
        {
            return Err(End::Stopped(Stopped::Border));
        }
        if kind.is_unreadable() && !self.call.flags.contains(MsgFlags::SOCK_DEVMEM) {
            return Err(End::Refused(RecvError::Unreadable { bytes: len }));
        }
        match kind {
            FragKind::Readable => self.copy(queue, len).map(|_| ()),
            FragKind::Linear => self.deliver_linear(queue, len),
            FragKind::Device(id) if self.call.merge => {
                let run = payload.first_run(left.min(MAX_RUN));
                self.deliver_device(queue, id, run)
            }
            FragKind::Device(id) => self.deliver_device(queue, id, len),
            FragKind::Foreign => Err(End::Refused(RecvError::NotOurMemory { bytes: len })),
        }?;
        self.unreadable = Some(kind.is_unreadable());
        Ok(())
    }

    /// Copies up to `len` bytes of the next frag to the iovec; returns how many.
    fn copy(&mut self, queue: &mut RecvQueue<FragList>, len: usize) -> Result<usize, End> {
        let room = self
            .call
            .msg
            .host
            .get_mut(self.host_bytes..)
            .unwrap_or_default();
        let n = len.min(room.len());
        if n == 0 {
            return Err(End::Refused(RecvError::NoBuffer { bytes: len }));
        }
        let piece = queue.pop(n).unwrap_or_default();
        for (at, frag) in offsets(&piece) {
            let out = room.get_mut(at..at + frag.len()).unwrap_or_default();
            // The frag is readable, as checked before.
            let copied = frag.copy_to(0, out);
            debug_assert!(copied.is_ok());
        }
        (self.call.home)(piece);
        self.host_bytes += n;
        self.bytes += n;
        Ok(n)
    }

    fn deliver_linear(&mut self, queue: &mut RecvQueue<FragList>, len: usize) -> Result<(), End> {
        self.flush();
        if self.call.sink.room() == 0 {
            return Err(End::Stopped(Stopped::ControlFull));
        }
        let copied = self.copy(queue, len)?;
        let pushed = self.call.sink.push(DevmemCmsg::Linear(copied as u32));
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
            && self.call.merge
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
        if self.call.sink.room() == 0 {
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
            Ok(token) => {
                cmsg.frag_token = token;
                if let Some(places) = &mut self.placed_frags {
                    places.on_lent(&cmsg);
                }
                let pushed = self.call.sink.push(DevmemCmsg::Dmabuf(cmsg));
                debug_assert!(pushed.is_ok(), "a sink keeps its word about its room");
            }
            Err(_) => debug_assert!(false, "room in the token table was asked before"),
        }
    }
}

/// Iterates over frags, each with its offset in the list.
fn offsets(frags: &FragList) -> impl Iterator<Item = (usize, &Frag)> {
    frags.iter().scan(0, |at, frag| {
        let start = *at;
        *at += frag.len();
        Some((start, frag))
    })
}
