//! Messages as bytes: the header, and the bodies of the requests that a server answers.
//!
//! Source: the vfio-user protocol specification (libvfio-user docs/vfio-user.rst, version 0.1; QEMU
//! docs/interop/vfio-user.rst). All fields are little-endian. This module checks only the length of a body; offsets
//! and sizes in it are checked where they are used.

use std::fmt;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Maximum bytes of one region access.
pub const MAX_TRANSFER_BYTES: usize = 64 << 10;

/// Maximum length of a message: the header, the fixed part of the longest body, and one transfer.
pub(crate) const MAX_MESSAGE_BYTES: usize =
    size_of::<Header>() + size_of::<RegionAccess>() + MAX_TRANSFER_BYTES;

/// Maximum number of descriptors with one message. A message with more is refused, and all are closed.
pub const MAX_MESSAGE_FDS: usize = 16;

/// Command of a message. Any number is a valid value; a client may know more commands than this server.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Command(pub u16);

impl Command {
    /// The first message of a connection: version and capabilities.
    pub const VERSION: Self = Self(1);
    /// Makes guest memory accessible to the device.
    pub const DMA_MAP: Self = Self(2);
    /// Revokes access to guest memory.
    pub const DMA_UNMAP: Self = Self(3);
    /// Gets the number of regions and kinds of interrupts.
    pub const GET_INFO: Self = Self(4);
    /// Gets size and access rights of one region.
    pub const GET_REGION_INFO: Self = Self(5);
    /// Gets descriptors for the doorbells of a region.
    pub const GET_REGION_IO_FDS: Self = Self(6);
    /// Gets the number of vectors of one kind of interrupt.
    pub const GET_IRQ_INFO: Self = Self(7);
    /// Sets or removes eventfds of vectors.
    pub const SET_IRQS: Self = Self(8);
    /// Reads registers.
    pub const REGION_READ: Self = Self(9);
    /// Writes registers.
    pub const REGION_WRITE: Self = Self(10);
    /// Resets the device.
    pub const RESET: Self = Self(13);

    /// Returns the command's name in the specification.
    pub fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::VERSION => "VERSION",
            Self::DMA_MAP => "DMA_MAP",
            Self::DMA_UNMAP => "DMA_UNMAP",
            Self::GET_INFO => "DEVICE_GET_INFO",
            Self::GET_REGION_INFO => "DEVICE_GET_REGION_INFO",
            Self::GET_REGION_IO_FDS => "DEVICE_GET_REGION_IO_FDS",
            Self::GET_IRQ_INFO => "DEVICE_GET_IRQ_INFO",
            Self::SET_IRQS => "DEVICE_SET_IRQS",
            Self::REGION_READ => "REGION_READ",
            Self::REGION_WRITE => "REGION_WRITE",
            Self::RESET => "DEVICE_RESET",
            _ => return None,
        })
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "command {}", self.0),
        }
    }
}

/// Header of every message.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned,
)]
#[repr(C)]
pub(crate) struct Header {
    /// Chosen by the sender, repeated in the reply.
    pub(crate) id: U16,
    pub(crate) command: U16,
    /// Bytes of the whole message, this header included.
    pub(crate) size: U32,
    pub(crate) flags: U32,
    /// An errno of Linux in a reply with [`Header::ERROR`].
    pub(crate) errno: U32,
}

const _: () = assert!(size_of::<Header>() == 16);

impl Header {
    pub(crate) const LEN: usize = size_of::<Self>();
    /// Low four bits of the flags: the kind of message.
    const KIND: u32 = 0xf;
    const KIND_REQUEST: u32 = 0;
    const KIND_REPLY: u32 = 1;
    /// The request is posted: no reply is allowed.
    const NO_REPLY: u32 = 0x10;
    const ERROR: u32 = 0x20;

    pub(crate) fn command(self) -> Command {
        Command(self.command.get())
    }

    /// True for a request, false for a reply and for unknown kinds.
    pub(crate) fn is_request(self) -> bool {
        self.flags.get() & Self::KIND == Self::KIND_REQUEST
    }

    pub(crate) fn wants_reply(self) -> bool {
        self.flags.get() & Self::NO_REPLY == 0
    }

    /// Returns the bytes that follow the header, `None` if the size is invalid.
    pub(crate) fn body_len(self) -> Option<usize> {
        let size = usize::try_from(self.size.get()).ok()?;
        (size <= MAX_MESSAGE_BYTES).then_some(())?;
        size.checked_sub(Self::LEN)
    }

    /// Returns the header of the reply with a body of `body_len` bytes, at most [`MAX_MESSAGE_BYTES`].
    fn reply(self, body_len: usize) -> Self {
        let size = u32::try_from(Self::LEN + body_len).unwrap_or(u32::MAX);
        Self {
            size: size.into(),
            flags: Self::KIND_REPLY.into(),
            errno: 0.into(),
            ..self
        }
    }
}

/// Appends the reply to `request`, with `body`, to `out`.
pub(crate) fn emit_reply(out: &mut Vec<u8>, request: Header, body: &[u8]) {
    out.extend_from_slice(request.reply(body.len()).as_bytes());
    out.extend_from_slice(body);
}

/// Appends an error reply to `request` with `errno`.
pub(crate) fn emit_error(out: &mut Vec<u8>, request: Header, errno: rustix::io::Errno) {
    let mut header = request.reply(0);
    header.flags = (Header::KIND_REPLY | Header::ERROR).into();
    header.errno = errno.raw_os_error().unsigned_abs().into();
    out.extend_from_slice(header.as_bytes());
}

/// Fixed part of a request or reply, in wire format.
pub(crate) trait Body: FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned {
    /// Splits a body into its fixed part and what follows, `None` if it is too short.
    fn split(body: &[u8]) -> Option<(Self, &[u8])>
    where
        Self: Sized,
    {
        Self::read_from_prefix(body).ok()
    }
}

impl<T: FromBytes + IntoBytes + Immutable + KnownLayout + Unaligned> Body for T {}

/// VERSION, both ways; JSON text with a NUL at its end follows.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Version {
    pub(crate) major: U16,
    pub(crate) minor: U16,
}

/// Protocol version of this server. Minor versions are backward compatible.
pub(crate) const MAJOR: u16 = 0;
/// See [`MAJOR`].
pub(crate) const MINOR: u16 = 0;

/// DMA_MAP.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct DmaMap {
    pub(crate) argsz: U32,
    pub(crate) flags: U32,
    /// Offset of the memory in the file.
    pub(crate) offset: U64,
    /// Guest address of the memory.
    pub(crate) address: U64,
    pub(crate) size: U64,
}

const _: () = assert!(size_of::<DmaMap>() == 32);

impl DmaMap {
    pub(crate) const READ: u32 = 1;
    pub(crate) const WRITE: u32 = 2;
}

/// DMA_UNMAP, both ways.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct DmaUnmap {
    pub(crate) argsz: U32,
    pub(crate) flags: U32,
    pub(crate) address: U64,
    pub(crate) size: U64,
}

const _: () = assert!(size_of::<DmaUnmap>() == 24);

impl DmaUnmap {
    /// Unmaps everything; address and size are 0.
    pub(crate) const ALL: u32 = 2;
}

/// DEVICE_GET_INFO, both ways.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct DeviceInfo {
    pub(crate) argsz: U32,
    pub(crate) flags: U32,
    pub(crate) region_count: U32,
    pub(crate) irq_count: U32,
}

const _: () = assert!(size_of::<DeviceInfo>() == 16);

impl DeviceInfo {
    /// The device can be reset.
    pub(crate) const RESET: u32 = 1;
    /// It is a PCI device.
    pub(crate) const PCI: u32 = 2;
}

/// DEVICE_GET_REGION_INFO, both ways.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RegionInfo {
    pub(crate) argsz: U32,
    pub(crate) flags: U32,
    pub(crate) index: U32,
    pub(crate) cap_offset: U32,
    pub(crate) size: U64,
    pub(crate) offset: U64,
}

const _: () = assert!(size_of::<RegionInfo>() == 32);

impl RegionInfo {
    pub(crate) const READ: u32 = 1;
    pub(crate) const WRITE: u32 = 2;
}

/// DEVICE_GET_IRQ_INFO, both ways.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct IrqInfo {
    pub(crate) argsz: U32,
    pub(crate) flags: U32,
    pub(crate) index: U32,
    pub(crate) count: U32,
}

const _: () = assert!(size_of::<IrqInfo>() == 16);

impl IrqInfo {
    /// Interrupts are signalled by eventfd.
    pub(crate) const EVENTFD: u32 = 1;
}

/// DEVICE_SET_IRQS; `count` bytes follow if [`SetIrqs::DATA_BOOL`].
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct SetIrqs {
    pub(crate) argsz: U32,
    pub(crate) flags: U32,
    pub(crate) index: U32,
    pub(crate) start: U32,
    pub(crate) count: U32,
}

const _: () = assert!(size_of::<SetIrqs>() == 20);

impl SetIrqs {
    pub(crate) const DATA_NONE: u32 = 1;
    pub(crate) const DATA_BOOL: u32 = 2;
    pub(crate) const DATA_EVENTFD: u32 = 4;
    pub(crate) const ACTION_TRIGGER: u32 = 0x20;
}

/// REGION_READ and REGION_WRITE, both ways; the bytes follow in a write and in the reply to a read.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RegionAccess {
    pub(crate) offset: U64,
    pub(crate) region: U32,
    pub(crate) count: U32,
}

const _: () = assert!(size_of::<RegionAccess>() == 16);

#[cfg(test)]
mod tests {
    use super::*;

    fn header(size: u32, flags: u32) -> Header {
        Header {
            id: 7.into(),
            command: 9.into(),
            size: size.into(),
            flags: flags.into(),
            errno: 0.into(),
        }
    }

    #[test]
    fn a_header_lies_on_the_wire_as_specified() {
        let bytes = [7, 0, 9, 0, 0x20, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0];
        let (parsed, rest) = Header::split(&bytes).unwrap();
        assert_eq!(parsed, header(0x20, 0x10));
        assert!(rest.is_empty());
        assert_eq!(parsed.command(), Command::REGION_READ);
        assert!(parsed.is_request());
        assert!(!parsed.wants_reply());
        assert_eq!(parsed.body_len(), Some(16));
    }

    #[test]
    fn a_size_below_the_header_or_above_the_limit_cannot_be_right() {
        let most = u32::try_from(MAX_MESSAGE_BYTES).unwrap();
        for (size, body) in [
            (0, None),
            (15, None),
            (16, Some(0)),
            (most, Some(MAX_MESSAGE_BYTES - 16)),
            (most + 1, None),
            (u32::MAX, None),
        ] {
            assert_eq!(header(size, 0).body_len(), body, "{size}");
        }
    }

    #[test]
    fn a_reply_repeats_id_and_command_and_says_its_own_size() {
        let mut out = Vec::new();
        emit_reply(&mut out, header(99, 0), &[1, 2, 3]);
        assert_eq!(
            out,
            [7, 0, 9, 0, 19, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3]
        );
        out.clear();
        emit_error(&mut out, header(99, 0), rustix::io::Errno::INVAL);
        assert_eq!(out, [7, 0, 9, 0, 16, 0, 0, 0, 0x21, 0, 0, 0, 22, 0, 0, 0]);
    }

    #[test]
    fn a_body_that_is_too_short_is_none() {
        assert!(DmaMap::split(&[0; 31]).is_none());
        let (_, rest) = SetIrqs::split(&[0; 22]).unwrap();
        assert_eq!(rest.len(), 2);
    }
}
