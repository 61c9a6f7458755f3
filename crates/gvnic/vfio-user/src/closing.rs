//! Closing what a client sent us without waiting for the client.
//!
//! close(2) of the last descriptor of a file may wait: a TCP socket for its SO_LINGER time, a file of a FUSE file system for
//! the program behind it. So may closing a UNIX socket in whose queue such descriptors lie. Only the kinds of files that
//! a client has reason to send, memory files and eventfds, are closed at once; all else by a thread of its own.

use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use rustix::fs::fcntl_get_seals;

use crate::eventfd::Signaller;

/// Most threads that close at once. Descriptors beyond them stay open: they are bounded by the process's limit, and a
/// client that has so many threads wait is no honest one.
const MAX_THREADS: usize = 64;
/// A thread that closes needs next to none.
const STACK_BYTES: usize = 64 << 10;

/// Closes descriptors in a thread.
pub(crate) fn close_aside(fds: Vec<OwnedFd>) {
    static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);
    if fds.is_empty() {
        return;
    }
    if UNDER_WAY.fetch_add(1, Ordering::Relaxed) >= MAX_THREADS {
        UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
        for fd in fds {
            let _stays_open = fd.into_raw_fd();
        }
        return;
    }
    let closer = thread::Builder::new().name("close".to_owned());
    let made = closer.stack_size(STACK_BYTES).spawn(move || {
        drop(fds);
        UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
    });
    if made.is_err() {
        // No thread to be had: what it was to close is closed already.
        UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Tells whether a file is memory: a memfd, or a file of tmpfs or hugetlbfs. Only these have seals, and asking for them
/// asks no file system (linux mm/memfd.c `memfd_fcntl`).
pub(crate) fn is_memory(file: BorrowedFd<'_>) -> bool {
    fcntl_get_seals(file).is_ok()
}

/// Descriptors that a client sent with one message.
#[derive(Debug, Default)]
pub(crate) struct ClientFds(Vec<OwnedFd>);

impl ClientFds {
    /// Takes more of them in.
    pub(crate) fn extend(&mut self, fds: impl IntoIterator<Item = OwnedFd>) {
        self.0.extend(fds);
    }

    /// Gives them on. The caller has found out that closing them does not wait.
    pub(crate) fn into_checked(mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.0)
    }
}

impl Deref for ClientFds {
    type Target = [OwnedFd];

    fn deref(&self) -> &[OwnedFd] {
        &self.0
    }
}

impl Drop for ClientFds {
    fn drop(&mut self) {
        let fds = std::mem::take(&mut self.0);
        if fds.is_empty() {
            return;
        }
        let is_eventfd = |fd: &OwnedFd| {
            let signaller = Signaller::of_process();
            signaller.is_ok_and(|signaller| signaller.is_eventfd(fd.as_fd()) == Ok(true))
        };
        let foreign = fds
            .into_iter()
            .filter(|fd| !is_memory(fd.as_fd()) && !is_eventfd(fd));
        close_aside(foreign.collect());
    }
}

/// A socket that a client writes to, or that clients wait at. Closed aside: descriptors may lie in its queue.
#[derive(Debug)]
pub(crate) struct ClientSocket<T: Into<OwnedFd>>(Option<T>);

impl<T: Into<OwnedFd>> ClientSocket<T> {
    pub(crate) fn new(socket: T) -> Self {
        Self(Some(socket))
    }

    pub(crate) fn get(&self) -> &T {
        self.0.as_ref().expect("it is taken out by Drop alone")
    }
}

impl<T: Into<OwnedFd>> Drop for ClientSocket<T> {
    fn drop(&mut self) {
        let Some(socket) = self.0.take() else {
            return;
        };
        let socket = socket.into();
        // At once, so that the other end knows. A socket that is not connected has none.
        let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
        close_aside(vec![socket]);
    }
}
