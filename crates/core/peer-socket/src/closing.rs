//! Closing descriptors of a peer without waiting.
//!
//! close(2) of the last descriptor of a file may wait: for the SO_LINGER time of a TCP socket, or for the server of a FUSE
//! file system. So may closing a UNIX socket with such descriptors in its queue.

use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rustix::fs::fcntl_get_seals;
use rustix::net::sockopt::set_socket_linger;

/// Maximum number of closing threads. Further descriptors are leaked, up to the limit of the process: only a malicious
/// peer can block so many threads.
const MAX_THREADS: usize = 64;
/// Stack size of a closing thread, which needs very little.
const STACK_BYTES: usize = 64 << 10;

/// Closes descriptors in a separate thread. If there is no thread for them, they are leaked: to close them here could wait.
pub fn close_aside(fds: Vec<OwnedFd>) {
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
        for fd in take(&theirs) {
            // For a TCP socket, so that the thread does not wait for its time; the peer may set it again. Fails on others.
            let _ = set_socket_linger(&fd, None);
            drop(fd);
        }
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

/// Descriptors that a peer has sent. They are closed in a separate thread, except for those of memory files.
#[derive(Debug, Default)]
pub struct PeerFds(Vec<OwnedFd>);

impl PeerFds {
    /// Adds descriptors.
    pub fn extend(&mut self, fds: impl IntoIterator<Item = OwnedFd>) {
        self.0.extend(fds);
    }

    /// Returns the descriptors. The caller sees to it that closing them does not make others wait.
    pub fn into_vec(mut self) -> Vec<OwnedFd> {
        std::mem::take(&mut self.0)
    }
}

impl Deref for PeerFds {
    type Target = [OwnedFd];

    fn deref(&self) -> &[OwnedFd] {
        &self.0
    }
}

impl Drop for PeerFds {
    fn drop(&mut self) {
        let mut foreign = std::mem::take(&mut self.0);
        foreign.retain(|fd| !is_memory(fd.as_fd()));
        close_aside(foreign);
    }
}

/// Returns whether a file is a memory file: a memfd, or a file of tmpfs or hugetlbfs. Only these have seals, and querying
/// seals does not call the file system (linux mm/memfd.c `memfd_fcntl`). Closing one does not wait.
pub fn is_memory(file: BorrowedFd<'_>) -> bool {
    fcntl_get_seals(file).is_ok()
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
