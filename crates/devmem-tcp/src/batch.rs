//! The result of one receive: frags in stream order.

pub(crate) mod gather;
mod returns;

use std::ops::Range;

use devmem_uapi::DmabufId;

use crate::backend::Socket;
use crate::error::RecvError;
use crate::frags::{Device, Frags, Item};
use crate::recv_request::RecvRequest;

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

/// The frags of one receive. A batch can be reused for any number of receives; it holds frags, not the bytes in device
/// memory.
///
/// The device memory of the frags is lent: it is returned when the batch is [released](Self::release), received into
/// again, or dropped. As long as batches hold memory, no other data can be received into it, and the sender stalls when none
/// is left.
#[derive(Debug)]
pub struct RxBatch {
    frags: Frags,
    /// The socket that lent the frags. Holding it keeps the socket open until they are returned.
    owner: Option<Socket>,
}

impl RxBatch {
    /// Creates an empty batch for at most `max_frags` frags per receive; 0 counts as 1.
    pub fn with_capacity(max_frags: usize) -> Self {
        Self {
            frags: Frags::with_capacity(max_frags.max(1)),
            owner: None,
        }
    }

    /// Returns a batch of frags that `owner` has lent.
    #[cfg(test)]
    pub(crate) fn lent(frags: Frags, owner: Socket) -> Self {
        Self {
            frags,
            owner: Some(owner),
        }
    }

    /// Returns the number of frags.
    pub fn len(&self) -> usize {
        self.frags.items.len()
    }

    /// Frees the room for further frags, as `Vec::shrink_to_fit` does: for batches that a program keeps. It is made again when the
    /// batch is received into.
    pub fn shrink_to_fit(&mut self) {
        self.frags.shrink_to_fit();
    }

    /// Returns whether there is no frag, as before the first receive and at the end of the stream.
    pub fn is_empty(&self) -> bool {
        self.frags.items.is_empty()
    }

    /// Returns the number of bytes in device memory.
    pub fn device_bytes(&self) -> usize {
        self.frags.devices().map(|device| device.len as usize).sum()
    }

    /// Returns the number of bytes in host memory.
    pub fn linear_bytes(&self) -> usize {
        self.frags.linear_bytes
    }

    /// Iterates over the frags in device memory, in stream order: the range of the bound memory, and the token under which it
    /// is lent. For captures and tests, not part of the API: the library returns the tokens itself.
    #[doc(hidden)]
    pub fn tokens(&self) -> impl Iterator<Item = (Range<usize>, u32)> {
        self.frags
            .devices()
            .map(|device| (device.range(), device.token.0))
    }

    /// Iterates over the frags in stream order.
    pub fn iter(&self) -> Iter<'_> {
        Iter {
            items: self.frags.items.iter(),
            host: &self.frags.host,
        }
    }

    /// Moves the frags out of the batch, so that each can be kept and dropped separately. Linear bytes are copied.
    pub fn take(&mut self) -> Vec<RxFrag> {
        let Some(owner) = self.owner.take() else {
            return Vec::new();
        };
        let host = &self.frags.host;
        self.frags.linear_bytes = 0;
        self.frags
            .items
            .drain(..)
            .map(|item| match item {
                Item::Device(device) => RxFrag(OwnedFrag::Device {
                    device,
                    owner: owner.clone(),
                }),
                Item::Linear(range) => RxFrag(OwnedFrag::Linear(host[range].into())),
            })
            .collect()
    }

    /// Returns the number of frags in device memory.
    pub(crate) fn device_frags(&self) -> usize {
        self.frags.devices().count()
    }

    /// Receives from `socket`, which then is the owner of the batch. The batch is empty.
    pub(crate) fn fill(
        &mut self,
        socket: &Socket,
        request: RecvRequest,
    ) -> Result<usize, RecvError> {
        let received = socket.recv(&mut self.frags, request);
        self.owner = Some(socket.clone());
        received
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
pub struct RxFrag(OwnedFrag);

/// What a frag owns outside of its batch.
#[derive(Debug)]
enum OwnedFrag {
    Device { device: Device, owner: Socket },
    Linear(Box<[u8]>),
}

impl RxFrag {
    /// Returns the kind of frag and where its bytes lie.
    pub fn as_frag(&self) -> Frag<'_> {
        match &self.0 {
            OwnedFrag::Device { device, .. } => Frag::Device {
                range: device.range(),
                dmabuf: device.dmabuf,
            },
            OwnedFrag::Linear(bytes) => Frag::Linear(bytes),
        }
    }
}
