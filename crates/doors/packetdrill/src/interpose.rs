// UNSAFETY: defines three functions of libc, which get C's arguments and pass most of them on to the kernel.

//! `close`, `getsockopt` and `sendfile` of libc, for a program that this library was loaded into first (`LD_PRELOAD`).
//!
//! packetdrill calls these past its interface: `close` for what a script left open, `getsockopt` for TCP_INFO,
//! TCP_CC_INFO and SO_MEMINFO of `%{ }%` assertions, `sendfile` because the interface lacks it. With a number of an
//! [`Instance`] they are its calls, with any other the kernel's. The calls of this library's own code come here, too.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cabi::call;
use devmem_uapi::Errno;
use libc::{off_t, size_t, socklen_t, ssize_t};

use crate::instance::Instance;

/// Instances whose numbers are looked up. Nothing is closed while this is locked.
static INSTANCES: Mutex<Vec<Weak<Instance>>> = Mutex::new(Vec::new());

/// Whether an instance was ever added; before that, the functions take no lock.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// Adds `instance` to those whose descriptors the functions answer.
pub(crate) fn register(instance: &Arc<Instance>) {
    let mut instances = INSTANCES.lock().unwrap_or_else(PoisonError::into_inner);
    instances.retain(|other| other.strong_count() > 0);
    instances.push(Arc::downgrade(instance));
    IS_USED.store(true, Ordering::Release);
}

/// Returns the instance that has a file with this number.
fn owner(fd: c_int) -> Option<Arc<Instance>> {
    if !IS_USED.load(Ordering::Acquire) {
        return None;
    }
    let live: Vec<Arc<Instance>> = {
        let instances = INSTANCES.lock().unwrap_or_else(PoisonError::into_inner);
        instances.iter().filter_map(Weak::upgrade).collect()
    };
    live.into_iter().find(|instance| instance.has(fd))
}

/// close(2).
///
/// # Safety
/// As libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    match owner(fd) {
        Some(instance) => cabi::finish(|| instance.close(fd)),
        // SAFETY: the system call of this name takes one int; the descriptor is the caller's to close.
        None => unsafe { libc::syscall(libc::SYS_close, fd) as c_int },
    }
}

/// getsockopt(2).
///
/// # Safety
/// As libc's: `value` has room for `*len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getsockopt(
    fd: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut socklen_t,
) -> c_int {
    match owner(fd) {
        Some(instance) => cabi::finish(|| {
            // SAFETY: the caller fulfils the contract of libc's function, which `cabi::call` requires.
            unsafe { call::getsockopt(instance.posix(), fd, level, name, value, len) }
        }),
        // SAFETY: the system call of this name takes these arguments; the kernel checks the pointers.
        None => unsafe {
            libc::syscall(libc::SYS_getsockopt, fd, level, name, value, len) as c_int
        },
    }
}

/// sendfile(2), from a file of the kernel to a socket.
///
/// # Safety
/// As libc's: `offset` is null or points to a number that may be changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sendfile(
    to: c_int,
    from: c_int,
    offset: *mut off_t,
    count: size_t,
) -> ssize_t {
    let Some(instance) = owner(to) else {
        // SAFETY: the system call of this name takes these arguments; the kernel checks the pointer.
        return unsafe { libc::syscall(libc::SYS_sendfile, to, from, offset, count) as ssize_t };
    };
    cabi::finish(|| {
        if from < 0 {
            return Err(Errno::EBADF);
        }
        // SAFETY: not -1; the caller keeps the descriptor open during the call, or reading fails with EBADF.
        let file = unsafe { BorrowedFd::borrow_raw(from) };
        let start = match offset.is_null() {
            true => None,
            // SAFETY: a number that can be read: the caller's word.
            false => Some(unsafe { cabi::read(offset) }?),
        };
        let (sent, end) = instance.send_file(to, file, start, count)?;
        if start.is_some() {
            // SAFETY: a number that may be changed: the caller's word.
            unsafe { cabi::write(offset, end) }?;
        }
        Ok(sent)
    })
}
