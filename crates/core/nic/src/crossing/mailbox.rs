//! The mailbox of a shard: a bounded queue that other threads fill, and that wakes a sleeping reader.
//!
//! The bell has three states. A sender that has put an item in and finds the bell `QUIET` makes it `RINGING`, writes the
//! eventfd, and makes it `RUNG`. The reader resets a bell that is `RUNG`, eventfd first, and then looks for items; while one
//! is `RINGING`, it looks for items and does not sleep. So the bell is never `QUIET` while an item waits that the reader has
//! not looked for, and the eventfd is never readable while the bell is `QUIET`. The loom model tries every interleaving.

use std::io;
use std::os::fd::BorrowedFd;

use sync::{Arc, AtomicU8, Eventfd, Ordering, Receiver, SyncSender, sync_channel};

#[cfg(not(all(test, loom)))]
mod sync {
    pub(super) use std::sync::Arc;
    pub(super) use std::sync::atomic::{AtomicU8, Ordering};
    pub(super) use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    pub(super) use crate::eventfd::Eventfd;
}

#[cfg(all(test, loom))]
mod sync {
    pub(super) use loom::sync::Arc;
    pub(super) use loom::sync::atomic::{AtomicU8, Ordering};

    pub(super) use super::loom_tests::{Eventfd, Receiver, SyncSender, sync_channel};
}

/// Whether a shard can be woken while it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrossingWakeup {
    /// [`Crossing::poll_fd`](crate::Crossing::poll_fd) becomes readable when a frame has crossed.
    Eventfd,
    /// There is no descriptor: the caller polls all shards in turn, as simulations do.
    None,
}

/// The reader's end. Dropping it drops the items in it; later sends fail.
#[derive(Debug)]
pub(super) struct Mailbox<T> {
    items: Receiver<T>,
    bell: Arc<Bell>,
    /// The last look found an item: there may be more.
    is_emptying: bool,
}

/// A sender's end.
#[derive(Debug)]
pub(super) struct Sender<T> {
    items: SyncSender<T>,
    bell: Arc<Bell>,
    /// Rung as well: that of the mailbox whose descriptor wakes the reader.
    main: Option<Arc<Bell>>,
}

/// Tells the reader that there may be items.
#[derive(Debug)]
struct Bell {
    /// [`QUIET`], [`RINGING`] or [`RUNG`].
    state: AtomicU8,
    fd: Option<Eventfd>,
}

/// The reader has looked for items since the last sender put one in.
const QUIET: u8 = 0;
/// There may be items, and a sender is about to write the eventfd.
const RINGING: u8 = 1;
/// There may be items, and the eventfd is readable.
const RUNG: u8 = 2;

/// The mailbox is full, or its reader has gone.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refused;

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self {
            items: self.items.clone(),
            bell: Arc::clone(&self.bell),
            main: self.main.clone(),
        }
    }
}

impl<T> Sender<T> {
    /// Puts an item in; never blocks.
    pub(super) fn send(&self, item: T) -> Result<(), Refused> {
        self.items.try_send(item).map_err(|_| Refused)?;
        self.bell.ring();
        if let Some(main) = &self.main {
            main.ring();
        }
        Ok(())
    }
}

impl<T> Mailbox<T> {
    /// Returns a mailbox for `capacity` items, and its first sender.
    ///
    /// # Errors
    /// An eventfd cannot be created.
    pub(super) fn new(capacity: usize, wakeup: CrossingWakeup) -> io::Result<(Self, Sender<T>)> {
        let fd = match wakeup {
            CrossingWakeup::Eventfd => Some(Eventfd::new()?),
            CrossingWakeup::None => None,
        };
        let bell = Arc::new(Bell {
            state: AtomicU8::new(QUIET),
            fd,
        });
        let (sender, receiver) = sync_channel(capacity);
        let mailbox = Self {
            items: receiver,
            bell: Arc::clone(&bell),
            is_emptying: false,
        };
        let sender = Sender {
            items: sender,
            bell,
            main: None,
        };
        Ok((mailbox, sender))
    }

    /// Returns a mailbox of other items for the same reader, who has one descriptor for both: an item in it makes that of this
    /// mailbox readable.
    pub(super) fn beside<U>(&self, capacity: usize) -> io::Result<(Mailbox<U>, Sender<U>)> {
        let (mailbox, sender) = Mailbox::new(capacity, CrossingWakeup::None)?;
        let main = Some(Arc::clone(&self.bell));
        Ok((mailbox, Sender { main, ..sender }))
    }

    /// Returns the next item. Costs one load if nothing was sent.
    pub(super) fn receive(&mut self) -> Option<T> {
        if !self.is_emptying && !self.bell.reset() {
            return None;
        }
        let item = self.items.try_recv().ok();
        self.is_emptying = item.is_some();
        item
    }

    /// Returns whether items may wait.
    pub(super) fn may_have_items(&self) -> bool {
        self.is_emptying || self.bell.state.load(Ordering::Acquire) != QUIET
    }

    /// Returns a descriptor that is readable while items may wait that no [`receive`](Self::receive) has looked for.
    pub(super) fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.bell.fd.as_ref().map(Eventfd::as_fd)
    }
}

impl Bell {
    /// Tells the reader that an item was put in, and wakes it if it sleeps.
    fn ring(&self) {
        // Each sender modifies the state, with release: the reader that resets it finds the items of all of them.
        if self.state.fetch_max(RINGING, Ordering::AcqRel) == QUIET {
            if let Some(fd) = &self.fd {
                fd.set();
            }
            self.state.swap(RUNG, Ordering::AcqRel);
        }
    }

    /// Resets the bell if it was rung. Returns false if it is quiet: nothing was put in since the last reset.
    fn reset(&self) -> bool {
        let state = self.state.load(Ordering::Acquire);
        if state == RUNG {
            if let Some(fd) = &self.fd {
                fd.reset();
            }
            self.state.swap(QUIET, Ordering::AcqRel);
        }
        state != QUIET
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    fn mailbox(capacity: usize) -> (Mailbox<u32>, Sender<u32>) {
        Mailbox::new(capacity, CrossingWakeup::Eventfd).unwrap()
    }

    fn is_readable(mailbox: &Mailbox<u32>) -> bool {
        let fd = mailbox.poll_fd().unwrap();
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&now)).unwrap() > 0
    }

    #[test]
    fn items_arrive_in_order_and_the_descriptor_is_readable_until_the_reader_looks() {
        let (mut mailbox, sender) = mailbox(8);
        assert!(!mailbox.may_have_items() && !is_readable(&mailbox));
        assert_eq!(mailbox.receive(), None);
        (0..3).for_each(|n| sender.send(n).unwrap());
        assert!(mailbox.may_have_items() && is_readable(&mailbox));
        assert_eq!(mailbox.receive(), Some(0));
        assert!(mailbox.may_have_items() && !is_readable(&mailbox));
        sender.clone().send(3).unwrap();
        let rest: Vec<_> = std::iter::from_fn(|| mailbox.receive()).collect();
        assert_eq!(rest, [1, 2, 3]);
        // The last send came after the reset.
        assert_eq!(mailbox.receive(), None);
        assert!(!mailbox.may_have_items() && !is_readable(&mailbox));
    }

    #[test]
    fn a_full_mailbox_and_one_without_a_reader_refuse() {
        let (mut mailbox, sender) = mailbox(2);
        assert_eq!(
            [1, 2, 3].map(|n| sender.send(n).is_ok()),
            [true, true, false]
        );
        assert_eq!(mailbox.receive(), Some(1));
        assert_eq!(sender.send(4), Ok(()));
        drop(mailbox);
        assert_eq!(sender.send(5), Err(Refused));
    }

    #[test]
    fn a_reader_that_sleeps_on_the_descriptor_gets_every_item_of_every_thread() {
        const ITEMS: u32 = 2000;
        let (mut mailbox, sender) = mailbox(16);
        std::thread::scope(|scope| {
            for first in [0, ITEMS] {
                let sender = sender.clone();
                scope.spawn(move || {
                    for n in first..first + ITEMS {
                        while sender.send(n).is_err() {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            let mut got = Vec::new();
            while got.len() < 2 * ITEMS as usize {
                match mailbox.receive() {
                    Some(n) => got.push(n),
                    None if mailbox.may_have_items() => {}
                    None => {
                        let fd = mailbox.poll_fd().unwrap();
                        let woken = poll(&mut [PollFd::new(&fd, PollFlags::IN)], None).unwrap();
                        assert_eq!(woken, 1);
                    }
                }
            }
            let of = |first| {
                got.iter()
                    .filter(move |n| (first..first + ITEMS).contains(*n))
            };
            assert!(of(0).is_sorted() && of(ITEMS).is_sorted());
        });
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
