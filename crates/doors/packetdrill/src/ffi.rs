// UNSAFETY: the structure of C functions that packetdrill calls, each of which is given the pointer to the instance
// that `packetdrill_interface_init` made and C's pointers to pass on.

//! `packetdrill_interface_init` and the structure it fills in.
//!
//! fcntl and ioctl are variadic in C. Rust cannot define such functions; on the architectures named below, integers
//! and pointers after the dots travel in the same registers as named ones (System V psABI 3.5.7, AAPCS64 6.4.2), so a
//! fixed third argument receives them, and is garbage where C passed none: only commands that have one look at it.
#![allow(
    unsafe_code,
    clippy::missing_safety_doc,
    reason = "the island; one sentence, at `guard!`, holds for all"
)]

use std::ffi::{c_char, c_int, c_longlong, c_uint, c_ulong, c_void};
use std::sync::Arc;
use std::time::Duration;

use cabi::call;
use devmem_uapi::Errno;
use libc::{
    epoll_event, iovec, loff_t, msghdr, nfds_t, pollfd, size_t, sockaddr, socklen_t, ssize_t,
    timeval,
};

use devmem_posix::SpliceArgs;

use crate::flags::Flags;
use crate::instance::Instance;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the passing of variadic arguments is known for x86_64 and aarch64 only");

type Socklen = *mut socklen_t;

/// Declares the structure, one field for each function in packetdrill's order, and fills it in.
macro_rules! interface {
    ($($(#[$doc:meta])* $name:ident: fn($($arg:ident: $ty:ty),*) -> $ret:ty = |$instance:ident| $body:expr;)*) => {
        /// What packetdrill calls, in its order; each function takes `userdata` first.
        #[repr(C)]
        #[derive(Debug, Clone, Copy)]
        pub struct Interface {
            /// The instance.
            pub userdata: *mut c_void,
            /// Ends the instance.
            pub free: unsafe extern "C" fn(*mut c_void),
            $($(#[$doc])* pub $name: unsafe extern "C" fn(*mut c_void $(, $ty)*) -> $ret,)*
        }

        $(unsafe extern "C" fn $name(userdata: *mut c_void $(, $arg: $ty)*) -> $ret {
            cabi::finish(|| {
                // SAFETY: `userdata` is null or what `packetdrill_interface_init` gave away and `free` has not taken.
                let $instance = unsafe { instance(userdata) }?;
                $body
            })
        })*

        impl Interface {
            fn new(userdata: *mut c_void) -> Self {
                Self { userdata, free $(, $name)* }
            }
        }
    };
}

/// Passes pointers on.
macro_rules! pass {
    ($call:expr) => {
        // SAFETY: packetdrill gives each function what its namesake of libc wants, which is the word `cabi::call`
        // takes.
        unsafe { $call }
    };
}

interface! {
    /// socket(2).
    socket: fn(domain: c_int, kind: c_int, protocol: c_int) -> c_int = |i| {
        i.refresh_sysctls();
        i.number(i.posix().call(|table| table.socket(domain, kind, protocol))?)
    };
    /// bind(2).
    bind: fn(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int = |i|
        pass!(call::bind(i.posix(), fd, address, len));
    /// listen(2).
    listen: fn(fd: c_int, backlog: c_int) -> c_int = |i| {
        i.refresh_sysctls();
        i.posix().call(|table| table.listen(fd, backlog))
    };
    /// accept(2).
    accept: fn(fd: c_int, address: *mut sockaddr, len: Socklen) -> c_int = |i| {
        i.number(pass!(call::accept(i.posix(), fd, address, len, 0))?)
    };
    /// connect(2).
    connect: fn(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int = |i| {
        i.refresh_sysctls();
        pass!(call::connect(i.posix(), fd, address, len))
    };
    /// read(2).
    read: fn(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t = |i|
        pass!(call::read_file(i.posix(), fd, buf, len));
    /// readv(2).
    readv: fn(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t = |i|
        pass!(call::readv(i.posix(), fd, iov, count));
    /// recv(2).
    recv: fn(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t = |i|
        pass!(call::recv(i.posix(), fd, buf, len, flags));
    /// recvfrom(2); a stream has no sender addresses to return.
    recvfrom: fn(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int, address: *mut sockaddr, room: Socklen)
        -> ssize_t = |i| {
            let _ = (address, room);
            pass!(call::recv(i.posix(), fd, buf, len, flags))
        };
    /// recvmsg(2).
    recvmsg: fn(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t = |i|
        pass!(call::recvmsg(i.posix(), fd, msg, flags));
    /// write(2).
    write: fn(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t = |i|
        pass!(call::write_file(i.posix(), fd, buf, len));
    /// writev(2).
    writev: fn(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t = |i|
        pass!(call::writev(i.posix(), fd, iov, count));
    /// send(2).
    send: fn(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t = |i|
        pass!(call::send(i.posix(), fd, buf, len, flags));
    /// sendto(2).
    sendto: fn(fd: c_int, buf: *const c_void, len: size_t, flags: c_int, to: *const sockaddr, to_len: socklen_t)
        -> ssize_t = |i| {
            i.refresh_for_send(flags);
            pass!(call::sendto(i.posix(), fd, buf, len, flags, to, to_len))
        };
    /// sendmsg(2).
    sendmsg: fn(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t = |i| {
        i.refresh_for_send(flags);
        pass!(call::sendmsg(i.posix(), fd, msg, flags))
    };
    /// fcntl(2).
    fcntl: fn(fd: c_int, command: c_int, argument: c_ulong) -> c_int = |i|
        // The commands that are known take an int.
        i.posix().call(|table| table.fcntl(fd, command, argument as u32 as c_int));
    /// ioctl(2).
    ioctl: fn(fd: c_int, request: c_ulong, argument: *mut c_int) -> c_int = |i|
        pass!(call::ioctl(i.posix(), fd, request, argument));
    /// close(2).
    close: fn(fd: c_int) -> c_int = |i| i.close(fd);
    /// shutdown(2).
    shutdown: fn(fd: c_int, how: c_int) -> c_int = |i| i.posix().call(|table| table.shutdown(fd, how));
    /// getsockopt(2).
    getsockopt: fn(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: Socklen) -> c_int = |i|
        pass!(call::getsockopt(i.posix(), fd, level, name, value, len));
    /// setsockopt(2).
    setsockopt: fn(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int = |i| {
        i.refresh_for_option(level, name);
        pass!(call::setsockopt(i.posix(), fd, level, name, value, len))
    };
    /// poll(2).
    poll: fn(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int = |i|
        pass!(call::poll(i.posix(), fds, count, timeout_ms));
    /// Hands a packet to the stack.
    netdev_send: fn(packet: *const c_void, len: size_t) -> c_int = |i| {
        let packet = pass!(cabi::slice(packet, len))?;
        i.netdev_send(packet)
    };
    /// Returns the next packet that leaves, cut to the buffer, and when it left; 0 bytes if none will.
    netdev_receive: fn(buf: *mut c_void, len: *mut size_t, time_usecs: *mut c_longlong) -> c_int = |i| {
        let room = pass!(cabi::read(len))?;
        let (packet, at) = i.netdev_receive().unwrap_or_default();
        let n = packet.len().min(room);
        let out = pass!(cabi::slice_mut(buf, n))?;
        out.copy_from_slice(packet.get(..n).unwrap_or_default());
        pass!(cabi::write(len, n))?;
        pass!(cabi::write(time_usecs, at))
    };
    /// Lets time pass.
    usleep: fn(usecs: c_uint) -> c_int = |i| {
        i.sleep(Duration::from_micros(usecs.into()));
        Ok(())
    };
    /// gettimeofday(2), in virtual time.
    gettimeofday: fn(time: *mut timeval, zone: *mut c_void) -> c_int = |i| {
        let _ = zone;
        let now = i.now_micros();
        let time_now = timeval { tv_sec: now / 1_000_000, tv_usec: now % 1_000_000 };
        pass!(cabi::write(time, time_now))
    };
    /// epoll_create(2).
    epoll_create: fn(size: c_int) -> c_int = |i| match size {
        ..=0 => Err(Errno::EINVAL),
        _ => i.number(i.posix().call(|table| table.epoll_create(0))?),
    };
    /// epoll_ctl(2).
    epoll_ctl: fn(epfd: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int = |i|
        pass!(call::epoll_ctl(i.posix(), epfd, operation, fd, event));
    /// epoll_wait(2).
    epoll_wait: fn(epfd: c_int, events: *mut epoll_event, most: c_int, timeout_ms: c_int) -> c_int = |i|
        pass!(call::epoll_wait(i.posix(), epfd, events, most, timeout_ms));
    /// pipe(2).
    pipe: fn(fds: *mut c_int) -> c_int = |i| {
        let ends = i.pipe()?;
        let written = pass!(cabi::write(fds.cast::<[c_int; 2]>(), ends));
        if written.is_err() {
            let _ = ends.map(|end| i.close(end));
        }
        written
    };
    /// splice(2); neither sockets nor pipes have offsets, so that none may be given. packetdrill passes the addresses of
    /// variables that are 0 for a script's NULL.
    splice: fn(from: c_int, from_at: *mut loff_t, to: c_int, to_at: *mut loff_t, len: size_t, flags: c_uint)
        -> c_int = |i| {
            let has_offset = |at: *mut loff_t| match at.is_null() {
                true => Ok(false),
                false => pass!(cabi::read(at)).map(|offset| offset != 0),
            };
            let has_offset = (has_offset(from_at)?, has_offset(to_at)?);
            let moved = i.posix().splice(SpliceArgs { from, to, has_offset, len, flags })?;
            Ok(c_int::try_from(moved).unwrap_or(c_int::MAX))
        };
}

/// Returns the instance behind `userdata`; EINVAL where there is none because `--so_flags` were refused.
///
/// # Safety
/// `userdata` is null, or was made by [`packetdrill_interface_init`] and not freed.
unsafe fn instance<'a>(userdata: *mut c_void) -> Result<&'a Instance, Errno> {
    // SAFETY: 1. the caller's word; 2. an instance is shared: everything in it that changes is behind locks.
    unsafe { userdata.cast::<Instance>().as_ref() }.ok_or(Errno::EINVAL)
}

unsafe extern "C" fn free(userdata: *mut c_void) {
    if userdata.is_null() {
        return;
    }
    cabi::finish(|| {
        // SAFETY: 1. made by `Arc::into_raw` in `packetdrill_interface_init`; 2. packetdrill frees once, last of all.
        drop(unsafe { Arc::from_raw(userdata.cast::<Instance>().cast_const()) });
        Ok(())
    });
}

/// Makes an instance from the text of `--so_flags` (null: the defaults) and fills in `out`.
///
/// Flags that are refused are printed on standard error, and every call then fails with EINVAL.
///
/// # Safety
/// `flags` is null or a string; an [`Interface`] can be written at `out`. The instance lives until `free` is called
/// with its userdata; nothing may be called after that.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn packetdrill_interface_init(flags: *const c_char, out: *mut Interface) {
    cabi::finish(|| {
        // SAFETY: null or a string: the caller's word.
        let text = unsafe { cabi::text(flags) }?.unwrap_or_default();
        let made = Flags::parse(text)
            .map_err(|error| error.to_string())
            .and_then(|flags| Instance::new(&flags));
        let userdata = match made {
            Ok(instance) => {
                let instance = Arc::new(instance);
                crate::interpose::register(&instance);
                Arc::into_raw(instance).cast_mut().cast::<c_void>()
            }
            Err(error) => {
                eprintln!("libdevmem_packetdrill: --so_flags: {error}");
                std::ptr::null_mut()
            }
        };
        // SAFETY: can be written: the caller's word.
        unsafe { cabi::write(out, Interface::new(userdata)) }
    });
}
