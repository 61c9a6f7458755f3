//! Socket options.

use std::os::fd::BorrowedFd;

use devmem_uapi::Errno;
use devmem_uapi::sockopt::{SO_BINDTODEVICE, SO_RCVLOWAT, SO_ZEROCOPY};

use crate::sys;
use crate::sys::message::Readable;
use crate::sys::tun::IFNAMSIZ;

/// Sets `SO_ZEROCOPY`, which [`send_dmabuf`](super::send_dmabuf) needs.
///
/// # Errors
///
/// `EOPNOTSUPP` for sockets that do not support it.
pub fn enable_zerocopy(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    sys::message::set_int(socket, SO_ZEROCOPY, 1)
}

/// Sets `SO_RCVLOWAT`: readers of the socket are woken when `bytes` bytes are available, or at the end of the stream.
///
/// # Errors
///
/// `EINVAL` for more than an int holds.
pub fn set_receive_low_water(socket: BorrowedFd<'_>, bytes: usize) -> Result<(), Errno> {
    let bytes = i32::try_from(bytes).map_err(|_too_many| Errno::EINVAL)?;
    sys::message::set_int(socket, SO_RCVLOWAT, bytes)
}

/// Sets `SO_BINDTODEVICE`: the socket receives and sends only through this interface. An empty name removes the
/// restriction.
///
/// # Errors
///
/// `ENODEV` if there is no such interface, `EPERM` to change a restriction without CAP_NET_RAW.
pub fn bind_to_device(socket: BorrowedFd<'_>, interface: &str) -> Result<(), Errno> {
    // The kernel truncates longer names, and could find another interface.
    if interface.len() >= IFNAMSIZ {
        return Err(Errno::ENODEV);
    }
    sys::message::set_bytes(socket, SO_BINDTODEVICE, interface.as_bytes())
}

/// Sets `TCP_FASTOPEN` of a listener: as many connections may be open by the payload of their SYN alone (RFC 7413); 0: none.
/// The sysctl `net.ipv4.tcp_fastopen` must have the bit 2, too.
///
/// # Errors
///
/// `EINVAL` for sockets that are connected.
pub fn set_fast_open(listener: BorrowedFd<'_>, pending: u16) -> Result<(), Errno> {
    sys::message::set_fast_open(listener, pending.into())
}

/// Sets `TCP_FASTOPEN_NO_COOKIE`: this connection sends payload in its SYN without a cookie, and this listener accepts it.
///
/// # Errors
///
/// `EINVAL` for sockets that are connected.
pub fn allow_fast_open_without_cookie(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    sys::message::set_fast_open_no_cookie(socket, 1)
}

/// Demands a cookie again: see [`allow_fast_open_without_cookie`].
///
/// # Errors
///
/// `EINVAL` for sockets that are connected.
pub fn demand_fast_open_cookie(socket: BorrowedFd<'_>) -> Result<(), Errno> {
    sys::message::set_fast_open_no_cookie(socket, 0)
}

/// Returns the NAPI instance that received a connection's last packet, if the NIC's driver reports it.
/// [`Netdev::queues`](crate::netdev::Netdev::queues) returns the queue of each NAPI instance.
pub fn incoming_napi(socket: BorrowedFd<'_>) -> Option<u32> {
    let mut napi = [0; size_of::<i32>()];
    sys::message::get_option(socket, Readable::IncomingNapiId, &mut napi).ok()?;
    // 0 means that there is none.
    let napi = u32::try_from(i32::from_ne_bytes(napi));
    napi.ok().filter(|&napi| napi != 0)
}
