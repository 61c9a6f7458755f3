//! A link that also receives frames from a test, as if from a third station on the wire.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nic::{Link, LinkCaps, LinkReceived, LinkSent, Posted, TxFrame, VnetMeta};
use wire::Instant;

/// Writes frames to an [`Injected`] link.
#[derive(Debug, Clone, Default)]
pub(crate) struct Injector(Arc<Mutex<VecDeque<Vec<u8>>>>);

impl Injector {
    pub(crate) fn push(&self, frame: Vec<u8>) {
        self.frames().push_back(frame);
    }

    fn frames(&self) -> MutexGuard<'_, VecDeque<Vec<u8>>> {
        // Each lock holder leaves the queue consistent, so a panic elsewhere does not matter.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A link that also receives the frames of its [`Injector`].
#[derive(Debug)]
pub(crate) struct Injected<L> {
    inner: L,
    injector: Injector,
}

impl<L: Link> Injected<L> {
    pub(crate) fn new(inner: L) -> (Self, Injector) {
        let injector = Injector::default();
        let link = Self {
            inner,
            injector: injector.clone(),
        };
        (link, injector)
    }
}

impl<L: Link> Link for Injected<L> {
    fn caps(&self) -> LinkCaps {
        self.inner.caps()
    }

    fn receive(&mut self, posted: &mut Posted<'_>, now: Instant) -> io::Result<LinkReceived> {
        if let Some(frame) = self.injector.frames().pop_front() {
            *posted.frame = frame;
            let meta = VnetMeta::default();
            return Ok(LinkReceived::Frame { meta });
        }
        self.inner.receive(posted, now)
    }

    fn send(&mut self, frame: &TxFrame<'_>, now: Instant) -> io::Result<LinkSent> {
        self.inner.send(frame, now)
    }

    fn poll_fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.poll_fd()
    }

    fn tells_of_room(&self) -> bool {
        self.inner.tells_of_room()
    }

    fn next_due(&self) -> Option<Instant> {
        self.inner.next_due()
    }

    fn is_up(&self) -> bool {
        self.inner.is_up()
    }

    fn impairment_stats(&self) -> Option<nic::ImpairedStats> {
        self.inner.impairment_stats()
    }
}
