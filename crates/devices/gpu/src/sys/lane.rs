//! One stream of a device, with the events that tell how far it is.
//!
// UNSAFETY: a stream and events that exist while their lane does, and copies between checked ranges of memory whose owners
// wait for the lanes before they free it.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr;

use netmem::DeviceError;

use super::context::Current;
use super::copies::{CopyBatch, CopyKind, RawCopy};
use super::functions::{RawEvent, RawStream, Status};

/// Number of submissions of a lane that can be in flight; one more waits for the oldest.
pub(super) const EVENTS: usize = 64;

const NON_BLOCKING: u32 = 1;
const DISABLE_TIMING: u32 = 2;

/// Status of a query of something that is not done.
const NOT_READY: Status = 600;

/// Invariant: the stream and the events are of the context of the lanes, and destroyed by `destroy` only.
pub(crate) struct LaneState {
    stream: RawStream,
    /// The event of submission n is the one at n % [`EVENTS`].
    events: Vec<RawEvent>,
    /// Number of the last submission.
    pub(crate) submitted: u64,
    /// All submissions up to this number are done; at least `submitted` - [`EVENTS`].
    pub(crate) done: u64,
}

// SAFETY: streams and events belong to the process, not to a thread, and the driver's functions may be called by any.
unsafe impl Send for LaneState {}

impl LaneState {
    /// A lane whose stream has not been created.
    pub(crate) const fn new() -> Self {
        Self {
            stream: ptr::null_mut(),
            events: Vec::new(),
            submitted: 0,
            done: 0,
        }
    }

    pub(crate) fn create(&mut self, current: &Current<'_>) -> Result<(), DeviceError> {
        let driver = current.driver;
        let (mut least, mut greatest) = (0, 0);
        let get = driver.loaded().functions.stream_priorities;
        // SAFETY: room for two numbers.
        let status = unsafe { (get.call)(&raw mut least, &raw mut greatest) };
        driver.check(get.name, status)?;
        let (stream, create) = (
            &raw mut self.stream,
            driver.loaded().functions.stream_create,
        );
        // SAFETY: room for a pointer. The greatest priority is the smaller number.
        let status = unsafe { (create.call)(stream, NON_BLOCKING, greatest) };
        driver.check(create.name, status)?;
        let create = driver.loaded().functions.event_create;
        for _ in 0..EVENTS {
            let mut event = ptr::null_mut();
            // SAFETY: room for a pointer.
            let status = unsafe { (create.call)(&raw mut event, DISABLE_TIMING) };
            driver.check(create.name, status)?;
            self.events.push(event);
        }
        Ok(())
    }

    pub(crate) fn stream(&self) -> RawStream {
        self.stream
    }

    pub(crate) fn event(&self, number: u64) -> RawEvent {
        // Below `EVENTS`.
        self.events[(number % EVENTS as u64) as usize]
    }

    /// Returns the number of the next submission, after the one that is `in_flight` (at most [`EVENTS`]) older has ended.
    pub(crate) fn begin(
        &mut self,
        current: &Current<'_>,
        in_flight: u64,
    ) -> Result<u64, DeviceError> {
        let number = self.submitted + 1;
        if let Some(oldest) = number.checked_sub(in_flight) {
            self.wait(current, oldest)?;
        }
        Ok(number)
    }

    /// Ends what [`begin`](Self::begin) began: the work that was started is this submission.
    pub(crate) fn end(&mut self, current: &Current<'_>, number: u64) -> Result<(), DeviceError> {
        let record = current.driver.loaded().functions.event_record;
        // SAFETY: the event and the stream exist (invariant).
        let status = unsafe { (record.call)(self.event(number), self.stream) };
        current.driver.check(record.name, status)?;
        self.submitted = number;
        Ok(())
    }

    /// Starts copies, by one call where the driver can.
    pub(crate) fn copy_all(
        &self,
        current: &Current<'_>,
        kind: CopyKind,
        copies: &[RawCopy],
    ) -> Result<(), DeviceError> {
        if self.copy_batch(current, kind, copies)? {
            return Ok(());
        }
        let mut copies = copies.iter();
        copies.try_for_each(|copy| self.copy(current, kind, copy))
    }

    /// Does all copies by one call; returns whether the driver can.
    fn copy_batch(
        &self,
        current: &Current<'_>,
        kind: CopyKind,
        copies: &[RawCopy],
    ) -> Result<bool, DeviceError> {
        if copies.len() < 2 || kind == CopyKind::Within {
            return Ok(false);
        }
        let stream = self.stream;
        current.driver.copy_batch(&CopyBatch { copies, stream })
    }

    pub(crate) fn copy(
        &self,
        current: &Current<'_>,
        kind: CopyKind,
        copy: &RawCopy,
    ) -> Result<(), DeviceError> {
        let (driver, stream) = (current.driver, self.stream);
        let functions = &driver.loaded().functions;
        let (from, to, len) = (copy.source(), copy.destination(), copy.bytes());
        let host = |address: u64| ptr::with_exposed_provenance_mut::<c_void>(address as usize);
        let (call, status) = match kind {
            // SAFETY: both sides are memory that stays until the stream is done (`Copies`); the stream exists (invariant).
            CopyKind::In => (functions.copy_in.name, unsafe {
                (functions.copy_in.call)(to, host(from), len, stream)
            }),
            // SAFETY: as above.
            CopyKind::Out => (functions.copy_out.name, unsafe {
                (functions.copy_out.call)(host(to), from, len, stream)
            }),
            // SAFETY: as above.
            CopyKind::Within => (functions.copy_within.name, unsafe {
                (functions.copy_within.call)(to, from, len, stream)
            }),
        };
        driver.check(call, status)
    }

    pub(crate) fn is_done(
        &mut self,
        current: &Current<'_>,
        number: u64,
    ) -> Result<bool, DeviceError> {
        let number = number.min(self.submitted);
        let query = current.driver.loaded().functions.event_query;
        // SAFETY: the event exists (invariant).
        match unsafe { (query.call)(self.event(number)) } {
            NOT_READY => {
                current.driver.forget_error();
                Ok(false)
            }
            status => {
                current.driver.check(query.name, status)?;
                self.done = self.done.max(number);
                Ok(true)
            }
        }
    }

    pub(crate) fn wait(&mut self, current: &Current<'_>, number: u64) -> Result<(), DeviceError> {
        let number = number.min(self.submitted);
        if self.done >= number {
            return Ok(());
        }
        let synchronize = current.driver.loaded().functions.event_synchronize;
        // SAFETY: the event exists (invariant).
        let status = unsafe { (synchronize.call)(self.event(number)) };
        current.driver.check(synchronize.name, status)?;
        self.done = number;
        Ok(())
    }

    pub(crate) fn wait_all(&self, current: &Current<'_>) -> Result<(), DeviceError> {
        let synchronize = current.driver.loaded().functions.stream_synchronize;
        // SAFETY: the stream exists (invariant).
        let status = unsafe { (synchronize.call)(self.stream) };
        current.driver.check(synchronize.name, status)
    }

    /// Destroys stream and events. Owners of memory have waited for its copies.
    pub(crate) fn destroy(&mut self, current: &Current<'_>) {
        let functions = &current.driver.loaded().functions;
        for event in self.events.drain(..) {
            // SAFETY: created by `create`, and destroyed here only. Errors: the driver has freed it.
            let _ = unsafe { (functions.event_destroy.call)(event) };
        }
        let stream = std::mem::replace(&mut self.stream, ptr::null_mut());
        if !stream.is_null() {
            // SAFETY: as above.
            let _ = unsafe { (functions.stream_destroy.call)(stream) };
        }
    }
}
