//! Every interleaving of senders and a reader of a mailbox that sleeps. Run with `--cfg loom`.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;

use super::{CrossingWakeup, Mailbox};

/// A model of an eventfd: readable or not.
#[derive(Debug)]
pub(super) struct Eventfd(AtomicBool);

impl Eventfd {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(AtomicBool::new(false)))
    }

    pub(super) fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    pub(super) fn reset(&self) {
        self.0.swap(false, Ordering::SeqCst);
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        unreachable!("the model does not sleep")
    }
}

/// A model of the bounded channel of std.
#[derive(Debug)]
pub(super) struct Receiver<T>(Arc<Mutex<VecDeque<T>>>);

#[derive(Debug)]
pub(super) struct SyncSender<T>(Arc<Mutex<VecDeque<T>>>);

impl<T> Clone for SyncSender<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

pub(super) fn sync_channel<T>(_capacity: usize) -> (SyncSender<T>, Receiver<T>) {
    let items = Arc::new(Mutex::new(VecDeque::new()));
    (SyncSender(Arc::clone(&items)), Receiver(items))
}

impl<T> SyncSender<T> {
    pub(super) fn try_send(&self, item: T) -> Result<(), T> {
        self.0.lock().expect("not poisoned").push_back(item);
        Ok(())
    }
}

impl<T> Receiver<T> {
    pub(super) fn try_recv(&self) -> Result<T, ()> {
        self.0.lock().expect("not poisoned").pop_front().ok_or(())
    }
}

/// Takes items until the reader would sleep.
fn take_all(mailbox: &mut Mailbox<u32>, got: &mut Vec<u32>) {
    loop {
        match mailbox.receive() {
            Some(item) => got.push(item),
            None if mailbox.may_have_items() => thread::yield_now(),
            None => return,
        }
    }
}

#[test]
fn loom_a_reader_that_sleeps_is_woken_for_every_item() {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(3);
    builder.check(|| {
        let (mut mailbox, sender) =
            Mailbox::new(8, CrossingWakeup::Eventfd).expect("the model has no limit");
        let senders = [1, 2].map(|item| {
            let sender = sender.clone();
            thread::spawn(move || sender.send(item).expect("there is room"))
        });
        let mut got = Vec::new();
        take_all(&mut mailbox, &mut got);
        for sender in senders {
            sender.join().expect("no panic");
        }
        // The reader sleeps now, and wakes only if the descriptor is readable.
        let is_readable = |mailbox: &Mailbox<u32>| {
            let fd = mailbox.bell.fd.as_ref().expect("it has one");
            fd.0.load(Ordering::SeqCst)
        };
        if got.len() < 2 {
            assert!(is_readable(&mailbox), "only {got:?}");
        }
        take_all(&mut mailbox, &mut got);
        got.sort_unstable();
        assert_eq!(got, [1, 2]);
        assert!(!is_readable(&mailbox), "it would spin");
    });
}
