//! Cutting a super-packet, and finishing checksums: what a NIC does when the other side does not.

use std::num::NonZeroU16;

use wire::{
    Checksum, GsoKind, MAX_HEADER_LEN, Network, RxHeaders, SegmentHeaders, Transport, TxChecksum,
    fill_checksum,
};

/// The headers of a frame in host memory, to be changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadBuf {
    bytes: [u8; MAX_HEADER_LEN],
    len: usize,
}

impl HeadBuf {
    /// Copies headers; what a parser accepted fits.
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

/// Finishes the checksum `what` of a frame that is `head` and `payload`; the field, in `head`, holds the sum of the
/// pseudo-header. False if `what` lies outside `head`: then nothing is done.
pub(crate) fn finish_checksum(head: &mut [u8], payload: &[u8], what: TxChecksum) -> bool {
    let start = usize::from(what.start);
    let field = start + usize::from(what.offset);
    if field + 2 > head.len() {
        return false;
    }
    let mut sum = Checksum::new();
    sum.add_bytes(payload);
    fill_checksum(head, sum.partial(), what);
    // A UDP checksum of 0 would say that there is none (RFC 768); in TCP both zeros are the same number.
    if head[field..field + 2] == [0, 0] {
        head[field..field + 2].fill(0xff);
    }
    true
}

/// A super-packet that is being cut.
#[derive(Debug)]
pub(crate) struct Segmenter<'a> {
    head: HeadBuf,
    headers: SegmentHeaders,
    rest: &'a [u8],
    size: usize,
}

impl<'a> Segmenter<'a> {
    /// Prepares to cut `payload` behind headers `head`, which `headers` describes; `None` if they are not those of
    /// what `kind` says.
    pub(crate) fn new(
        head: &[u8],
        headers: &RxHeaders,
        payload: &'a [u8],
        (kind, size): (GsoKind, NonZeroU16),
    ) -> Option<Self> {
        if !is_kind(headers, kind) {
            return None;
        }
        Some(Self {
            head: HeadBuf::new(head),
            headers: SegmentHeaders::new(headers)?,
            rest: payload,
            size: size.get().into(),
        })
    }

    /// Returns where every segment keeps its checksum, which is still to be finished.
    pub(crate) const fn checksum(&self) -> TxChecksum {
        self.headers.checksum()
    }

    /// Returns headers and payload of the next segment; `None` after the last.
    pub(crate) fn next(&mut self) -> Option<(HeadBuf, &'a [u8])> {
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

/// Tells whether headers are those of a super-packet of a kind.
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

/// Returns the kind of super-packet that headers are those of.
pub(crate) fn kind_of(headers: &RxHeaders) -> Option<GsoKind> {
    let kinds = [GsoKind::Tcp4, GsoKind::Tcp6, GsoKind::Udp];
    kinds.into_iter().find(|kind| is_kind(headers, *kind))
}
