// UNSAFETY: the socket calls with C's pointers as arguments.

//! The socket calls of libc over [`Posix`], with the arguments of the libc functions of the same names.
//!
//! # Safety
//! For every function: each pointer is null or points to memory as the libc function of the same name requires, of the
//! given length, and no other thread uses that memory during the call.
#![allow(
    clippy::missing_safety_doc,
    reason = "one sentence, at the top of the file, holds for all"
)]

use std::ffi::{c_int, c_void};
use std::mem::offset_of;

use devmem_posix::abi::ioctl as requests;
use devmem_posix::{Posix, Waiter};
use devmem_uapi::{Errno, MsgFlags};
use libc::{iovec, msghdr, sockaddr, sockaddr_storage, socklen_t};

pub use super::file::{read_file, readv, write_file, writev};
use super::memory::{read, slice, slice_mut, write};
use super::message::{self, Head, IoCall};
pub use super::option::{getsockopt, setsockopt};
pub use super::watch::{epoll_ctl, epoll_wait, poll};

/// bind(2).
pub unsafe fn bind<W: Waiter>(
    posix: &Posix<W>,
    fd: c_int,
    address: *const sockaddr,
    len: socklen_t,
) -> Result<(), Errno> {
    // SAFETY: the contract at the top of the file.
    let address = unsafe { sockaddr_in(address, len) }?;
    posix.call(|table| table.bind(fd, address))
}

/// connect(2).
pub unsafe fn connect<W: Waiter>(
    posix: &Posix<W>,
    fd: c_int,
    address: *const sockaddr,
    len: socklen_t,
) -> Result<(), Errno> {
    // SAFETY: the contract at the top of the file.
    let address = unsafe { sockaddr_in(address, len) }?;
    posix.connect(fd, address)
}

/// Returns the length of the name of a message: EINVAL if it is negative, and no more than any address has (linux `__copy_msghdr`).
fn name_len(msg: &msghdr) -> Result<socklen_t, Errno> {
    if msg.msg_name.is_null() {
        return Ok(0);
    }
    let len = c_int::try_from(msg.msg_namelen).map_err(|_| Errno::EINVAL)?;
    Ok(len.cast_unsigned().min(LONGEST_ADDRESS))
}

/// Bytes of a `sockaddr_storage`.
const LONGEST_ADDRESS: socklen_t = 128;
const _: () = assert!(size_of::<sockaddr_storage>() == 128);

/// Returns the bytes of an address; EINVAL if it is longer than any address (linux `move_addr_to_kernel`), as a negative length
/// is after its conversion.
unsafe fn sockaddr_in<'a>(address: *const sockaddr, len: socklen_t) -> Result<&'a [u8], Errno> {
    if len > LONGEST_ADDRESS {
        return Err(Errno::EINVAL);
    }
    let len = usize::try_from(len).map_err(|_| Errno::EINVAL)?;
    // SAFETY: the contract at the top of the file.
    unsafe { slice(address.cast::<c_void>(), len) }
}

/// Writes an address, truncated to the buffer, and its full length.
unsafe fn put_address(bytes: &[u8], to: *mut sockaddr, len: *mut socklen_t) -> Result<(), Errno> {
    if to.is_null() {
        return Ok(());
    }
    // SAFETY: the contract at the top of the file.
    let room = unsafe { read(len) }?;
    if c_int::try_from(room).is_err() {
        return Err(Errno::EINVAL);
    }
    let n = bytes.len().min(usize::try_from(room).unwrap_or(0));
    // SAFETY: as above; no more than the length that was given.
    let out = unsafe { slice_mut(to.cast::<c_void>(), n) }?;
    out.copy_from_slice(bytes.get(..n).unwrap_or_default());
    // SAFETY: as above.
    unsafe {
        write(
            len,
            socklen_t::try_from(bytes.len()).unwrap_or(socklen_t::MAX),
        )
    }
}

/// accept4(2).
pub unsafe fn accept<W: Waiter>(
    posix: &Posix<W>,
    fd: c_int,
    address: *mut sockaddr,
    len: *mut socklen_t,
    flags: c_int,
) -> Result<c_int, Errno> {
    let (new, peer) = posix.accept(fd, flags)?;
    // SAFETY: the contract at the top of the file.
    let put = unsafe { put_address(&peer, address, len) };
    if let Err(errno) = put {
        let _ = posix.close(new);
        return Err(errno);
    }
    Ok(new)
}

/// getsockname(2), or getpeername(2).
pub unsafe fn name<W: Waiter>(
    posix: &Posix<W>,
    fd: c_int,
    end: SocketEnd,
    address: *mut sockaddr,
    len: *mut socklen_t,
) -> Result<(), Errno> {
    let bytes = posix.call(|table| match end {
        SocketEnd::Local => table.getsockname(fd),
        SocketEnd::Peer => table.getpeername(fd),
    })?;
    if address.is_null() {
        return Err(Errno::EFAULT);
    }
    // SAFETY: the contract at the top of the file.
    unsafe { put_address(&bytes, address, len) }
}

/// The end of a connection that [`name`] returns the address of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketEnd {
    /// The socket's own address (getsockname).
    Local,
    /// The peer's address (getpeername).
    Peer,
}

/// recv(2).
pub unsafe fn recv<W: Waiter>(
    posix: &Posix<W>,
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
) -> Result<usize, Errno> {
    let entry = iovec {
        iov_base: buf,
        iov_len: len,
    };
    let flags = flags.cast_unsigned();
    // Discarded bytes need no memory (linux tcp(7), MSG_TRUNC).
    let discards = flags & MsgFlags::TRUNC.bits() != 0;
    if buf.is_null() && len > 0 && !discards {
        return Err(Errno::EFAULT);
    }
    let call = IoCall::Socket(flags);
    // SAFETY: the contract at the top of the file.
    let received = unsafe { message::recv(posix, fd, &[entry], &mut [], call) };
    received.map(|received| received.bytes)
}

/// recvfrom(2): a stream returns no address, and says so by its length (linux `__sys_recvfrom`).
pub unsafe fn recvfrom<W: Waiter>(
    posix: &Posix<W>,
    fd: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
) -> Result<usize, Errno> {
    // SAFETY: the contract at the top of the file.
    let received = unsafe { recv(posix, fd, buf, len, flags) }?;
    // SAFETY: as above.
    unsafe { put_address(&[], address, address_len) }?;
    Ok(received)
}

/// recvmsg(2).
pub unsafe fn recvmsg<W: Waiter>(
    posix: &Posix<W>,
    fd: c_int,
    msg: *mut msghdr,
    flags: c_int,
) -> Result<usize, Errno> {
    // SAFETY: the contract at the top of the file.
    let head = unsafe { read(msg) }?;
    name_len(&head)?;
    // SAFETY: as above.
    let entries = unsafe { message::entries(head.msg_iov, head.msg_iovlen) }?;
    // SAFETY: as above.
    let control = unsafe { message::control_to_write(&head) }?;
    let call = IoCall::Socket(flags.cast_unsigned());
    // SAFETY: as above.
    let received = unsafe { message::recv(posix, fd, &entries, control, call) }?;
    // The fields that recvmsg(2) writes, and no more. A stream returns no address (linux `tcp_recvmsg` sets msg_namelen to 0).
    let name_len = msg.wrapping_byte_add(offset_of!(msghdr, msg_namelen));
    let control_len = msg.wrapping_byte_add(offset_of!(msghdr, msg_controllen));
    let flags = msg.wrapping_byte_add(offset_of!(msghdr, msg_flags));
    // SAFETY: as above.
    unsafe { write(name_len.cast::<socklen_t>(), 0) }?;
    // SAFETY: as above.
    unsafe { write(control_len.cast::<usize>(), received.control_bytes) }?;
    // SAFETY: as above.
    unsafe { write(flags.cast::<c_int>(), received.flags.cast_signed()) }?;
    Ok(received.bytes)
}

/// send(2).
pub unsafe fn send<W: Waiter>(
    posix: &Posix<W>,
    fd: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
) -> Result<usize, Errno> {
    // SAFETY: the contract at the top of the file.
    unsafe { sendto(posix, fd, buf, len, flags, std::ptr::null(), 0) }
}

/// sendto(2): the destination of a stream is fixed; the address is used with MSG_FASTOPEN only.
pub unsafe fn sendto<W: Waiter>(
    posix: &Posix<W>,
    fd: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
    address: *const sockaddr,
    address_len: socklen_t,
) -> Result<usize, Errno> {
    let entry = iovec {
        iov_base: buf.cast_mut(),
        iov_len: len,
    };
    let call = IoCall::Socket(flags.cast_unsigned());
    let address = match address.is_null() {
        true => &[],
        // SAFETY: the contract at the top of the file.
        false => unsafe { sockaddr_in(address, address_len) }?,
    };
    let head = Head {
        control: &[],
        address,
    };
    // SAFETY: as above; the memory is only read.
    unsafe { message::send(posix, fd, &[entry], head, call) }
}

/// sendmsg(2).
pub unsafe fn sendmsg<W: Waiter>(
    posix: &Posix<W>,
    fd: c_int,
    msg: *const msghdr,
    flags: c_int,
) -> Result<usize, Errno> {
    // SAFETY: the contract at the top of the file.
    let head = unsafe { read(msg) }?;
    let name_len = name_len(&head)?;
    // SAFETY: as above.
    let entries = unsafe { message::entries(head.msg_iov, head.msg_iovlen) }?;
    // Linux `____sys_sendmsg`.
    c_int::try_from(head.msg_controllen).map_err(|_| Errno::ENOBUFS)?;
    // SAFETY: as above.
    let control = unsafe { message::control_to_read(&head) }?;
    let call = IoCall::Socket(flags.cast_unsigned());
    // SAFETY: as above.
    let address = unsafe { sockaddr_in(head.msg_name.cast(), name_len) }?;
    // SAFETY: as above.
    unsafe { message::send(posix, fd, &entries, Head { control, address }, call) }
}

/// ioctl(2) with its argument as a word.
pub unsafe fn ioctl<W: Waiter>(
    posix: &Posix<W>,
    fd: c_int,
    request: u64,
    argument: *mut c_int,
) -> Result<(), Errno> {
    if request == requests::FIONBIO {
        // SAFETY: the contract at the top of the file.
        let on = unsafe { read(argument) }? != 0;
        return posix.call(|table| table.set_nonblocking(fd, on));
    }
    let number = posix.call(|table| table.ioctl(fd, request))?;
    // SAFETY: as above; every other supported request returns an int.
    unsafe { write(argument, number) }
}
