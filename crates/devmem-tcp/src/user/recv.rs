//! Receiving from a stack, and the return of what was received.

use std::ops::Range;
use std::sync::atomic::Ordering;

use devmem_uapi::{CmsgSink, DevmemCmsg, DmabufToken, FragToken, MsgFlags, NoSpace};
use netmem::Dmabuf;
use stack::{PlaceInUse, RecvMsg, RecvOutcome, Stack};

use super::socket::Socket;
use crate::driver::WaitLimit;
use crate::error::{Error, RecvError};
use crate::frags::{Device, Frags, HOST_BYTES, Item};
use crate::recv_request::{Placement, RecvRequest};

/// Sink that appends the control messages of recvmsg to frags.
struct FragSink<'a> {
    items: &'a mut Vec<Item>,
    max_frags: usize,
    /// Bytes of the iovec described so far: linear bytes lie there without gaps.
    linear: usize,
}

impl<'a> FragSink<'a> {
    fn new(items: &'a mut Vec<Item>, max_frags: usize) -> Self {
        Self {
            items,
            max_frags,
            linear: 0,
        }
    }
}

impl CmsgSink for FragSink<'_> {
    fn push(&mut self, message: DevmemCmsg) -> Result<(), NoSpace> {
        if self.room() == 0 {
            return Err(NoSpace);
        }
        match message {
            DevmemCmsg::Linear(len) => {
                let start = self.linear;
                self.linear += len as usize;
                self.items.push(Item::Linear(start..self.linear));
            }
            DevmemCmsg::Dmabuf(cmsg) => self.items.push(Item::Device(Device::of(cmsg))),
        }
        Ok(())
    }

    fn room(&self) -> usize {
        self.max_frags.saturating_sub(self.items.len())
    }
}

/// What came of a read of queued bytes.
pub(super) type ReadOutcome = Result<RecvOutcome, stack::RecvError>;

/// Returns how many bytes were read; `None` if the next ones are in device memory.
pub(super) fn host_bytes(read: ReadOutcome) -> Result<Option<usize>, RecvError> {
    match read {
        Err(stack::RecvError::Unreadable { .. }) => Ok(None),
        read => Ok(Some(read?.bytes)),
    }
}

impl Socket {
    /// Receives queued data into `frags`, which is empty; waits if there is none.
    pub(crate) fn recv(&self, frags: &mut Frags, request: RecvRequest) -> Result<usize, RecvError> {
        let strict = request.placement == Placement::Strict;
        let flags = request.flags | MsgFlags::SOCK_DEVMEM;
        if frags.host.len() < HOST_BYTES {
            frags.host = vec![0; HOST_BYTES];
        }
        let outcome = self.wait(request.limit, |stack, id| {
            let mut sink = FragSink::new(&mut frags.items, frags.max_frags);
            // With no room for host bytes, recvmsg stops before them and returns `NoBuffer`.
            let host: &mut [u8] = if strict { &mut [] } else { &mut frags.host };
            let mut message = RecvMsg::with_len(host, request.max_bytes);
            match stack.recvmsg(id, &mut message, &mut sink, flags) {
                Err(stack::RecvError::WouldBlock) => None,
                result => Some(result),
            }
        });
        let received = outcome.map_err(RecvError::from).and_then(|result| {
            result.map_err(|error| match error {
                stack::RecvError::NoBuffer { bytes } if strict => {
                    RecvError::Misplaced { bytes, cause: None }
                }
                error => error.into(),
            })
        });
        let host_bytes = received.as_ref().map_or(0, |outcome| outcome.host_bytes);
        frags.linear_bytes = host_bytes;
        if frags.items.is_empty() && host_bytes > 0 {
            // Bytes of a readable packet come without a control message.
            frags.items.push(Item::Linear(0..host_bytes));
        }
        received.map(|outcome| outcome.bytes)
    }

    /// Reads bytes that are in host memory; `None` if the next ones are in device memory.
    pub(crate) fn read(
        &self,
        out: &mut [u8],
        limit: WaitLimit,
    ) -> Result<Option<usize>, RecvError> {
        let read = self.wait(limit, |stack, _| self.try_read(stack, out));
        host_bytes(read?)
    }

    /// Reads bytes that are in host memory; `None` if nothing is queued.
    pub(super) fn try_read(&self, stack: &mut Stack, out: &mut [u8]) -> Option<ReadOutcome> {
        let mut items = Vec::new();
        let mut sink = FragSink::new(&mut items, 0);
        let mut message = RecvMsg::new(out);
        match stack.recvmsg(self.id(), &mut message, &mut sink, MsgFlags::empty()) {
            Err(stack::RecvError::WouldBlock) => None,
            result => Some(result),
        }
    }

    /// Returns frags to the stack, merged into ranges, in as few calls as its limits allow. Returns the number of frags freed.
    pub(crate) fn release(&self, frags: &mut Frags) -> Result<usize, Error> {
        let tokens = frags.items.drain(..).filter_map(|item| item.token());
        tokens.for_each(|token| frags.returns.push(token));
        let freed = frags.returns.flush(|ranges| self.dontneed(ranges));
        // Fits: not more than the number of tokens, which are in memory.
        let freed = freed.map_err(|(_, error)| error)?.freed;
        Ok(usize::try_from(freed).unwrap_or(usize::MAX))
    }

    /// Returns one frag that was taken out of its batch.
    pub(crate) fn release_one(&self, token: FragToken) {
        // Frags are returned in `drop`, which cannot report an error.
        let _ = self.dontneed(&[DmabufToken::one(token)]);
    }

    /// Returns the number of frags returned so far.
    pub(crate) fn returned(&self) -> u64 {
        self.returned.load(Ordering::Relaxed)
    }

    fn dontneed(&self, tokens: &[DmabufToken]) -> Result<u32, Error> {
        let freed = self.with(|stack, id| stack.dontneed(id, tokens))?;
        self.returned.fetch_add(freed.into(), Ordering::Relaxed);
        Ok(freed)
    }

    /// Returns whether frags may lie where streams of the NIC receive directly.
    pub(crate) fn has_targets(&self) -> bool {
        self.shard().has_targets()
    }

    /// Returns bytes of `place` that some stream of the NIC still needs, the frags `gathered` of this one aside.
    pub(crate) fn place_in_use(
        &self,
        memory: &Dmabuf,
        place: &Range<usize>,
        gathered: &[DmabufToken],
    ) -> Option<PlaceInUse> {
        let ranges = std::slice::from_ref(place);
        self.shard().find_in_stacks(|stack, is_ours| match is_ours {
            true => stack.place_in_use(memory, place.clone(), self.id(), gathered),
            false => stack.places_in_use(memory, ranges),
        })
    }

    /// Notes that the bytes of lent frags were gathered.
    pub(crate) fn note_gathered(&self, tokens: &[DmabufToken]) {
        let mut core = self.shard().driver().lock();
        // Refused only after the socket was closed, and this keeps it open.
        let noted = core.stacks[self.shard().at().0].gathered(self.id(), tokens);
        debug_assert!(noted.is_ok(), "{noted:?}");
    }
}
