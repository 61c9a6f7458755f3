//! Socket options.

use std::os::fd::BorrowedFd;

use devmem_uapi::Errno;
use devmem_uapi::sockopt::{SO_BINDTODEVICE, SO_RCVLOWAT, SO_ZEROCOPY};

use crate::sys;
use crate::sys::message::Readable;
use crate::sys::tun::IFNAMSIZ;

/// Lets a socket send without copies; needed before [`send_dmabuf`](super::send_dmabuf).
///
/// # Errors
///
/// `EOPNOTSUPP` for sockets that cannot.
pub fn enable_zerocopy(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    sys::message::set_int(socket, SO_ZEROCOPY, 1)
}

/// Wakes readers of a socket for `bytes` bytes at least, or at the end of the stream.
///
/// # Errors
///
/// `EINVAL` for more than an int holds.
pub fn set_receive_low_water(socket: BorrowedFd<'_>, bytes: usize) -> Result<(), Errno> {
    let bytes = i32::try_from(bytes).map_err(|_too_many| Errno::EINVAL)?;
    sys::message::set_int(socket, SO_RCVLOWAT, bytes)
}

/// Restricts a socket to one interface: it receives from no other and its routes leave by it. An empty name
/// lifts the restriction.
///
/// # Errors
///
/// `ENODEV` if there is no such interface, `EPERM` to change a restriction without CAP_NET_RAW.
pub fn bind_to_device(socket: BorrowedFd<'_>, interface: &str) -> Result<(), Errno> {
    // The kernel cuts longer names off, and would find another interface.
    if interface.len() >= IFNAMSIZ {
        return Err(Errno::ENODEV);
    }
    sys::message::set_bytes(socket, SO_BINDTODEVICE, interface.as_bytes())
}

/// Returns the NAPI instance by which a connection's last packet came, if the NIC's driver names them:
/// [`Netdev::queues`](crate::netdev::Netdev::queues) tells which queue that is.
pub fn incoming_napi(socket: BorrowedFd<'_>) -> Option<u32> {
    let mut napi = [0; size_of::<i32>()];
    sys::message::get_option(socket, Readable::IncomingNapiId, &mut napi).ok()?;
    // 0: none.
    let napi = u32::try_from(i32::from_ne_bytes(napi));
    napi.ok().filter(|&napi| napi != 0)
}
