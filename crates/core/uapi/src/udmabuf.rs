//! `/dev/udmabuf`: makes a dma-buf of a sealed memfd (linux include/uapi/linux/udmabuf.h).

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Argument of [`UDMABUF_CREATE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
#[doc(alias = "udmabuf_create")]
pub struct UdmabufCreate {
    /// The memfd; must be sealed against shrinking.
    pub memfd: u32,
    /// 0 or [`UDMABUF_FLAGS_CLOEXEC`].
    pub flags: u32,
    /// Start in the memfd, in bytes; page-aligned.
    pub offset: u64,
    /// Size in bytes; page-aligned.
    pub size: u64,
}
const _: () = assert!(size_of::<UdmabufCreate>() == 24);
const _: () = assert!(std::mem::offset_of!(UdmabufCreate, flags) == 4);
const _: () = assert!(std::mem::offset_of!(UdmabufCreate, offset) == 8);
const _: () = assert!(std::mem::offset_of!(UdmabufCreate, size) == 16);

/// The new fd closes on exec.
pub const UDMABUF_FLAGS_CLOEXEC: u32 = 1;

/// Request number of the ioctl: `_IOW('u', 0x42, struct udmabuf_create)`; it returns the dma-buf's fd.
pub const UDMABUF_CREATE: u32 = io_write(b'u', 0x42, size_of::<UdmabufCreate>());

/// Returns `_IOW(kind, number, size)` (linux include/uapi/asm-generic/ioctl.h).
const fn io_write(kind: u8, number: u8, size: usize) -> u32 {
    const WRITE: u32 = 1;
    assert!(size < 1 << 14);
    WRITE << 30 | (size as u32) << 16 | (kind as u32) << 8 | number as u32
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_ioctl_number_is_the_kernels() {
        assert_eq!(super::UDMABUF_CREATE, 0x4018_7542);
    }
}
