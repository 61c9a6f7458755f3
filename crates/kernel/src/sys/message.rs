// UNSAFETY: recvmsg(2) and sendmsg(2) with control messages that no safe wrapper supports, and with iovecs that have an
// offset in a dma-buf as their address.

//! recvmsg, sendmsg and the socket options of device memory.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::{mem, ptr};

use devmem_uapi::{DmabufToken, Errno};
use smallvec::SmallVec;

/// The result of one recvmsg.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RawReceived {
    /// The call's return value.
    pub(crate) bytes: usize,
    /// Bytes of the control buffer that the kernel used, at most all of them.
    pub(crate) control_len: usize,
    /// `msg_flags`.
    pub(crate) flags: u32,
}

/// Receives into `data` and `control`.
pub(crate) fn recvmsg(
    fd: BorrowedFd<'_>,
    data: &mut [u8],
    control: &mut [u8],
    flags: u32,
) -> Result<RawReceived, Errno> {
    let iovec = libc::iovec {
        iov_base: data.as_mut_ptr().cast(),
        iov_len: data.len(),
    };
    // SAFETY: the iovec covers `data`, which is exclusively borrowed.
    unsafe { receive(fd, iovec, control, flags) }
}

/// Receives at most `len` bytes without a data buffer: `EFAULT` if a byte would have to be copied.
pub(crate) fn recvmsg_no_room(
    fd: BorrowedFd<'_>,
    len: usize,
    control: &mut [u8],
    flags: u32,
) -> Result<RawReceived, Errno> {
    let iovec = libc::iovec {
        iov_base: ptr::null_mut(),
        iov_len: len,
    };
    // SAFETY: the iovec begins at null.
    unsafe { receive(fd, iovec, control, flags) }
}

/// Receives into the memory of `iovec` and into `control`.
///
/// # Safety
/// `iovec` covers memory that the caller has borrowed exclusively, or begins at null.
unsafe fn receive(
    fd: BorrowedFd<'_>,
    mut iovec: libc::iovec,
    control: &mut [u8],
    flags: u32,
) -> Result<RawReceived, Errno> {
    let mut message = empty_message();
    message.msg_iov = &raw mut iovec;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = control.len() as _;
    let message = &raw mut message;
    // SAFETY: 1. `fd` is open during the call; 2. `message` points to a live msghdr; its control buffer is `control`,
    // exclusively borrowed; 3. the caller guarantees that its iovec covers exclusively borrowed memory or begins at null,
    // where nothing is mapped, so that the kernel returns EFAULT instead of writing.
    let rc = unsafe { libc::recvmsg(fd.as_raw_fd(), message, flags as c_int) };
    let bytes = usize::try_from(rc).map_err(|_negative| last_errno())?;
    // SAFETY: the call has ended, so the kernel does not write to `message` any more; all of it is initialised.
    let message = unsafe { message.read() };
    #[allow(clippy::useless_conversion, reason = "socklen_t in other C libraries")]
    let used = usize::try_from(message.msg_controllen).unwrap_or(usize::MAX);
    Ok(RawReceived {
        bytes,
        control_len: used.min(control.len()),
        flags: message.msg_flags as u32,
    })
}

/// Sends `(offset, length)` pieces of the dma-buf that the control message in `control` names.
#[inline]
pub(crate) fn sendmsg_dmabuf(
    fd: BorrowedFd<'_>,
    pieces: impl Iterator<Item = (usize, usize)>,
    control: &mut [u8],
    flags: u32,
) -> Result<usize, Errno> {
    let mut iovecs: SmallVec<[libc::iovec; 16]> = pieces
        .map(|(offset, len)| libc::iovec {
            iov_base: ptr::without_provenance_mut::<c_void>(offset),
            iov_len: len,
        })
        .collect();
    let mut message = empty_message();
    message.msg_iov = iovecs.as_mut_ptr();
    message.msg_iovlen = iovecs.len() as _;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = control.len() as _;
    // SAFETY: 1. `fd` is open for the call; 2. sendmsg only reads: the msghdr, its iovecs (alive in
    // `iovecs`) and the control buffer (borrowed); 3. the iovecs' addresses are small numbers which
    // the kernel uses as offsets (linux net/core/datagram.c zerocopy_fill_skb_from_devmem). A kernel that
    // does not support the control message uses them as user addresses and fails with EFAULT; it only reads
    // there, which changes no Rust object.
    let rc = unsafe { libc::sendmsg(fd.as_raw_fd(), &raw const message, flags as c_int) };
    usize::try_from(rc).map_err(|_negative| last_errno())
}

/// `setsockopt(SO_DEVMEM_DONTNEED)`: returns the number of frags that the kernel freed.
pub(crate) fn dontneed(fd: BorrowedFd<'_>, tokens: &[DmabufToken]) -> Result<u32, Errno> {
    set_option(fd, devmem_uapi::sockopt::SO_DEVMEM_DONTNEED, tokens)
}

/// Sets an option of level SOL_SOCKET to an int.
pub(crate) fn set_int(fd: BorrowedFd<'_>, option: i32, value: c_int) -> Result<(), Errno> {
    set_option(fd, option, &[value]).map(|_zero| ())
}

/// Sets an option of level SOL_SOCKET to bytes.
pub(crate) fn set_bytes(fd: BorrowedFd<'_>, option: i32, value: &[u8]) -> Result<(), Errno> {
    set_option(fd, option, value).map(|_zero| ())
}

/// Sets `TCP_FASTOPEN`.
pub(crate) fn set_fast_open(fd: BorrowedFd<'_>, pending: c_int) -> Result<(), Errno> {
    set_option_at(fd, libc::IPPROTO_TCP, libc::TCP_FASTOPEN, &[pending]).map(|_zero| ())
}

/// Sets `TCP_FASTOPEN_NO_COOKIE`.
pub(crate) fn set_fast_open_no_cookie(fd: BorrowedFd<'_>, value: c_int) -> Result<(), Errno> {
    let option = libc::TCP_FASTOPEN_NO_COOKIE;
    set_option_at(fd, libc::IPPROTO_TCP, option, &[value]).map(|_zero| ())
}

/// An option that can be read. The set is closed, because the input value of some other options
/// (`TCP_ZEROCOPY_RECEIVE`) contains an address that the kernel writes to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Readable {
    /// `SO_INCOMING_NAPI_ID`, an int.
    IncomingNapiId,
    /// `TCP_INFO`, a structure that grows with the kernel.
    TcpInfo,
    /// `SO_PEERCRED`, a `struct ucred`.
    PeerCredentials,
    /// `SO_NETNS_COOKIE`, a u64.
    NetnsCookie,
}

/// Reads an option into `value`, truncated to its length; returns the number of bytes that the kernel wrote.
pub(crate) fn get_option(
    fd: BorrowedFd<'_>,
    option: Readable,
    value: &mut [u8],
) -> Result<usize, Errno> {
    let (level, option) = match option {
        Readable::IncomingNapiId => {
            use devmem_uapi::sockopt::{SO_INCOMING_NAPI_ID, SOL_SOCKET};
            (SOL_SOCKET, SO_INCOMING_NAPI_ID)
        }
        Readable::TcpInfo => (libc::IPPROTO_TCP, libc::TCP_INFO),
        Readable::PeerCredentials => (libc::SOL_SOCKET, libc::SO_PEERCRED),
        Readable::NetnsCookie => (libc::SOL_SOCKET, libc::SO_NETNS_COOKIE),
    };
    let mut len = libc::socklen_t::try_from(value.len()).map_err(|_too_long| Errno::EINVAL)?;
    // SAFETY: 1. `fd` is open during the call; 2. the kernel writes at most `len` bytes to `value`, which is exclusively
    // borrowed and has that length, writes the length to `len`, and writes nowhere else for any `Readable`; any bytes are
    // valid in both.
    let rc = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            level,
            option,
            value.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    if rc != 0 {
        return Err(last_errno());
    }
    Ok(usize::try_from(len).map_or(value.len(), |len| len.min(value.len())))
}

/// Values without padding: all bytes may be read.
trait Plain: zerocopy::IntoBytes + zerocopy::Immutable {}
impl Plain for u8 {}
impl Plain for c_int {}
impl Plain for DmabufToken {}

fn set_option<T: Plain>(fd: BorrowedFd<'_>, option: i32, value: &[T]) -> Result<u32, Errno> {
    set_option_at(fd, devmem_uapi::sockopt::SOL_SOCKET, option, value)
}

fn set_option_at<T: Plain>(
    fd: BorrowedFd<'_>,
    level: i32,
    option: i32,
    value: &[T],
) -> Result<u32, Errno> {
    let len = libc::socklen_t::try_from(size_of_val(value)).map_err(|_too_long| Errno::EINVAL)?;
    // SAFETY: 1. `fd` is open for the call; 2. the kernel reads `len` bytes at the pointer, which are
    // exactly the bytes of `value`, all initialised (`Plain`).
    let rc = unsafe { libc::setsockopt(fd.as_raw_fd(), level, option, value.as_ptr().cast(), len) };
    u32::try_from(rc).map_err(|_negative| last_errno())
}

fn empty_message() -> libc::msghdr {
    // SAFETY: a msghdr of zero bytes is valid: null pointers with zero lengths, no flags (some C
    // libraries have padding in it that a literal cannot name).
    unsafe { mem::zeroed() }
}

fn last_errno() -> Errno {
    Errno(super::last_errno().raw_os_error())
}
