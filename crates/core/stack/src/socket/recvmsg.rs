//! recvmsg: payload in order to the iovec or, as tokens, to the control buffer (ABI.md 3).
//!
//! One code path serves reading and peeking, and a control buffer of bytes as well as a typed
//! batch: they differ in where the next payload comes from ([`Source`]) and in the [`CmsgSink`].

use devmem_uapi::{CmsgSink, DevmemCmsg, DmabufCmsg, DmabufId, FragToken, MsgFlags, cmsg_space};
use netmem::{Frag, FragList, Payload};
use tcp::RecvQueue;
use wire::Instant;

use super::Held;
use super::error::RecvError;
use super::token_table::{MAX_TOKENS, TokenTable};

/// Where a [`recvmsg`](crate::Stack::recvmsg) puts bytes, and how many it may return.
#[derive(Debug)]
pub struct RecvMsg<'a> {
    host: &'a mut [u8],
    len: usize,
}

impl<'a> RecvMsg<'a> {
    /// Receives at most as many bytes as `host` has; those in host memory are copied there.
    pub fn new(host: &'a mut [u8]) -> Self {
        let len = host.len();
        Self { host, len }
    }

    /// Receives at most `len` bytes; those in host memory are copied to `host`, one after the
    /// other.
    ///
    /// An empty `host` is the NULL iov_base of a caller who expects device bytes only.
    pub fn with_len(host: &'a mut [u8], len: usize) -> Self {
        Self { host, len }
    }
}

/// Why a [`recvmsg`](crate::Stack::recvmsg) that returned something stopped there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stopped {
    /// It returned as many bytes as were asked for.
    Full,
    /// Nothing more has arrived. Only now does a blocking caller with MSG_WAITALL wait on.
    Empty,
    /// The peer sends no more; the next call returns 0.
    Eof,
    /// Readable data ends and unreadable data begins, or the other way round.
    Border,
    /// The control buffer has no room for the next message.
    ControlFull,
    /// The next call will say why.
    Refused,
    /// It read the error queue, which gives one entry at a time and no bytes.
    ErrorQueue,
}

/// What a [`recvmsg`](crate::Stack::recvmsg) returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecvOutcome {
    /// Payload bytes delivered: copied, discarded, or named by control messages. 0 is the end of
    /// the stream.
    pub bytes: usize,
    /// Bytes of those that were copied to the iovec.
    pub host_bytes: usize,
    /// When the segment with the last of these bytes arrived, if times were asked for by then.
    pub arrived: Option<Instant>,
    /// Why it did not return more.
    pub stopped: Stopped,
}

/// What one call works on, apart from the queue.
pub(crate) struct Receive<'a, 'm> {
    pub(crate) msg: &'a mut RecvMsg<'m>,
    pub(crate) sink: &'a mut dyn CmsgSink,
    pub(crate) tokens: &'a mut TokenTable<Held>,
    pub(crate) flags: MsgFlags,
    /// Frags that touch share a message and a token.
    pub(crate) merge: bool,
    /// Where payload goes that was copied or discarded.
    pub(crate) home: &'a mut dyn FnMut(FragList),
}

/// What kind of memory a frag lies in, as far as recvmsg tells them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Host memory of a readable packet.
    Readable,
    /// Host memory of an unreadable packet.
    Linear,
    /// Device memory of a binding.
    Device(DmabufId),
    /// Device memory of somebody else.
    Foreign,
}

impl Kind {
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

/// Why the walk along the queue ends.
enum End {
    Stopped(Stopped),
    Refused(RecvError),
}

/// Payload in order, to take or to look at.
struct Source<'q> {
    queue: &'q mut RecvQueue<FragList>,
    /// How many payloads of the queue were looked at; `None` when they are taken.
    peeked: Option<usize>,
    /// What is left of the payload in hand.
    current: FragList,
}

impl Source<'_> {
    /// Returns the next frag.
    fn front(&mut self) -> Option<&Frag> {
        if self.current.is_empty() {
            self.current = match &mut self.peeked {
                None => self.queue.pop(usize::MAX)?,
                Some(seen) => {
                    let payload = self.queue.iter().nth(*seen)?;
                    *seen += 1;
                    payload.share(0, payload.len())
                }
            };
        }
        self.current.first()
    }

    /// Takes `len` bytes of the next frag.
    fn take(&mut self, len: usize) -> FragList {
        self.current.split_off_front(len)
    }

    /// Puts back what was taken too much.
    fn finish(self) {
        if self.peeked.is_none() {
            self.queue.unpop(self.current);
        }
    }
}

/// A message that waits for frags that touch its own.
struct Pending {
    cmsg: DmabufCmsg,
    held: Held,
}

impl Pending {
    fn touches(&self, id: DmabufId, frag: &Frag) -> bool {
        self.cmsg.dmabuf_id == id
            && self.cmsg.frag_offset + u64::from(self.cmsg.frag_size) == frag.dmabuf_offset()
    }
}

/// Delivers what `queue` has, up to the limits of the call.
pub(crate) fn recvmsg(
    queue: &mut RecvQueue<FragList>,
    receive: Receive<'_, '_>,
) -> Result<RecvOutcome, RecvError> {
    let peeked = receive.flags.contains(MsgFlags::PEEK).then_some(0);
    let mut source = Source {
        queue,
        peeked,
        current: FragList::default(),
    };
    let mut delivery = Delivery {
        receive,
        bytes: 0,
        host_bytes: 0,
        unreadable: None,
        pending: None,
    };
    let end = loop {
        match delivery.step(&mut source) {
            Ok(()) => {}
            Err(end) => break end,
        }
    };
    delivery.flush();
    source.finish();
    let Delivery {
        bytes, host_bytes, ..
    } = delivery;
    match end {
        End::Refused(error) if bytes == 0 => Err(error),
        End::Refused(_) => Ok(RecvOutcome {
            bytes,
            host_bytes,
            arrived: None,
            stopped: Stopped::Refused,
        }),
        End::Stopped(Stopped::Empty) if bytes == 0 => Err(RecvError::WouldBlock),
        End::Stopped(Stopped::ControlFull) if bytes == 0 => Err(RecvError::NoControlSpace {
            need: cmsg_space(size_of::<DmabufCmsg>()),
        }),
        End::Stopped(stopped) => Ok(RecvOutcome {
            bytes,
            host_bytes,
            arrived: None,
            stopped,
        }),
    }
}

/// One call under way.
struct Delivery<'a, 'm> {
    receive: Receive<'a, 'm>,
    bytes: usize,
    host_bytes: usize,
    /// Kind of what was delivered so far: one call never mixes.
    unreadable: Option<bool>,
    pending: Option<Pending>,
}

impl Delivery<'_, '_> {
    /// Delivers the next frag, or as much of it as the call takes.
    fn step(&mut self, source: &mut Source<'_>) -> Result<(), End> {
        let left = self.receive.msg.len - self.bytes;
        if left == 0 {
            return Err(End::Stopped(Stopped::Full));
        }
        let Some(frag) = source.front() else {
            let stopped = if source.queue.has_fin() {
                Stopped::Eof
            } else {
                Stopped::Empty
            };
            return Err(End::Stopped(stopped));
        };
        let (kind, len) = (Kind::of(frag), frag.len().min(left));
        if self.receive.flags.contains(MsgFlags::TRUNC) {
            let discarded = source.take(len);
            (self.receive.home)(discarded);
            self.bytes += len;
            return Ok(());
        }
        if self
            .unreadable
            .is_some_and(|unreadable| unreadable != kind.is_unreadable())
        {
            return Err(End::Stopped(Stopped::Border));
        }
        if kind.is_unreadable() && !self.receive.flags.contains(MsgFlags::SOCK_DEVMEM) {
            return Err(End::Refused(RecvError::Unreadable { bytes: len }));
        }
        match kind {
            Kind::Readable => self.copy(source, len).map(|_| ()),
            Kind::Linear => self.deliver_linear(source, len),
            Kind::Device(id) => self.deliver_device(source, id, len),
            Kind::Foreign => Err(End::Refused(RecvError::NotOurMemory { bytes: len })),
        }?;
        self.unreadable = Some(kind.is_unreadable());
        Ok(())
    }

    /// Copies up to `len` bytes of the next frag to the iovec, returns how many.
    fn copy(&mut self, source: &mut Source<'_>, len: usize) -> Result<usize, End> {
        let room = self
            .receive
            .msg
            .host
            .get_mut(self.host_bytes..)
            .unwrap_or_default();
        let n = len.min(room.len());
        if n == 0 {
            return Err(End::Refused(RecvError::NoBuffer { bytes: len }));
        }
        let piece = source.take(n);
        for (at, frag) in offsets(&piece) {
            let out = room.get_mut(at..at + frag.len()).unwrap_or_default();
            // Readable was asked before; a frag does not change its memory.
            let copied = frag.copy_to(0, out);
            debug_assert!(copied.is_ok());
        }
        (self.receive.home)(piece);
        self.host_bytes += n;
        self.bytes += n;
        Ok(n)
    }

    fn deliver_linear(&mut self, source: &mut Source<'_>, len: usize) -> Result<(), End> {
        self.flush();
        if self.receive.sink.room() == 0 {
            return Err(End::Stopped(Stopped::ControlFull));
        }
        let copied = self.copy(source, len)?;
        self.push(DevmemCmsg::Linear(copied as u32));
        Ok(())
    }

    fn deliver_device(
        &mut self,
        source: &mut Source<'_>,
        id: DmabufId,
        len: usize,
    ) -> Result<(), End> {
        let Some(frag) = source.front() else {
            return Err(End::Stopped(Stopped::Empty));
        };
        let size = len as u32;
        if let Some(pending) = &mut self.pending
            && self.receive.merge
            && pending.touches(id, frag)
            && let Some(merged) = pending.cmsg.frag_size.checked_add(size)
        {
            pending.cmsg.frag_size = merged;
            pending.held.keep(source.take(len));
            self.bytes += len;
            return Ok(());
        }
        let frag_offset = frag.dmabuf_offset();
        self.flush();
        if self.receive.sink.room() == 0 {
            return Err(End::Stopped(Stopped::ControlFull));
        }
        if self.receive.tokens.outstanding() >= MAX_TOKENS {
            return Err(End::Refused(RecvError::TooManyTokens));
        }
        let cmsg = DmabufCmsg {
            frag_offset,
            frag_size: size,
            frag_token: FragToken(0),
            dmabuf_id: id,
            flags: 0,
        };
        let mut held = Held::default();
        held.keep(source.take(len));
        self.pending = Some(Pending { cmsg, held });
        self.bytes += len;
        Ok(())
    }

    /// Issues the token of the message that waited, and sends it off; room for both was asked
    /// before.
    fn flush(&mut self) {
        let Some(Pending { mut cmsg, held }) = self.pending.take() else {
            return;
        };
        match self.receive.tokens.issue(held) {
            Ok(token) => {
                cmsg.frag_token = token;
                self.push(DevmemCmsg::Dmabuf(cmsg));
            }
            Err(_) => debug_assert!(false, "room in the token table was asked before"),
        }
    }

    fn push(&mut self, cmsg: DevmemCmsg) {
        let pushed = self.receive.sink.push(cmsg);
        debug_assert!(pushed.is_ok(), "a sink keeps its word about its room");
    }
}

/// Iterates over frags with where each begins in the list.
fn offsets(frags: &FragList) -> impl Iterator<Item = (usize, &Frag)> {
    frags.iter().scan(0, |at, frag| {
        let start = *at;
        *at += frag.len();
        Some((start, frag))
    })
}
