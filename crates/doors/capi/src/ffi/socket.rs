// UNSAFETY: C functions on sockets: each passes its pointers to `cabi::call`.

//! The socket calls.

use std::ffi::{c_int, c_ulong, c_void};
use std::os::fd::IntoRawFd;

use cabi::call::{self, SocketEnd};
use libc::{epoll_event, iovec, msghdr, nfds_t, pollfd, size_t, sockaddr, socklen_t, ssize_t};

use devmem_uapi::Errno;

use super::opaque::DmtStack;
use crate::failure::{Failure, finish};
use crate::stacks;

type Socklen = *mut socklen_t;

/// Defines functions that look up the stack and make a call on it; `$number` is that of the stack.
macro_rules! calls {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty = |$posix:ident $(, $number:ident)?| $body:expr;)*) => {
        $($(#[$doc])*
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(stack: *mut DmtStack $(, $arg: $ty)*) -> $ret {
            finish(stringify!($name), || {
                $(let $number = stack.addr();)?
                let stack = stacks::stack(stack.addr())?;
                let $posix = stack.posix();
                $body.map_err(Failure::from)
            })
        })*
    };
}

/// Calls a function of `cabi::call` with the pointers of C.
macro_rules! pass {
    ($call:expr) => {
        // SAFETY: the header requires of each pointer what the libc function of the same name requires, which is the
        // contract of `cabi::call`.
        unsafe { $call }
    };
}

/// Calls a function of `cabi::call` that receives on `$fd` of the stack `$stack`.
macro_rules! receive {
    ($stack:ident, $fd:ident, $call:expr) => {
        pass!($call).map_err(|errno: Errno| Failure::of_receive(errno, $stack, $fd))
    };
}

calls! {
    /// socket(2).
    fn dmt_socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int = |posix|
        posix.call(|table| table.socket(domain, kind, protocol));
    /// bind(2).
    fn dmt_bind(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int = |posix|
        pass!(call::bind(posix, fd, address, len));
    /// listen(2).
    fn dmt_listen(fd: c_int, backlog: c_int) -> c_int = |posix| posix.call(|table| table.listen(fd, backlog));
    /// accept(2).
    fn dmt_accept(fd: c_int, address: *mut sockaddr, len: Socklen) -> c_int = |posix|
        pass!(call::accept(posix, fd, address, len, 0));
    /// accept4(2).
    fn dmt_accept4(fd: c_int, address: *mut sockaddr, len: Socklen, flags: c_int) -> c_int = |posix|
        pass!(call::accept(posix, fd, address, len, flags));
    /// connect(2).
    fn dmt_connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int = |posix|
        pass!(call::connect(posix, fd, address, len));
    /// getsockname(2).
    fn dmt_getsockname(fd: c_int, address: *mut sockaddr, len: Socklen) -> c_int = |posix|
        pass!(call::name(posix, fd, SocketEnd::Local, address, len));
    /// getpeername(2).
    fn dmt_getpeername(fd: c_int, address: *mut sockaddr, len: Socklen) -> c_int = |posix|
        pass!(call::name(posix, fd, SocketEnd::Peer, address, len));
    /// read(2).
    fn dmt_read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t = |posix, stack|
        receive!(stack, fd, call::read_file(posix, fd, buf, len));
    /// readv(2).
    fn dmt_readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t = |posix, stack|
        receive!(stack, fd, call::readv(posix, fd, iov, count));
    /// recv(2).
    fn dmt_recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t = |posix, stack|
        receive!(stack, fd, call::recv(posix, fd, buf, len, flags));
    /// recvfrom(2); a stream returns no address.
    fn dmt_recvfrom(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int, address: *mut sockaddr, room: Socklen)
        -> ssize_t = |posix, stack|
        receive!(stack, fd, call::recvfrom(posix, fd, buf, len, flags, address, room));
    /// recvmsg(2).
    fn dmt_recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t = |posix, stack|
        receive!(stack, fd, call::recvmsg(posix, fd, msg, flags));
    /// write(2).
    fn dmt_write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t = |posix|
        pass!(call::write_file(posix, fd, buf, len));
    /// writev(2).
    fn dmt_writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t = |posix|
        pass!(call::writev(posix, fd, iov, count));
    /// send(2).
    fn dmt_send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t = |posix|
        pass!(call::send(posix, fd, buf, len, flags));
    /// sendto(2); the address of a stream's peer is used only with MSG_FASTOPEN.
    fn dmt_sendto(fd: c_int, buf: *const c_void, len: size_t, flags: c_int, to: *const sockaddr, to_len: socklen_t)
        -> ssize_t = |posix| pass!(call::sendto(posix, fd, buf, len, flags, to, to_len));
    /// sendmsg(2).
    fn dmt_sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t = |posix|
        pass!(call::sendmsg(posix, fd, msg, flags));
    /// shutdown(2).
    fn dmt_shutdown(fd: c_int, how: c_int) -> c_int = |posix| posix.call(|table| table.shutdown(fd, how));
    /// close(2).
    fn dmt_close(fd: c_int) -> c_int = |posix| posix.close(fd);
    /// getsockopt(2).
    fn dmt_getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: Socklen) -> c_int = |posix|
        pass!(call::getsockopt(posix, fd, level, name, value, len));
    /// setsockopt(2).
    fn dmt_setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int = |posix|
        pass!(call::setsockopt(posix, fd, level, name, value, len));
    /// fcntl(2) with its argument.
    fn dmt_fcntl(fd: c_int, command: c_int, argument: c_int) -> c_int = |posix|
        posix.call(|table| table.fcntl(fd, command, argument));
    /// ioctl(2) with its argument.
    fn dmt_ioctl(fd: c_int, request: c_ulong, argument: *mut c_int) -> c_int = |posix|
        pass!(call::ioctl(posix, fd, request, argument));
    /// poll(2).
    fn dmt_poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int = |posix|
        pass!(call::poll(posix, fds, count, timeout_ms));
    /// epoll_create1(2).
    fn dmt_epoll_create1(flags: c_int) -> c_int = |posix| posix.call(|table| table.epoll_create(flags));
    /// epoll_ctl(2).
    fn dmt_epoll_ctl(epfd: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int = |posix|
        pass!(call::epoll_ctl(posix, epfd, operation, fd, event));
    /// A file descriptor of the process that is readable while `epfd` has events.
    fn dmt_epoll_fd(epfd: c_int) -> c_int = |posix| posix.epoll_fd(epfd).map(IntoRawFd::into_raw_fd);
    /// epoll_wait(2).
    fn dmt_epoll_wait(epfd: c_int, events: *mut epoll_event, most: c_int, timeout_ms: c_int) -> c_int = |posix|
        pass!(call::epoll_wait(posix, epfd, events, most, timeout_ms));
}
