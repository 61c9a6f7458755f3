//! The result of one receive: frags in stream order, and the return of their memory.

use std::ops::Range;

use devmem_uapi::{
    CmsgSink, DevmemCmsg, DmabufCmsg, DmabufId, DmabufToken, FragToken, MAX_DONTNEED_FRAGS,
    MAX_DONTNEED_TOKENS, NoSpace,
};

use crate::error::Error;
use crate::socket::Socket;

/// One piece of received data, in stream order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frag<'a> {
    /// Bytes in device memory, at `range` of the memory bound as `dmabuf`. They stay there until the batch is released. Over a
    /// user-space NIC, net_iovs that touch are one frag, with one token; a kernel makes one of each.
    Device {
        /// Byte offsets into the bound memory.
        range: Range<usize>,
        /// The binding of the memory.
        dmabuf: DmabufId,
    },
    /// Bytes in host memory: the NIC could not split the packet, or the connection is not steered to a bound queue.
    Linear(&'a [u8]),
}

/// A frag in the representation of the batch.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    Device(Device),
    /// A range of [`RxBatch::host`].
    Linear(Range<usize>),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Device {
    dmabuf: DmabufId,
    offset: u64,
    len: u32,
    token: FragToken,
}

impl Device {
    pub(crate) fn of(cmsg: DmabufCmsg) -> Self {
        let DmabufCmsg {
            frag_offset,
            frag_size,
            frag_token,
            dmabuf_id,
            flags: _,
        } = cmsg;
        Self {
            dmabuf: dmabuf_id,
            offset: frag_offset,
            len: frag_size,
            token: frag_token,
        }
    }

    fn range(&self) -> Range<usize> {
        // A Dmabuf is mapped in this process, so its offsets fit usize.
        let start = usize::try_from(self.offset).unwrap_or(usize::MAX);
        start..start.saturating_add(self.len as usize)
    }
}

/// The frags of one receive. A batch can be reused for any number of receives; it holds frags, not the bytes in device
/// memory.
///
/// The device memory of the frags is lent: it is returned when the batch is [released](Self::release), received into
/// again, or dropped. As long as batches hold memory, no other data can be received into it, and the sender stalls when none
/// is left.
#[derive(Debug)]
pub struct RxBatch {
    pub(crate) items: Vec<Item>,
    /// Buffer for bytes that land in host memory. The first `linear_bytes` belong to this batch; the rest is not zeroed
    /// for every receive.
    pub(crate) host: Vec<u8>,
    pub(crate) linear_bytes: usize,
    pub(crate) max_frags: usize,
    /// The kernel's control messages; empty with a user-space NIC.
    pub(crate) control: Vec<u8>,
    ranges: Vec<DmabufToken>,
    /// The socket that lent the frags. Holding it keeps the socket open until they are returned.
    pub(crate) owner: Option<Socket>,
}

/// Most host bytes that one receive returns; it does not limit device bytes.
pub(crate) const HOST_BYTES: usize = 256 << 10;

impl RxBatch {
    /// Creates an empty batch for at most `max_frags` frags per receive; 0 counts as 1.
    pub fn with_capacity(max_frags: usize) -> Self {
        let max_frags = max_frags.max(1);
        Self {
            // Grows on use, so that a large `max_frags` allocates nothing up front.
            items: Vec::with_capacity(max_frags.min(MAX_DONTNEED_FRAGS)),
            host: Vec::new(),
            linear_bytes: 0,
            max_frags,
            control: Vec::new(),
            ranges: Vec::new(),
            owner: None,
        }
    }

    /// Returns the number of frags.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Frees the room for further frags, as `Vec::shrink_to_fit` does: for batches that a program keeps. It is made again when the
    /// batch is received into.
    pub fn shrink_to_fit(&mut self) {
        self.items.shrink_to_fit();
        self.host.truncate(self.linear_bytes);
        self.host.shrink_to_fit();
        self.control = Vec::new();
        self.ranges.shrink_to_fit();
    }

    /// Returns whether there is no frag, as before the first receive and at the end of the stream.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns the number of bytes in device memory.
    pub fn device_bytes(&self) -> usize {
        self.devices().map(|device| device.len as usize).sum()
    }

    /// Returns the number of bytes in host memory.
    pub fn linear_bytes(&self) -> usize {
        self.linear_bytes
    }

    /// Iterates over the frags in device memory, in stream order: the range of the bound memory, and the token under which it
    /// is lent.
    pub fn tokens(&self) -> impl Iterator<Item = (Range<usize>, u32)> {
        self.devices()
            .map(|device| (device.range(), device.token.0))
    }

    /// Iterates over the frags in stream order.
    pub fn iter(&self) -> Iter<'_> {
        Iter {
            items: self.items.iter(),
            host: &self.host,
        }
    }

    /// Returns the device memory of all frags with `SO_DEVMEM_DONTNEED`: tokens are merged into ranges, at most 128 ranges
    /// and 1,024 frags per call. Returns the number of frags freed.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) if fewer frags were freed than the batch held: the program returned some of their tokens
    /// without the library.
    pub fn release(&mut self) -> Result<usize, Error> {
        self.linear_bytes = 0;
        let Some(owner) = self.owner.take() else {
            self.items.clear();
            return Ok(0);
        };
        if let Err(forked) = owner.check() {
            // In a child of fork(2) the frags belong to the parent.
            self.items.clear();
            return Err(forked.into());
        }
        let lent = self.devices().count();
        let tokens = self.items.drain(..).filter_map(Item::token);
        let freed = match &owner {
            Socket::User(inner) => {
                merge_tokens(tokens, &mut self.ranges);
                let mut freed = 0;
                for_each_call(&self.ranges, |call| {
                    inner.dontneed(call).map(|count| freed += count)
                })?;
                self.ranges.clear();
                inner.count_returned(freed);
                freed
            }
            Socket::Kernel(socket) => socket.release(tokens)?,
        };
        if freed == lent {
            Ok(freed)
        } else {
            let reason = format!("only {freed} of {lent} frags could be returned");
            Err(Error::invalid(reason)
                .with_remedy("their tokens were returned before, without the library"))
        }
    }

    /// Moves the frags out of the batch, so that each can be kept and dropped separately. Linear bytes are copied.
    pub fn take(&mut self) -> Vec<RxFrag> {
        let Some(owner) = self.owner.take() else {
            return Vec::new();
        };
        let host = &self.host;
        self.linear_bytes = 0;
        self.items
            .drain(..)
            .map(|item| match item {
                Item::Device(device) => RxFrag(Kept::Device {
                    device,
                    owner: owner.clone(),
                }),
                Item::Linear(range) => RxFrag(Kept::Linear(host[range].into())),
            })
            .collect()
    }

    /// Returns the number of frags in device memory.
    pub(crate) fn device_frags(&self) -> usize {
        self.devices().count()
    }

    fn devices(&self) -> impl Iterator<Item = &Device> {
        self.items.iter().filter_map(|item| match item {
            Item::Device(device) => Some(device),
            Item::Linear(_) => None,
        })
    }
}

impl Item {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Device(device) => device.len as usize,
            Self::Linear(range) => range.len(),
        }
    }

    /// Returns the binding of its memory; `None` for host memory.
    pub(crate) fn dmabuf(&self) -> Option<DmabufId> {
        match self {
            Self::Device(device) => Some(device.dmabuf),
            Self::Linear(_) => None,
        }
    }

    /// Returns the offset of its first byte in that memory.
    pub(crate) fn start(&self) -> usize {
        match self {
            Self::Device(device) => device.range().start,
            Self::Linear(range) => range.start,
        }
    }

    /// Returns its bytes if they are in host memory, else an empty slice.
    pub(crate) fn linear<'a>(&self, host: &'a [u8]) -> &'a [u8] {
        match self {
            Self::Device(_) => &[],
            Self::Linear(range) => &host[range.clone()],
        }
    }

    pub(crate) fn token(self) -> Option<FragToken> {
        match self {
            Self::Device(device) => Some(device.token),
            Self::Linear(_) => None,
        }
    }
}

impl Drop for RxBatch {
    fn drop(&mut self) {
        // `drop` cannot report that frags are missing; a call of `release` does.
        let _ = self.release();
    }
}

impl<'a> IntoIterator for &'a RxBatch {
    type Item = Frag<'a>;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

/// Iterator over the frags of a batch.
#[derive(Clone, Debug)]
pub struct Iter<'a> {
    items: std::slice::Iter<'a, Item>,
    host: &'a [u8],
}

impl<'a> Iterator for Iter<'a> {
    type Item = Frag<'a>;

    fn next(&mut self) -> Option<Frag<'a>> {
        Some(match self.items.next()? {
            Item::Device(device) => Frag::Device {
                range: device.range(),
                dmabuf: device.dmabuf,
            },
            Item::Linear(range) => Frag::Linear(&self.host[range.clone()]),
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.items.size_hint()
    }
}

impl ExactSizeIterator for Iter<'_> {}

/// A frag moved out of its batch. Dropping it returns its device memory.
#[derive(Debug)]
pub struct RxFrag(Kept);

#[derive(Debug)]
enum Kept {
    Device { device: Device, owner: Socket },
    Linear(Box<[u8]>),
}

impl RxFrag {
    /// Returns the kind of frag and where its bytes lie.
    pub fn as_frag(&self) -> Frag<'_> {
        match &self.0 {
            Kept::Device { device, .. } => Frag::Device {
                range: device.range(),
                dmabuf: device.dmabuf,
            },
            Kept::Linear(bytes) => Frag::Linear(bytes),
        }
    }
}

impl Drop for RxFrag {
    fn drop(&mut self) {
        if let Kept::Device { device, owner } = &self.0
            && owner.check().is_ok()
        {
            // As for the batch, `drop` cannot report an error.
            match owner {
                Socket::User(inner) => {
                    if let Ok(freed) = inner.dontneed(&[DmabufToken::one(device.token)]) {
                        inner.count_returned(freed);
                    }
                }
                Socket::Kernel(socket) => {
                    let _ = socket.release(std::iter::once(device.token));
                }
            }
        }
    }
}

/// Sink that appends the control messages of recvmsg to the items of a batch.
pub(crate) struct BatchSink<'a> {
    items: &'a mut Vec<Item>,
    max_frags: usize,
    /// Bytes of the iovec described so far: linear bytes lie there without gaps.
    linear: usize,
}

impl<'a> BatchSink<'a> {
    pub(crate) fn new(items: &'a mut Vec<Item>, max_frags: usize) -> Self {
        Self {
            items,
            max_frags,
            linear: 0,
        }
    }
}

impl CmsgSink for BatchSink<'_> {
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

impl RxBatch {
    /// Returns the items, the whole buffer for host bytes, and the largest number of frags.
    pub(crate) fn host_room(&mut self) -> (&mut Vec<Item>, &mut [u8], usize) {
        if self.host.len() < HOST_BYTES {
            self.host.resize(HOST_BYTES, 0);
        }
        (&mut self.items, &mut self.host, self.max_frags)
    }
}

/// Merges consecutive tokens into ranges.
pub(crate) fn merge_tokens(tokens: impl Iterator<Item = FragToken>, ranges: &mut Vec<DmabufToken>) {
    ranges.clear();
    for token in tokens {
        match ranges.last_mut() {
            Some(last) if last.token_start.0.checked_add(last.token_count) == Some(token.0) => {
                last.token_count += 1
            }
            _ => ranges.push(DmabufToken {
                token_start: token,
                token_count: 1,
            }),
        }
    }
}

/// Calls `call` with groups of token ranges within the limits of one `SO_DEVMEM_DONTNEED`; stops at the first error.
fn for_each_call<E>(
    ranges: &[DmabufToken],
    mut call: impl FnMut(&[DmabufToken]) -> Result<(), E>,
) -> Result<(), E> {
    let mut pending = [DmabufToken {
        token_start: FragToken(0),
        token_count: 0,
    }; MAX_DONTNEED_TOKENS];
    let mut tokens = 0;
    let mut frags = 0;
    for &range in ranges {
        let mut rest = range;
        while rest.token_count > 0 {
            if tokens == MAX_DONTNEED_TOKENS || frags == MAX_DONTNEED_FRAGS {
                call(&pending[..tokens])?;
                (tokens, frags) = (0, 0);
            }
            let room = u32::try_from(MAX_DONTNEED_FRAGS - frags).unwrap_or(u32::MAX);
            let count = rest.token_count.min(room);
            pending[tokens] = DmabufToken {
                token_start: rest.token_start,
                token_count: count,
            };
            tokens += 1;
            frags += count as usize;
            // Wraps only past the last possible token, and then the range is empty.
            rest.token_start = FragToken(rest.token_start.0.wrapping_add(count));
            rest.token_count -= count;
        }
    }
    if tokens > 0 {
        call(&pending[..tokens])
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use devmem_uapi::{DmabufToken, FragToken, MAX_DONTNEED_FRAGS, MAX_DONTNEED_TOKENS};

    use super::{for_each_call, merge_tokens};

    fn merged(tokens: impl IntoIterator<Item = u32>) -> Vec<(u32, u32)> {
        let mut ranges = Vec::new();
        merge_tokens(tokens.into_iter().map(FragToken), &mut ranges);
        ranges
            .iter()
            .map(|range| (range.token_start.0, range.token_count))
            .collect()
    }

    fn calls(ranges: &[(u32, u32)]) -> Vec<Vec<(u32, u32)>> {
        let ranges: Vec<_> = ranges
            .iter()
            .map(|&(start, token_count)| DmabufToken {
                token_start: FragToken(start),
                token_count,
            })
            .collect();
        let mut calls = Vec::new();
        for_each_call(&ranges, |call| {
            calls.push(
                call.iter()
                    .map(|range| (range.token_start.0, range.token_count))
                    .collect(),
            );
            Ok::<(), ()>(())
        })
        .expect("the callback never fails");
        calls
    }

    #[test]
    fn consecutive_tokens_become_one_range() {
        assert_eq!(merged([1, 2, 3]), [(1, 3)]);
        assert_eq!(merged([3, 1, 2, 7]), [(3, 1), (1, 2), (7, 1)]);
        assert_eq!(
            merged([u32::MAX - 1, u32::MAX, 0]),
            [(u32::MAX - 1, 2), (0, 1)]
        );
        assert_eq!(merged([]), []);
    }

    #[test]
    fn a_call_never_names_more_than_1024_frags() {
        assert_eq!(
            calls(&[(1, 2500)]),
            [[(1, 1024)], [(1025, 1024)], [(2049, 452)]]
        );
        assert_eq!(
            calls(&[(1, 1000), (5000, 100)]),
            [vec![(1, 1000), (5000, 24)], vec![(5024, 76)]]
        );
    }

    #[test]
    fn a_call_never_has_more_than_128_ranges() {
        let ranges: Vec<_> = (0..300).map(|index| (index * 2, 1)).collect();
        let calls = calls(&ranges);
        assert_eq!(
            calls.iter().map(Vec::len).collect::<Vec<_>>(),
            [MAX_DONTNEED_TOKENS, 128, 44]
        );
        assert_eq!(calls.concat(), ranges);
        assert!(calls.iter().all(|call| call.len() <= MAX_DONTNEED_FRAGS));
    }

    #[test]
    fn no_range_makes_no_call() {
        assert!(calls(&[]).is_empty());
        assert!(calls(&[(9, 0)]).is_empty());
    }
}
