//! Received messages: splitting a datagram into messages, and the header of every message.

use std::ffi::c_int;

use rustix::io::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::attr::{Attributes, align};

/// `NLM_F_DUMP_INTR`: the listed objects changed during the dump.
const F_DUMP_INTR: u16 = 0x10;
/// `NLMSG_ERROR`: an acknowledgement, or an error.
pub(super) const TYPE_ERROR: u16 = 2;
/// `NLMSG_MIN_TYPE`: lower types are control messages of netlink.
const TYPE_FIRST_OF_FAMILIES: u16 = 16;

/// `struct nlmsghdr`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct Header {
    /// Length of header and payload in bytes.
    len: u32,
    kind: u16,
    flags: u16,
    sequence: u32,
    /// Port of the sender. The kernel fills in ours; its own is 0.
    port: u32,
}
const _: () = assert!(size_of::<Header>() == 16);

impl Header {
    /// Returns a header without length and sequence number, which [`complete`](Self::complete) fills in.
    pub(super) fn new(kind: u16, flags: u16) -> Self {
        Self {
            len: 0,
            kind,
            flags,
            sequence: 0,
            port: 0,
        }
    }

    /// Clears flags in the header of `message`.
    pub(super) fn clear_flags(message: &mut [u8], flags: u16) {
        if let Ok((mut header, _)) = Self::read_from_prefix(message) {
            header.flags &= !flags;
            // The message is long enough: the header was just read from it.
            let _ = header.write_to_prefix(message);
        }
    }

    /// Writes length and sequence number to the header of `message`; `None` if the message is shorter than a header, or 4 GiB
    /// or longer.
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

    /// Returns whether this is a message of a family, not a control message of netlink.
    pub(super) fn is_of_a_family(&self) -> bool {
        self.kind >= TYPE_FIRST_OF_FAMILIES
    }

    /// Returns the errno of a refusal; `None` for any other message.
    pub(crate) fn refusal(&self) -> Option<Errno> {
        let code = self.payload.first_chunk().copied();
        let code = code.filter(|_| self.kind == TYPE_ERROR);
        errno_of(c_int::from_ne_bytes(code?))
    }

    /// Returns whether the listed objects changed during the dump that this message is part of.
    pub(super) fn was_interrupted(&self) -> bool {
        self.flags & F_DUMP_INTR != 0
    }
}

/// Parses the code of a refusal; `None` if it is not a negated errno (1 to 4,095: linux include/linux/err.h `MAX_ERRNO`),
/// because rustix's type holds no other values.
pub(super) fn errno_of(code: c_int) -> Option<Errno> {
    let number = code.checked_neg()?;
    (1..=4095)
        .contains(&number)
        .then(|| Errno::from_raw_os_error(number))
}

/// Returns the messages of one datagram, up to the first that does not fit.
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
