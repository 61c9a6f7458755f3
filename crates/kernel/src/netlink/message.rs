//! Received messages: walking a datagram, and the fixed header that every message starts with.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::attr::{Attributes, align};

/// `NLM_F_DUMP_INTR`: what is listed changed while it was being listed.
const F_DUMP_INTR: u16 = 0x10;
/// `NLMSG_MIN_TYPE`: types below it are netlink's own.
const TYPE_FIRST_OF_FAMILIES: u16 = 16;

/// `struct nlmsghdr`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Header {
    /// Bytes of header and payload.
    len: u32,
    kind: u16,
    flags: u16,
    sequence: u32,
    /// Of the sender; the kernel fills in ours, and says 0 for itself.
    port: u32,
}
const _: () = assert!(size_of::<Header>() == 16);

impl Header {
    /// Returns the header of a message that [`complete`](Self::complete) finishes.
    pub(super) fn new(kind: u16, flags: u16) -> Self {
        Self {
            len: 0,
            kind,
            flags,
            sequence: 0,
            port: 0,
        }
    }

    /// Writes length and sequence number into the header that `message` starts with; `None` if there is none, or if the
    /// message is 4 GiB long.
    pub(super) fn complete(message: &mut [u8], sequence: u32) -> Option<()> {
        let len = u32::try_from(message.len()).ok()?;
        let (mut header, _) = Self::read_from_prefix(message).ok()?;
        (header.len, header.sequence) = (len, sequence);
        header.write_to_prefix(message).ok()
    }
}

/// One received message.
#[derive(Clone, Copy, Debug)]
pub struct NetlinkMessage<'a> {
    /// The message type.
    pub kind: u16,
    /// The sequence number of the request it answers.
    pub sequence: u32,
    pub(super) flags: u16,
    pub(super) payload: &'a [u8],
}

impl<'a> NetlinkMessage<'a> {
    /// Splits the message into the family's fixed body and the attributes; `None` if it is too short for the body.
    pub fn split<Body: FromBytes>(&self) -> Option<(Body, Attributes<'a>)> {
        let (body, _) = Body::read_from_prefix(self.payload).ok()?;
        let attributes = self.payload.get(align(size_of::<Body>())..);
        Some((body, Attributes::new(attributes.unwrap_or_default())))
    }

    /// Tells whether this is an answer of the family, not one of netlink itself.
    pub(super) fn is_of_a_family(&self) -> bool {
        self.kind >= TYPE_FIRST_OF_FAMILIES
    }

    /// Tells whether the list that this message is part of changed while it was being read.
    pub(super) fn was_interrupted(&self) -> bool {
        self.flags & F_DUMP_INTR != 0
    }
}

/// Walks the messages of one datagram; stops at the first that does not fit.
pub(super) fn messages(mut datagram: &[u8]) -> impl Iterator<Item = NetlinkMessage<'_>> {
    std::iter::from_fn(move || {
        let (header, _) = Header::read_from_prefix(datagram).ok()?;
        let len = usize::try_from(header.len).ok()?;
        let payload = datagram.get(size_of::<Header>()..len)?;
        datagram = datagram.get(align(len)..).unwrap_or_default();
        Some(NetlinkMessage {
            kind: header.kind,
            sequence: header.sequence,
            flags: header.flags,
            payload,
        })
    })
}
