//! Signalling an eventfd of a client without ever blocking.
//!
//! write(2) to an eventfd blocks while its counter is full, unless O_NONBLOCK is set. O_NONBLOCK belongs to the open file,
//! which the client shares and may change between any check and the write. Eventfds do not support RWF_NOWAIT on writes
//! (EOPNOTSUPP, Linux 6.18). The kernel itself signals eventfds with a function that never blocks (`eventfd_signal`,
//! linux fs/eventfd.c); Linux AIO calls it when a request with IOCB_FLAG_RESFD is complete. The request here reads 0
//! bytes from a pipe without a writer. It is complete before io_submit(2) returns, so an interrupt costs one system call,
//! as write(2) did.
//!
// UNSAFETY: io_setup(2), io_submit(2) and io_getevents(2) have no safe wrapper. The kernel gets pointers
// to values on this stack that outlive the call, and keeps none of them: no request has a buffer, and each is
// complete when its call returns.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::OnceLock;

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

/// Minimum number of completions that the context can store before they must be read.
const COMPLETIONS: libc::c_long = 128;

/// Times that room is made for the completion of one request.
const ATTEMPTS: usize = 16;

/// Operations and flags of `struct iocb` (linux include/uapi/linux/aio_abi.h).
const IOCB_CMD_PREAD: u16 = 0;
const IOCB_CMD_PWRITE: u16 = 1;
const IOCB_FLAG_RESFD: u32 = 1;

/// `struct iocb`. `aio_key` and `aio_rw_flags`, in an order that depends on the byte order of the machine, are 0 in a
/// request; the kernel writes to `aio_key`.
#[repr(C)]
#[derive(Default)]
struct Iocb {
    data: u64,
    key_and_rw_flags: [u32; 2],
    opcode: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    eventfd: u32,
}

const _: () = assert!(size_of::<Iocb>() == 64);

/// `struct io_event`.
#[repr(C)]
struct Completion {
    _words: [u64; 4],
}

/// Signaller of eventfds. There is one per process, from its first use to its end: the system has few AIO contexts, and
/// takes tens of milliseconds to destroy one. Several threads may use it at once.
///
/// Invariant: `context` is a context of io_setup(2), which nothing destroys.
#[derive(Debug)]
pub(crate) struct Signaller {
    context: libc::c_ulong,
    /// The read end of a pipe without a writer: a read returns 0 bytes at once.
    nothing: OwnedFd,
}

impl Signaller {
    /// Returns the signaller of this process.
    ///
    /// # Errors
    /// The error of io_setup(2) in the first call: `AGAIN` if the system has no contexts left (fs.aio-max-nr), `NOSYS` if
    /// the kernel has no AIO, `PERM` or `NOSYS` if a seccomp filter blocks it; or that of pipe(2).
    pub(crate) fn of_process() -> Result<&'static Self, Errno> {
        static SIGNALLER: OnceLock<Result<Signaller, Errno>> = OnceLock::new();
        let made = SIGNALLER.get_or_init(Self::new);
        made.as_ref().map_err(|errno| *errno)
    }

    fn new() -> Result<Self, Errno> {
        let (nothing, _closed_at_once) = pipe_with(PipeFlags::CLOEXEC)?;
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel reads and writes `context` during the call only; 0 says that there is no context yet.
        let made =
            unsafe { libc::syscall(libc::SYS_io_setup, COMPLETIONS, ptr::from_mut(&mut context)) };
        check(made)?;
        Ok(Self { context, nothing })
    }

    /// Returns whether `fd` is an eventfd, without changing its counter.
    ///
    /// # Errors
    /// The errno of io_submit(2).
    pub(crate) fn is_eventfd(&self, fd: BorrowedFd<'_>) -> Result<bool, Errno> {
        // The kernel checks `fd` before it finds that `nothing` is not writable, which is an error without a signal.
        match self.submit(IOCB_CMD_PWRITE, fd) {
            Err(Errno::BADF) => Ok(true),
            Err(Errno::INVAL) => Ok(false),
            Err(errno) => Err(errno),
            Ok(()) => Err(Errno::NOTRECOVERABLE),
        }
    }

    /// Adds 1 to the counter of an eventfd, unless the counter has its maximum value. Never blocks.
    ///
    /// # Errors
    /// `INVAL` if it is not an eventfd; otherwise the errno of io_submit(2), for lack of memory.
    pub(crate) fn signal(&self, eventfd: BorrowedFd<'_>) -> Result<(), Errno> {
        self.submit(IOCB_CMD_PREAD, eventfd)
    }

    /// Makes a request, and room for its completion where there is none: `AGAIN` comes before the kernel has looked at
    /// the request. Other threads may take the room again, so it is made several times.
    fn submit(&self, opcode: u16, eventfd: BorrowedFd<'_>) -> Result<(), Errno> {
        let mut submitted = self.try_submit(opcode, eventfd);
        for _ in 0..ATTEMPTS {
            if submitted != Err(Errno::AGAIN) {
                break;
            }
            self.take_completions();
            submitted = self.try_submit(opcode, eventfd);
        }
        submitted
    }

    fn try_submit(&self, opcode: u16, eventfd: BorrowedFd<'_>) -> Result<(), Errno> {
        let number = |fd: BorrowedFd<'_>| u32::try_from(fd.as_raw_fd()).map_err(|_| Errno::BADF);
        let mut request = Iocb {
            opcode,
            file: number(self.nothing.as_fd())?,
            flags: IOCB_FLAG_RESFD,
            eventfd: number(eventfd)?,
            ..Iocb::default()
        };
        let mut requests = [ptr::from_mut(&mut request)];
        let count: libc::c_long = 1;
        // SAFETY: (1) `context` is one, by the type's invariant; (2) `requests` has `count` pointers, to a request that
        // the kernel may read and write; both outlive the call, and the kernel keeps neither; (3) the request
        // has no buffer: 0 bytes at address 0.
        let submitted = unsafe {
            libc::syscall(
                libc::SYS_io_submit,
                self.context,
                count,
                requests.as_mut_ptr(),
            )
        };
        check(submitted)
    }

    /// Removes completions to make room; their contents are not needed.
    fn take_completions(&self) {
        let mut completions = [const { MaybeUninit::<Completion>::uninit() }; 64];
        let least: libc::c_long = 0;
        let most = libc::c_long::try_from(completions.len()).unwrap_or(0);
        let no_time = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        loop {
            // SAFETY: (1) `context` is one, by the type's invariant; (2) there is room for `most` completions; (3) the
            // kernel reads `no_time`; (4) all of it outlives the call.
            let taken = unsafe {
                libc::syscall(
                    libc::SYS_io_getevents,
                    self.context,
                    least,
                    most,
                    completions.as_mut_ptr(),
                    ptr::from_ref(&no_time),
                )
            };
            if taken < most {
                return;
            }
        }
    }
}

fn check(returned: libc::c_long) -> Result<(), Errno> {
    match returned {
        0.. => Ok(()),
        _ => {
            Err(Errno::from_io_error(&std::io::Error::last_os_error())
                .unwrap_or(Errno::NOTRECOVERABLE))
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::io::read;

    use super::*;

    fn counter(fd: &OwnedFd) -> u64 {
        let mut count = [0; 8];
        read(fd, &mut count).unwrap();
        u64::from_ne_bytes(count)
    }

    #[test]
    fn more_signals_than_there_is_room_for_completions_are_all_counted() {
        let signaller = Signaller::of_process().unwrap();
        let fd = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        for _ in 0..10_000 {
            signaller.signal(fd.as_fd()).unwrap();
        }
        assert_eq!(counter(&fd), 10_000);
    }

    #[test]
    fn an_eventfd_is_recognised_while_there_is_no_room_for_completions() {
        let signaller = Signaller::of_process().unwrap();
        let fd = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let mut requests = 0;
        while signaller.try_submit(IOCB_CMD_PREAD, fd.as_fd()) != Err(Errno::AGAIN) {
            requests += 1;
            assert!(requests < 100_000, "the context has room without end");
        }
        assert_eq!(signaller.is_eventfd(fd.as_fd()), Ok(true));
    }

    #[test]
    fn an_eventfd_is_recognised_without_being_raised() {
        let signaller = Signaller::of_process().unwrap();
        let fd = eventfd(7, EventfdFlags::CLOEXEC).unwrap();
        assert_eq!(signaller.is_eventfd(fd.as_fd()), Ok(true));
        assert_eq!(counter(&fd), 7);
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC).unwrap();
        let folder = std::fs::File::open("/").unwrap();
        for other in [reader.as_fd(), writer.as_fd(), folder.as_fd()] {
            assert_eq!(signaller.is_eventfd(other), Ok(false));
            assert_eq!(signaller.signal(other), Err(Errno::INVAL));
        }
    }
}
