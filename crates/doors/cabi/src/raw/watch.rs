// UNSAFETY: poll and epoll with C's pointers as arguments.

//! The calls that wait for several files; part of `call.rs`.
//!
//! # Safety
//! As there.
#![allow(
    clippy::missing_safety_doc,
    reason = "one sentence, at the top of the file, holds for all"
)]

use std::ffi::{c_int, c_short};
use std::mem::offset_of;

use devmem_posix::{EpollEvent, PollFd, Posix, Waiter};
use devmem_uapi::Errno;
use libc::{epoll_event, pollfd};

use super::memory::{read, write};

/// Maximum entries of one poll (linux `RLIMIT_NOFILE`, a usual value).
const MAX_POLL: usize = 65_536;

/// Maximum events that one epoll_wait returns here; the next call returns the rest.
const MAX_EVENTS: c_int = 1024;

/// Offset of the field of an entry that poll(2) writes.
const REVENTS: usize = offset_of!(pollfd, revents);

/// poll(2).
pub unsafe fn poll<W: Waiter>(
    posix: &Posix<W>,
    fds: *mut pollfd,
    count: u64,
    timeout_ms: c_int,
) -> Result<c_int, Errno> {
    let count = usize::try_from(count)
        .ok()
        .filter(|count| *count <= MAX_POLL);
    let count = count.ok_or(Errno::EINVAL)?;
    let mut entries = Vec::with_capacity(count);
    for at in 0..count {
        // SAFETY: the contract at the top of the file.
        let pollfd { fd, events, .. } = unsafe { read(fds.wrapping_add(at)) }?;
        let events = events.cast_unsigned();
        entries.push(PollFd {
            fd,
            events,
            revents: 0,
        });
    }
    let ready = posix.poll(&mut entries, timeout_ms)?;
    for (at, entry) in entries.iter().enumerate() {
        let revents = fds.wrapping_add(at).wrapping_byte_add(REVENTS);
        // SAFETY: as above; the rest of the entry is only read, as by poll(2).
        unsafe { write(revents.cast::<c_short>(), entry.revents.cast_signed()) }?;
    }
    Ok(c_int::try_from(ready).unwrap_or(c_int::MAX))
}

/// epoll_ctl(2).
pub unsafe fn epoll_ctl<W: Waiter>(
    posix: &Posix<W>,
    epfd: c_int,
    operation: c_int,
    fd: c_int,
    event: *const epoll_event,
) -> Result<(), Errno> {
    let event = match operation {
        devmem_posix::abi::ctl::DEL => EpollEvent { events: 0, data: 0 },
        _ => {
            // SAFETY: the contract at the top of the file.
            let epoll_event { events, u64: data } = unsafe { read(event) }?;
            EpollEvent { events, data }
        }
    };
    posix.call(|table| table.epoll_ctl(epfd, operation, fd, event))
}

/// epoll_wait(2).
pub unsafe fn epoll_wait<W: Waiter>(
    posix: &Posix<W>,
    epfd: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout_ms: c_int,
) -> Result<c_int, Errno> {
    if events.is_null() && most > 0 {
        // Checked before events are taken, because an edge is reported only once.
        return Err(Errno::EFAULT);
    }
    let taken = posix.epoll_wait(epfd, most.min(MAX_EVENTS), timeout_ms)?;
    for (at, EpollEvent { events: bits, data }) in taken.iter().copied().enumerate() {
        let event = epoll_event {
            events: bits,
            u64: data,
        };
        // SAFETY: the contract at the top of the file; no more than `most` were taken.
        unsafe { write(events.wrapping_add(at), event) }?;
    }
    Ok(c_int::try_from(taken.len()).unwrap_or(0))
}
