//! Files that are opened beside each other: each costs a round trip or two, and a checkpoint may have hundreds.

use std::ops::ControlFlow;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use client::LoadError;
use client::dial::{CancelCheck, SLICE, check_cancelled};
use client::http::{Client, HttpFile};

use super::error::CheckpointError;
use super::limits::FIRST_BYTES;
use super::shards::Shard;

/// Files that are opened at the same time at first. Each that was opened lets one more begin: a server whose queue of connections is full
/// drops the SYN, which is repeated after a second, and queues of 5 are common.
const FIRST_THREADS: usize = 4;

/// A file, and its first bytes.
type Opened = (HttpFile, Vec<u8>);

/// Takes the opened file with this number.
type Take<'a> = dyn FnMut(usize, Opened, &mut CancelCheck<'_>) -> Result<(), CheckpointError> + 'a;

/// The work of the threads.
struct Queue {
    next: Mutex<Next>,
    /// Told when a thread may have work, or none any more.
    changed: Condvar,
}

struct Next {
    /// Number of the next file that is opened.
    index: usize,
    /// How many were opened.
    opened: usize,
    /// Numbers below are opened now: not far before those that were taken, so that few wait in memory.
    limit: usize,
    /// The end of all numbers.
    end: usize,
}

impl Next {
    /// Returns whether the thread with this number has to wait before it opens a file.
    fn must_wait(&self, thread: usize) -> bool {
        self.index >= self.limit || thread >= self.opened + FIRST_THREADS
    }
}

impl Queue {
    fn locked(&self) -> MutexGuard<'_, Next> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of the next file, when the thread with the number `thread` may open it; `None` if there is none.
    fn next(&self, thread: usize) -> Option<usize> {
        let mut next = self.locked();
        while next.must_wait(thread) && next.index < next.end {
            let waited = self.changed.wait(next);
            next = waited.unwrap_or_else(PoisonError::into_inner);
        }
        let index = next.index;
        next.index += 1;
        (index < next.end).then_some(index)
    }

    /// Notes that a file was opened.
    fn add_opened(&self) {
        self.locked().opened += 1;
        self.changed.notify_all();
    }

    fn set_limit(&self, limit: usize) {
        self.locked().limit = limit;
        self.changed.notify_all();
    }

    /// Ends the work: no further file is opened.
    fn end(&self) {
        self.locked().end = 0;
        self.changed.notify_all();
    }

    fn is_over(&self) -> bool {
        self.locked().end == 0
    }
}

/// Ends the work when the caller leaves, in whatever way.
struct EndOnDrop<'a>(&'a Queue);

impl Drop for EndOnDrop<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Opens `shards`, up to `threads` at a time, and hands each to `take`, in their order. The error is that of the first of them that has one.
///
/// # Errors
/// A file cannot be opened, `take` fails, or `cancel_check` cancels the wait.
pub(super) fn open_each(
    client: Client<'_>,
    shards: &[Shard],
    threads: usize,
    cancel_check: &mut CancelCheck<'_>,
    take: &mut Take<'_>,
) -> Result<(), CheckpointError> {
    let threads = threads.min(shards.len()).max(1);
    let queue = Queue {
        next: Mutex::new(Next {
            index: 0,
            opened: 0,
            limit: 2 * threads,
            end: shards.len(),
        }),
        changed: Condvar::new(),
    };
    let (sender, receiver) = channel();
    thread::scope(|scope| {
        let _end = EndOnDrop(&queue);
        for number in 0..threads {
            let (sender, queue) = (sender.clone(), &queue);
            let thread = thread::Builder::new().name("devmem-open".to_owned());
            let begun = thread.spawn_scoped(scope, move || {
                open_some(number, client, shards, queue, &sender)
            });
            match begun {
                Ok(_) => {}
                // Fewer will do.
                Err(_) if number > 0 => break,
                Err(error) => return Err(LoadError::Wait(error).into()),
            }
        }
        drop(sender);
        take_each(
            &queue,
            shards.len(),
            2 * threads,
            &receiver,
            cancel_check,
            take,
        )
    })
}

/// The body of a thread.
fn open_some(
    thread: usize,
    client: Client<'_>,
    shards: &[Shard],
    queue: &Queue,
    sender: &Sender<(usize, Result<Opened, LoadError>)>,
) {
    let mut cancel_check = || match queue.is_over() {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    };
    while let Some(index) = queue.next(thread) {
        let request = &shards[index].request;
        let opened = HttpFile::open_with(client, request, FIRST_BYTES, &mut cancel_check);
        queue.add_opened();
        if sender.send((index, opened)).is_err() {
            return;
        }
    }
}

/// Takes `count` files in their order, `ahead` of which may be open before their turn.
fn take_each(
    queue: &Queue,
    count: usize,
    ahead: usize,
    receiver: &Receiver<(usize, Result<Opened, LoadError>)>,
    cancel_check: &mut CancelCheck<'_>,
    take: &mut Take<'_>,
) -> Result<(), CheckpointError> {
    let mut early = Vec::new();
    for index in 0..count {
        let opened = loop {
            if let Some(at) = early.iter().position(|(number, _)| *number == index) {
                break early.swap_remove(at).1;
            }
            check_cancelled(cancel_check)?;
            match receiver.recv_timeout(SLICE) {
                Ok(opened) => early.push(opened),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let ended = std::io::Error::other("a thread that opens files has ended");
                    return Err(LoadError::Wait(ended).into());
                }
            }
        };
        take(index, opened?, cancel_check)?;
        queue.set_limit(index + 1 + ahead);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_threads_begin_and_each_file_that_was_opened_lets_one_more_begin() {
        let waiting = |index, opened| {
            let next = Next {
                index,
                opened,
                limit: 32,
                end: 60,
            };
            (0..16).filter(|thread| next.must_wait(*thread)).count()
        };
        assert_eq!(waiting(0, 0), 12);
        assert_eq!(waiting(4, 1), 11);
        assert_eq!(waiting(24, 12), 0);
        // So many are open before their turn.
        assert_eq!(waiting(32, 20), 16);
    }
}
