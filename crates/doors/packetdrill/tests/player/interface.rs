//! The structure of functions as packetdrill declares it, apart from the library's own declaration.

use std::ffi::{c_int, c_longlong, c_uint, c_ulong, c_void};

use libc::{
    epoll_event, iovec, loff_t, msghdr, nfds_t, pollfd, size_t, sockaddr, socklen_t, ssize_t,
    timeval,
};

type This = *mut c_void;
type Fd = c_int;
type Len = *mut socklen_t;

/// The functions, in packetdrill's order.
#[repr(C)]
pub struct Interface {
    pub userdata: This,
    pub free: unsafe extern "C" fn(This),
    pub socket: unsafe extern "C" fn(This, c_int, c_int, c_int) -> c_int,
    pub bind: unsafe extern "C" fn(This, Fd, *const sockaddr, socklen_t) -> c_int,
    pub listen: unsafe extern "C" fn(This, Fd, c_int) -> c_int,
    pub accept: unsafe extern "C" fn(This, Fd, *mut sockaddr, Len) -> c_int,
    pub connect: unsafe extern "C" fn(This, Fd, *const sockaddr, socklen_t) -> c_int,
    pub read: unsafe extern "C" fn(This, Fd, *mut c_void, size_t) -> ssize_t,
    pub readv: unsafe extern "C" fn(This, Fd, *const iovec, c_int) -> ssize_t,
    pub recv: unsafe extern "C" fn(This, Fd, *mut c_void, size_t, c_int) -> ssize_t,
    pub recvfrom:
        unsafe extern "C" fn(This, Fd, *mut c_void, size_t, c_int, *mut sockaddr, Len) -> ssize_t,
    pub recvmsg: unsafe extern "C" fn(This, Fd, *mut msghdr, c_int) -> ssize_t,
    pub write: unsafe extern "C" fn(This, Fd, *const c_void, size_t) -> ssize_t,
    pub writev: unsafe extern "C" fn(This, Fd, *const iovec, c_int) -> ssize_t,
    pub send: unsafe extern "C" fn(This, Fd, *const c_void, size_t, c_int) -> ssize_t,
    pub sendto: unsafe extern "C" fn(
        This,
        Fd,
        *const c_void,
        size_t,
        c_int,
        *const sockaddr,
        socklen_t,
    ) -> ssize_t,
    pub sendmsg: unsafe extern "C" fn(This, Fd, *const msghdr, c_int) -> ssize_t,
    pub fcntl: unsafe extern "C" fn(This, Fd, c_int, c_ulong) -> c_int,
    pub ioctl: unsafe extern "C" fn(This, Fd, c_ulong, *mut c_int) -> c_int,
    pub close: unsafe extern "C" fn(This, Fd) -> c_int,
    pub shutdown: unsafe extern "C" fn(This, Fd, c_int) -> c_int,
    pub getsockopt: unsafe extern "C" fn(This, Fd, c_int, c_int, *mut c_void, Len) -> c_int,
    pub setsockopt: unsafe extern "C" fn(This, Fd, c_int, c_int, *const c_void, socklen_t) -> c_int,
    pub poll: unsafe extern "C" fn(This, *mut pollfd, nfds_t, c_int) -> c_int,
    pub netdev_send: unsafe extern "C" fn(This, *const c_void, size_t) -> c_int,
    pub netdev_receive:
        unsafe extern "C" fn(This, *mut c_void, *mut size_t, *mut c_longlong) -> c_int,
    pub usleep: unsafe extern "C" fn(This, c_uint) -> c_int,
    pub gettimeofday: unsafe extern "C" fn(This, *mut timeval, *mut c_void) -> c_int,
    pub epoll_create: unsafe extern "C" fn(This, c_int) -> c_int,
    pub epoll_ctl: unsafe extern "C" fn(This, Fd, c_int, Fd, *mut epoll_event) -> c_int,
    pub epoll_wait: unsafe extern "C" fn(This, Fd, *mut epoll_event, c_int, c_int) -> c_int,
    pub pipe: unsafe extern "C" fn(This, *mut Fd) -> c_int,
    pub splice:
        unsafe extern "C" fn(This, Fd, *mut loff_t, Fd, *mut loff_t, size_t, c_uint) -> c_int,
}
