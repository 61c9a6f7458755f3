//! Closing descriptors of a peer without waiting.
//!
//! close(2) of the last descriptor of a file may wait: for the SO_LINGER time of a TCP socket, or for the server of a FUSE
//! file system. So may closing a UNIX socket with such descriptors in its queue.

use std::collections::VecDeque;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use rustix::fs::fcntl_get_seals;
use rustix::net::sockopt::set_socket_linger;

/// Maximum number of closing threads. While all of them wait, further descriptors stay open.
const MAX_THREADS: usize = 64;
/// Stack size of a closing thread, which needs very little.
const STACK_BYTES: usize = 64 << 10;

/// Closes descriptors in a separate thread, soon. They stay open while there is no thread for them: to close them here could wait.
pub fn close_aside(fds: Vec<OwnedFd>) {
    static CLOSERS: Closers = Closers::new();
    CLOSERS.close(fds, |work| {
        let closer = thread::Builder::new().name("close".to_owned());
        closer.stack_size(STACK_BYTES).spawn(work).map(drop)
    });
}

/// A closing thread's work.
type Work = Box<dyn FnOnce() + Send>;

/// Threads that close descriptors, each one at a time, so that a descriptor whose close waits delays no other while there are
/// threads.
#[derive(Debug)]
struct Closers(Mutex<Queue>);

#[derive(Debug)]
struct Queue {
    /// Descriptors that no thread has taken.
    waiting: VecDeque<OwnedFd>,
    /// Number of threads that have not found the queue empty.
    threads: usize,
}

impl Closers {
    const fn new() -> Self {
        Self(Mutex::new(Queue {
            waiting: VecDeque::new(),
            threads: 0,
        }))
    }

    /// Closes descriptors in a thread that `spawn` starts, or in one that runs already. If it starts none, they wait for the
    /// thread of a later call.
    fn close(&'static self, fds: Vec<OwnedFd>, spawn: impl FnOnce(Work) -> io::Result<()>) {
        if fds.is_empty() {
            return;
        }
        let mut queue = self.queue();
        queue.waiting.extend(fds);
        if queue.threads == MAX_THREADS {
            return;
        }
        queue.threads += 1;
        drop(queue);
        if spawn(Box::new(|| self.work())).is_err() {
            self.queue().threads -= 1;
        }
    }

    /// Closes descriptors until none is left.
    fn work(&self) {
        while let Some(fd) = self.next() {
            // For a TCP socket, so that the thread does not wait for its time; the peer may set it again. Fails on others.
            let _ = set_socket_linger(&fd, None);
            drop(fd);
        }
    }

    /// Takes the next descriptor. The thread that finds none no longer counts, from the same moment on.
    fn next(&self) -> Option<OwnedFd> {
        let mut queue = self.queue();
        let next = queue.waiting.pop_front();
        if next.is_none() {
            queue.threads -= 1;
        }
        next
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Returns whether the other end of a socket has been closed.
    fn is_closed(mut ours: &UnixStream) -> bool {
        ours.set_nonblocking(true).unwrap();
        match ours.read(&mut [0]) {
            Ok(read) => read == 0,
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                false
            }
        }
    }

    #[test]
    fn descriptors_wait_for_the_next_thread_if_none_can_be_made() {
        static CLOSERS: Closers = Closers::new();
        let (ours, theirs) = UnixStream::pair().unwrap();
        CLOSERS.close(vec![theirs.into()], |work| {
            drop(work);
            Err(io::Error::from(io::ErrorKind::WouldBlock))
        });
        assert!(!is_closed(&ours));
        let (later, theirs) = UnixStream::pair().unwrap();
        CLOSERS.close(vec![theirs.into()], |work| {
            work();
            Ok(())
        });
        assert!(is_closed(&ours) && is_closed(&later));
        assert_eq!(CLOSERS.queue().threads, 0);
    }

    #[test]
    fn a_burst_while_no_thread_gets_a_processor_is_closed_when_one_does() {
        static CLOSERS: Closers = Closers::new();
        let mut threads = Vec::new();
        let mut ends = Vec::new();
        for _ in 0..MAX_THREADS + 10 {
            let (ours, theirs) = UnixStream::pair().unwrap();
            ends.push(ours);
            CLOSERS.close(vec![theirs.into()], |work| {
                threads.push(work);
                Ok(())
            });
        }
        assert_eq!(threads.len(), MAX_THREADS);
        assert!(!ends.iter().any(is_closed));
        threads.pop().unwrap()();
        assert!(ends.iter().all(is_closed));
        threads.into_iter().for_each(|work| work());
        assert_eq!(CLOSERS.queue().threads, 0);
    }
}
