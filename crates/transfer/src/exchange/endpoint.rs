//! An endpoint: one end of the connections between two processes, for messages.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::core::{Core, EndpointStats, MAX_NOTIFY_BYTES, Wires};
use super::error::{Cause, PostError};
use super::fabric::FabricInner;
use super::linger::Lingering;
use super::operations::{Event, MAX_PARTS};
use super::record::Record;
use super::region::{Region, RegionKey};

/// One part of a receive: room for one message.
#[derive(Clone, Debug)]
pub struct Part<'a> {
    /// Where the message goes.
    pub region: &'a Region,
    /// The bytes of the region that it may fill.
    pub range: Range<usize>,
    /// The tag of the message.
    pub tag: u32,
}

/// How to close an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Closing {
    /// What was sent still arrives, in the background, for two seconds at most.
    Linger,
    /// The data streams are reset: what the peer has not acknowledged is lost, and no memory is read any more.
    Now,
}

/// One end of a connection between two processes. Its functions never wait; any thread may call them.
///
/// Operations are posted with a number of the caller, `user`, and end with one [`Event`] each, in any order. They make
/// progress whenever [`progress`](Self::progress) is called.
///
/// Dropping it closes it: at once if an operation is not done, otherwise as [`Closing::Linger`].
pub struct Endpoint {
    fabric: Arc<FabricInner>,
    /// Locked before the locks of the fabric.
    core: Mutex<Core>,
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl Endpoint {
    pub(super) fn new(fabric: Arc<FabricInner>, wires: Wires, chunk: usize) -> Self {
        let core = Core::new(Arc::clone(&fabric), wires, chunk);
        Self {
            fabric,
            core: Mutex::new(core),
        }
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts a receive: room for one message per part. It is done when each part has its message, which may be shorter than
    /// the part.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted then.
    pub fn receive(&self, parts: &[Part<'_>], user: u64) -> Result<(), PostError> {
        if !(1..=MAX_PARTS).contains(&parts.len()) {
            return Err(PostError::Parts { parts: parts.len() });
        }
        let spans = parts.iter().map(|part| {
            let span = part.region.span(self.fabric.id, part.range.clone())?;
            Ok((span, part.tag))
        });
        let spans = spans.collect::<Result<Vec<_>, PostError>>()?;
        let mut core = self.core();
        if !core.has_room() || !core.ops.has_room_to_receive() {
            return Err(PostError::Full);
        }
        core.receive(user, spans);
        Ok(())
    }

    /// Posts a send of bytes that must not change until it is done. It goes to the first part of its tag that the peer has
    /// posted, now or later.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted then.
    pub fn send(
        &self,
        region: &Region,
        range: Range<usize>,
        tag: u32,
        user: u64,
    ) -> Result<(), PostError> {
        let span = region.span(self.fabric.id, range)?;
        let mut core = self.room_to_send()?;
        core.send(user, span, tag);
        Ok(())
    }

    /// Posts a put: copies bytes to `offset` of a region that the peer has published. Puts are not ordered among each other.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted then. A region or range that is not published breaks the endpoint.
    pub fn put(
        &self,
        region: &Region,
        range: Range<usize>,
        to: RegionKey,
        offset: u64,
        user: u64,
    ) -> Result<(), PostError> {
        let span = region.span(self.fabric.id, range)?;
        let mut core = self.room_to_send()?;
        core.put(user, span, to, offset);
        Ok(())
    }

    /// Posts a get: copies the bytes at `offset` of a region that the peer has published to `range` of a region here.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted then. A region or range that is not published breaks the endpoint.
    pub fn get(
        &self,
        from: RegionKey,
        offset: u64,
        region: &Region,
        range: Range<usize>,
        user: u64,
    ) -> Result<(), PostError> {
        let span = region.span(self.fabric.id, range)?;
        let mut core = self.core();
        if !core.has_room() || !core.ops.has_room_to_receive() {
            return Err(PostError::Full);
        }
        core.get(user, span, from, offset);
        Ok(())
    }

    /// Sends a notification, which arrives when the puts posted before it are in place.
    ///
    /// # Errors
    /// [`PostError`]; nothing was posted then.
    pub fn notify(&self, bytes: &[u8]) -> Result<(), PostError> {
        if bytes.len() > MAX_NOTIFY_BYTES {
            return Err(PostError::NotifyTooLong { bytes: bytes.len() });
        }
        let mut core = self.room_to_send()?;
        core.notify(bytes.to_vec());
        Ok(())
    }

    fn room_to_send(&self) -> Result<MutexGuard<'_, Core>, PostError> {
        let core = self.core();
        match core.has_room() && core.ops.has_room_to_send() {
            true => Ok(core),
            false => Err(PostError::Full),
        }
    }

    /// Moves what can be moved without waiting, at most a few MiB. Returns whether it moved anything.
    pub fn progress(&self) -> bool {
        self.fabric.step_lingering();
        self.core().turn()
    }

    /// Returns the next event.
    pub fn next_event(&self) -> Option<Event> {
        self.core().ops.events.pop_front()
    }

    /// Makes progress until there is an event, for `at_most`; `None`: there was none in that time.
    pub fn wait_event(&self, at_most: Duration) -> Option<Event> {
        let started = std::time::Instant::now();
        loop {
            if let Some(event) = self.next_event() {
                return Some(event);
            }
            if !self.progress() {
                if started.elapsed() >= at_most {
                    return self.next_event();
                }
                std::thread::yield_now();
            }
        }
    }

    /// Returns why the endpoint broke, if it has.
    pub fn cause(&self) -> Option<Arc<Cause>> {
        self.core().cause().cloned()
    }

    /// Returns what the endpoint has moved.
    pub fn stats(&self) -> EndpointStats {
        self.core().stats()
    }

    /// Closes the endpoint, and returns at once. Operations that are not done have no event any more.
    pub fn close(self, closing: Closing) {
        self.shut(closing);
    }

    fn shut(&self, closing: Closing) {
        let mut core = self.core();
        let Some(mut wires) = core.take_wires() else {
            return;
        };
        core.ops.fail_all();
        drop(core);
        wires.control.queue(Record::Bye);
        if closing == Closing::Now {
            for data in wires.data.drain(..) {
                data.reset();
            }
        }
        self.fabric.linger(Lingering::new(wires));
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let closing = match self.core().ops.is_busy() {
            true => Closing::Now,
            false => Closing::Linger,
        };
        self.shut(closing);
    }
}
