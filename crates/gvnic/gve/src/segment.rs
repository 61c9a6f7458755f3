//! Segmentation of super-packets and computation of checksums, for offloads that the other side lacks.

use std::num::NonZeroU16;

use wire::{
    Checksum, GsoKind, MAX_HEADER_LEN, Network, RxHeaders, SegmentHeaders, Transport, TxChecksum,
    fill_checksum,
};

/// A modifiable copy of the headers of a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeaderCopy {
    bytes: [u8; MAX_HEADER_LEN],
    len: usize,
}

impl HeaderCopy {
    /// Copies headers; all headers that the parser accepts fit.
    pub(crate) fn new(head: &[u8]) -> Self {
        let len = head.len().min(MAX_HEADER_LEN);
        let mut bytes = [0; MAX_HEADER_LEN];
        bytes[..len].copy_from_slice(&head[..len]);
        Self { bytes, len }
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.len]
    }
}

/// Completes the checksum `what` of the frame `head` plus `payload`; the field, in `head`, has the sum of the
/// pseudo-header. Returns false, and changes nothing, if `what` lies outside `head`.
pub(crate) fn finish_checksum(head: &mut [u8], payload: &[u8], what: TxChecksum) -> bool {
    let start = usize::from(what.start);
    let field = start + usize::from(what.offset);
    if field + 2 > head.len() {
        return false;
    }
    let mut sum = Checksum::new();
    sum.add_bytes(payload);
    fill_checksum(head, sum.partial(), what);
    true
}

/// Segmenter of one super-packet.
#[derive(Debug)]
pub(crate) struct Segmenter<'a> {
    head: HeaderCopy,
    headers: SegmentHeaders,
    rest: &'a [u8],
    size: usize,
}

impl<'a> Segmenter<'a> {
    /// Returns a segmenter of `payload` with the headers `head`, parsed as `headers`; `None` if they are not of `kind`.
    pub(crate) fn new(
        head: &[u8],
        headers: &RxHeaders,
        payload: &'a [u8],
        kind: GsoKind,
        size: NonZeroU16,
    ) -> Option<Self> {
        if !is_kind(headers, kind) {
            return None;
        }
        Some(Self {
            head: HeaderCopy::new(head),
            headers: SegmentHeaders::new(headers)?,
            rest: payload,
            size: size.get().into(),
        })
    }

    /// Returns start and position of the checksum of each segment, which the caller completes.
    pub(crate) const fn checksum(&self) -> TxChecksum {
        self.headers.checksum()
    }

    /// Returns headers and payload of the next segment; `None` after the last.
    pub(crate) fn next(&mut self) -> Option<(HeaderCopy, &'a [u8])> {
        if self.rest.is_empty() {
            return None;
        }
        let (payload, rest) = self.rest.split_at(self.rest.len().min(self.size));
        self.rest = rest;
        let mut head = self.head;
        self.headers
            .write_next(head.as_mut_slice(), payload.len(), rest.len());
        Some((head, payload))
    }
}

/// Returns whether the headers are those of a super-packet of `kind`.
pub(crate) fn is_kind(headers: &RxHeaders, kind: GsoKind) -> bool {
    match kind {
        GsoKind::Tcp4 => {
            matches!(headers.network, Network::Ipv4(_))
                && matches!(headers.transport, Transport::Tcp(_))
        }
        GsoKind::Tcp6 => {
            matches!(headers.network, Network::Ipv6(_))
                && matches!(headers.transport, Transport::Tcp(_))
        }
        GsoKind::Udp => matches!(headers.transport, Transport::Udp(_)),
    }
}

/// Returns the kind of super-packet with these headers, `None` if there is none.
pub(crate) fn kind_of(headers: &RxHeaders) -> Option<GsoKind> {
    let kinds = [GsoKind::Tcp4, GsoKind::Tcp6, GsoKind::Udp];
    kinds.into_iter().find(|kind| is_kind(headers, *kind))
}
