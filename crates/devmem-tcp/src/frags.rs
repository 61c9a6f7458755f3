//! The frags of one receive, and the buffers that a receive fills.

use std::ops::Range;

use devmem_uapi::{DmabufCmsg, DmabufId, FragToken, MAX_DONTNEED_FRAGS, TokenRanges};

/// Most host bytes that one receive returns; it does not limit device bytes.
pub(crate) const HOST_BYTES: usize = 256 << 10;

/// A frag.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    Device(Device),
    /// A range of [`Frags::host`].
    Linear(Range<usize>),
}

/// A frag in device memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Device {
    pub(crate) dmabuf: DmabufId,
    offset: u64,
    pub(crate) len: u32,
    pub(crate) token: FragToken,
}

/// The frags of one receive, in stream order.
#[derive(Debug)]
pub(crate) struct Frags {
    pub(crate) items: Vec<Item>,
    /// Buffer for bytes that land in host memory. The first `linear_bytes` belong to the frags; the rest is not zeroed
    /// for every receive.
    pub(crate) host: Vec<u8>,
    pub(crate) linear_bytes: usize,
    pub(crate) max_frags: usize,
    /// The kernel's control messages; empty with a user-space NIC.
    pub(crate) control: Vec<u8>,
    /// Tokens on their way back; empty in between, kept to reuse its allocation.
    pub(crate) returns: TokenRanges,
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

    pub(crate) fn range(&self) -> Range<usize> {
        // A Dmabuf is mapped in this process, so its offsets fit usize.
        let start = usize::try_from(self.offset).unwrap_or(usize::MAX);
        start..start.saturating_add(self.len as usize)
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

    pub(crate) fn token(&self) -> Option<FragToken> {
        match self {
            Self::Device(device) => Some(device.token),
            Self::Linear(_) => None,
        }
    }
}

impl Frags {
    pub(crate) fn with_capacity(max_frags: usize) -> Self {
        Self {
            // Grows on use, so that a large `max_frags` allocates nothing up front.
            items: Vec::with_capacity(max_frags.min(MAX_DONTNEED_FRAGS)),
            host: Vec::new(),
            linear_bytes: 0,
            max_frags,
            control: Vec::new(),
            returns: TokenRanges::default(),
        }
    }

    pub(crate) fn shrink_to_fit(&mut self) {
        self.items.shrink_to_fit();
        self.host.truncate(self.linear_bytes);
        self.host.shrink_to_fit();
        self.control = Vec::new();
        self.returns.shrink_to_fit();
    }

    pub(crate) fn clear(&mut self) {
        self.items.clear();
        self.linear_bytes = 0;
    }

    /// Iterates over the frags in device memory.
    pub(crate) fn devices(&self) -> impl Iterator<Item = &Device> {
        self.items.iter().filter_map(|item| match item {
            Item::Device(device) => Some(device),
            Item::Linear(_) => None,
        })
    }

    /// Iterates over the tokens of the frags.
    pub(crate) fn tokens(&self) -> impl Iterator<Item = FragToken> {
        self.items.iter().filter_map(Item::token)
    }
}
