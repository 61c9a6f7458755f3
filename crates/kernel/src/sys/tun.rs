// UNSAFETY: the TUN ioctls have no safe wrapper; each is declared here, with the type that the kernel reads or writes
// (linux include/uapi/linux/if_tun.h).

//! The TUN/TAP ioctls.

use std::ffi::{c_int, c_uint};
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::ioctl::{IntegerSetter, Opcode, Setter, Updater, ioctl, opcode};

/// Longest interface name with its terminating NUL: `IFNAMSIZ` (linux include/uapi/linux/if.h).
pub(crate) const IFNAMSIZ: usize = 16;

const TUNSETIFF: Opcode = opcode::write::<c_int>(b'T', 202);
const TUNSETPERSIST: Opcode = opcode::write::<c_int>(b'T', 203);
const TUNSETOFFLOAD: Opcode = opcode::write::<c_uint>(b'T', 208);
const TUNSETSNDBUF: Opcode = opcode::write::<c_int>(b'T', 212);
const TUNSETVNETHDRSZ: Opcode = opcode::write::<c_int>(b'T', 216);

/// `struct ifreq` as `TUNSETIFF` uses it: the name and the flags, the rest unused.
#[repr(C)]
struct InterfaceRequest {
    name: [u8; IFNAMSIZ],
    flags: u16,
    rest: [u8; 22],
}

// The kernel copies sizeof(struct ifreq) in and out and ignores the size in the opcode
// (linux drivers/net/tun.c __tun_chr_ioctl); it would write beyond the end of a shorter structure.
const _: () = assert!(size_of::<InterfaceRequest>() == size_of::<libc::ifreq>());
const _: () = assert!(align_of::<InterfaceRequest>() <= align_of::<libc::ifreq>());

/// Attaches `fd` to the interface `name` with `flags` (`IFF_*`), and creates the interface if it does not exist. For an
/// empty name, or one with `%d`, the kernel chooses the name. Returns the name.
pub(crate) fn set_iff(
    fd: BorrowedFd<'_>,
    name: &[u8],
    flags: u16,
) -> Result<[u8; IFNAMSIZ], Errno> {
    if name.len() >= IFNAMSIZ {
        return Err(Errno::NAMETOOLONG);
    }
    let mut request = InterfaceRequest {
        name: [0; IFNAMSIZ],
        flags,
        rest: [0; 22],
    };
    request.name[..name.len()].copy_from_slice(name);
    // SAFETY: TUNSETIFF takes a pointer to a struct ifreq; InterfaceRequest has its size (asserted
    // above), and every byte pattern the kernel writes back is a valid value of it.
    let call = unsafe { Updater::<{ TUNSETIFF }, InterfaceRequest>::new(&mut request) };
    // SAFETY: `call` points to a live, exclusively borrowed structure of the size the kernel uses.
    unsafe { ioctl(fd, call) }?;
    Ok(request.name)
}

/// Attaches `fd` as a plain TAP named by the kernel.
pub(crate) fn attach_any(fd: BorrowedFd<'_>) -> Result<(), Errno> {
    const PLAIN: c_int = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    set_iff(fd, b"dm%d", PLAIN as u16).map(|_name| ())
}

/// Sets the virtio-net offloads that this reader supports (`TUN_F_*`).
pub(crate) fn set_offload(fd: BorrowedFd<'_>, offloads: c_uint) -> Result<(), Errno> {
    // SAFETY: TUNSETOFFLOAD takes a number.
    unsafe { set_value::<{ TUNSETOFFLOAD }>(fd, offloads as usize) }
}

/// Sets whether the interface remains when its file descriptors are closed.
pub(crate) fn set_persist(fd: BorrowedFd<'_>, persist: bool) -> Result<(), Errno> {
    // SAFETY: TUNSETPERSIST takes a number.
    unsafe { set_value::<{ TUNSETPERSIST }>(fd, usize::from(persist)) }
}

/// Sets the length of the virtio-net header before each packet, in bytes.
pub(crate) fn set_vnet_header_len(fd: BorrowedFd<'_>, len: c_int) -> Result<(), Errno> {
    // SAFETY: TUNSETVNETHDRSZ reads an int.
    unsafe { set_int::<{ TUNSETVNETHDRSZ }>(fd, len) }
}

/// Limits the bytes that were written but not yet processed by the kernel's network stack.
pub(crate) fn set_send_buffer(fd: BorrowedFd<'_>, bytes: c_int) -> Result<(), Errno> {
    // SAFETY: TUNSETSNDBUF reads an int.
    unsafe { set_int::<{ TUNSETSNDBUF }>(fd, bytes) }
}

/// An ioctl whose third argument is a pointer to an int.
///
/// # Safety
/// `OPCODE` is such an ioctl.
unsafe fn set_int<const OPCODE: Opcode>(fd: BorrowedFd<'_>, value: c_int) -> Result<(), Errno> {
    // SAFETY: the caller guarantees that the ioctl reads one int through the pointer.
    let call = unsafe { Setter::<OPCODE, c_int>::new(value) };
    // SAFETY: the setter owns the int that the pointer refers to.
    unsafe { ioctl(fd, call) }
}

/// An ioctl whose third argument is the value itself.
///
/// # Safety
/// `OPCODE` is such an ioctl, and does not use the value as an address.
unsafe fn set_value<const OPCODE: Opcode>(fd: BorrowedFd<'_>, value: usize) -> Result<(), Errno> {
    // SAFETY: the caller guarantees that the ioctl takes a number, not a pointer.
    let call = unsafe { IntegerSetter::<OPCODE>::new_usize(value) };
    // SAFETY: no memory is passed.
    unsafe { ioctl(fd, call) }
}
