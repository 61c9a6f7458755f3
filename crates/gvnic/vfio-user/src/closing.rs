//! Closing descriptors of a client without blocking.
//!
//! close(2) of the last descriptor of a file may block: for the SO_LINGER time of a TCP socket, or on the server of a FUSE
//! file system. So may closing a UNIX socket with such descriptors in its queue. Only the kinds of files that a client
//! needs to send, memory files and eventfds, are closed directly; all others in a separate thread.

use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rustix::fs::fcntl_get_seals;

use crate::eventfd::Signaller;

/// Maximum number of closing threads. Further descriptors are leaked, up to the limit of the process: only a malicious
/// client can block so many threads.
const MAX_THREADS: usize = 64;
/// Stack size of a closing thread, which needs very little.
const STACK_BYTES: usize = 64 << 10;

/// Closes descriptors in a separate thread. If there is no thread for them, they are leaked: to close them here could block.
pub(crate) fn close_aside(fds: Vec<OwnedFd>) {
    close_by(fds, |close| {
        let closer = thread::Builder::new().name("close".to_owned());
        closer.stack_size(STACK_BYTES).spawn(close).map(drop)
    });
}

/// A closing thread's work.
type Close = Box<dyn FnOnce() + Send>;

/// Closes descriptors in a thread that `spawn` starts.
fn close_by(fds: Vec<OwnedFd>, spawn: impl FnOnce(Close) -> io::Result<()>) {
    static UNDER_WAY: AtomicUsize = AtomicUsize::new(0);
    if fds.is_empty() {
        return;
    }
    if UNDER_WAY.fetch_add(1, Ordering::Relaxed) >= MAX_THREADS {
        UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
        leak(fds);
        return;
    }
    // A failed spawn drops its closure. The descriptors are not in the closure, or that drop would close them here.
    let shared = Arc::new(Mutex::new(fds));
    let theirs = Arc::clone(&shared);
    let take = |fds: &Mutex<Vec<OwnedFd>>| {
        std::mem::take(&mut *fds.lock().unwrap_or_else(PoisonError::into_inner))
    };
    let spawned = spawn(Box::new(move || {
        drop(take(&theirs));
        UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
    }));
    if spawned.is_err() {
        leak(take(&shared));
        UNDER_WAY.fetch_sub(1, Ordering::Relaxed);
    }
}

fn leak(fds: Vec<OwnedFd>) {
    for fd in fds {
        let _stays_open = fd.into_raw_fd();
    }
}

/// Returns whether a file is a memory file: a memfd, or a file of tmpfs or hugetlbfs. Only these have seals, and querying
/// seals does not call the file system (linux mm/memfd.c `memfd_fcntl`).
pub(crate) fn is_memory(file: BorrowedFd<'_>) -> bool {
    fcntl_get_seals(file).is_ok()
}

/// Descriptors that a client sent with one message.
#[derive(Debug, Default)]
pub(crate) struct ClientFds(Vec<OwnedFd>);

impl ClientFds {
    /// Adds descriptors.
    pub(crate) fn extend(&mut self, fds: impl IntoIterator<Item = OwnedFd>) {
        self.0.extend(fds);
    }

    /// Returns the descriptors. The caller has checked that closing them does not block.
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

/// A connected or listening socket. It is closed in a separate thread, because its queue may contain descriptors.
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
        // Notifies the other end at once; fails on a socket that is not connected.
        let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
        close_aside(vec![socket]);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn descriptors_are_closed_in_the_other_thread() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        close_aside(vec![theirs.into()]);
        assert_eq!(ours.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn descriptors_are_not_closed_here_if_no_thread_can_be_made() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        close_by(vec![theirs.into()], |close| {
            drop(close);
            Err(io::Error::from(io::ErrorKind::WouldBlock))
        });
        ours.set_nonblocking(true).unwrap();
        let read = ours.read(&mut [0]);
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}
