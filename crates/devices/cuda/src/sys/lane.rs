//! One stream of a device, with the events that tell how far it is.
//!
// UNSAFETY: a stream and events that exist while their lane does, and copies between checked ranges of memory whose owners
// wait for the lanes before they free it.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::ptr;

use netmem::DeviceError;

use super::context::Current;
use super::functions::{BatchCopy, CopyAttributes, Location, RawEvent, RawStream, Status};
use super::memory::{CopyKind, RawCopy};
use crate::error::NOT_READY;

/// Number of submissions of a lane that can be in flight; one more waits for the oldest.
const EVENTS: usize = 64;

const NON_BLOCKING: u32 = 1;
const DISABLE_TIMING: u32 = 2;

/// CU_MEMCPY_SRC_ACCESS_ORDER_STREAM: the source is read when the stream gets to the copy.
const SOURCE_ORDER_STREAM: u32 = 1;

/// Status of a driver that has the batched copy and does not support it for this memory.
const NOT_SUPPORTED: Status = 801;

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
        let get = driver.functions.stream_priorities;
        // SAFETY: room for two numbers.
        let status = unsafe { get(&raw mut least, &raw mut greatest) };
        driver.check("cuCtxGetStreamPriorityRange", status)?;
        let (stream, create) = (&raw mut self.stream, driver.functions.stream_create);
        // SAFETY: room for a pointer. The greatest priority is the smaller number.
        let status = unsafe { create(stream, NON_BLOCKING, greatest) };
        driver.check("cuStreamCreateWithPriority", status)?;
        for _ in 0..EVENTS {
            let mut event = ptr::null_mut();
            // SAFETY: room for a pointer.
            let status = unsafe { (driver.functions.event_create)(&raw mut event, DISABLE_TIMING) };
            driver.check("cuEventCreate", status)?;
            self.events.push(event);
        }
        Ok(())
    }

    pub(crate) fn event(&self, number: u64) -> RawEvent {
        // Below `EVENTS`.
        self.events[(number % EVENTS as u64) as usize]
    }

    pub(crate) fn submit(
        &mut self,
        current: &Current<'_>,
        copies: &[RawCopy<'_>],
    ) -> Result<(), DeviceError> {
        let number = self.submitted + 1;
        if let Some(oldest) = number.checked_sub(EVENTS as u64) {
            self.wait(current, oldest)?;
        }
        if !self.copy_batch(current, copies)? {
            copies
                .iter()
                .try_for_each(|copy| self.copy(current, copy))?;
        }
        // SAFETY: the event and the stream exist (invariant).
        let status =
            unsafe { (current.driver.functions.event_record)(self.event(number), self.stream) };
        current.driver.check("cuEventRecord", status)?;
        self.submitted = number;
        Ok(())
    }

    /// Does all copies by one call; returns whether the driver can.
    fn copy_batch(
        &self,
        current: &Current<'_>,
        copies: &[RawCopy<'_>],
    ) -> Result<bool, DeviceError> {
        let is_worth_it =
            copies.len() > 1 && !copies.iter().any(|copy| copy.kind == CopyKind::Within);
        let Some(batch) = current.driver.batch.filter(|_| is_worth_it) else {
            return Ok(false);
        };
        let mut to: Vec<u64> = copies.iter().map(|copy| copy.to).collect();
        let mut from: Vec<u64> = copies.iter().map(|copy| copy.from).collect();
        let mut sizes: Vec<usize> = copies.iter().map(|copy| copy.len).collect();
        let mut attributes = CopyAttributes {
            source_order: SOURCE_ORDER_STREAM,
            source: Location::default(),
            destination: Location::default(),
            flags: 0,
        };
        // The attributes are those of all copies from index 0 on.
        let (mut first, mut failed) = (0_usize, 0_usize);
        let (to, from, sizes) = (to.as_mut_ptr(), from.as_mut_ptr(), sizes.as_mut_ptr());
        let (attributes, first) = (&raw mut attributes, &raw mut first);
        let (count, stream) = (copies.len(), self.stream);
        let status = match batch {
            // SAFETY: (1) three arrays of `count` entries, one attribute, and room for an index; (2) both sides of each
            // copy are memory that stays until the stream is done (`RawCopy`); (3) the stream exists (invariant).
            BatchCopy::V12(copy) => unsafe {
                copy(
                    to,
                    from,
                    sizes,
                    count,
                    attributes,
                    first,
                    1,
                    &raw mut failed,
                    stream,
                )
            },
            // SAFETY: as above, without the index.
            BatchCopy::V13(copy) => unsafe {
                copy(to, from, sizes, count, attributes, first, 1, stream)
            },
        };
        match status {
            NOT_SUPPORTED => Ok(false),
            status => current
                .driver
                .check("cuMemcpyBatchAsync", status)
                .map(|()| true),
        }
    }

    pub(crate) fn copy(
        &self,
        current: &Current<'_>,
        copy: &RawCopy<'_>,
    ) -> Result<(), DeviceError> {
        let (driver, stream) = (current.driver, self.stream);
        let functions = &driver.functions;
        let RawCopy {
            kind,
            from,
            to,
            len,
            ..
        } = *copy;
        let host = |address: u64| ptr::with_exposed_provenance_mut::<c_void>(address as usize);
        let (call, status) = match kind {
            // SAFETY: both sides are memory that stays until the stream is done (`RawCopy`); the stream exists (invariant).
            CopyKind::In => ("cuMemcpyHtoDAsync", unsafe {
                (functions.copy_in)(to, host(from), len, stream)
            }),
            // SAFETY: as above.
            CopyKind::Out => ("cuMemcpyDtoHAsync", unsafe {
                (functions.copy_out)(host(to), from, len, stream)
            }),
            // SAFETY: as above.
            CopyKind::Within => ("cuMemcpyDtoDAsync", unsafe {
                (functions.copy_within)(to, from, len, stream)
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
        // SAFETY: the event exists (invariant).
        match unsafe { (current.driver.functions.event_query)(self.event(number)) } {
            NOT_READY => Ok(false),
            status => {
                current.driver.check("cuEventQuery", status)?;
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
        // SAFETY: the event exists (invariant).
        let status = unsafe { (current.driver.functions.event_synchronize)(self.event(number)) };
        current.driver.check("cuEventSynchronize", status)?;
        self.done = number;
        Ok(())
    }

    pub(crate) fn wait_all(&self, current: &Current<'_>) -> Result<(), DeviceError> {
        // SAFETY: the stream exists (invariant).
        let status = unsafe { (current.driver.functions.stream_synchronize)(self.stream) };
        current.driver.check("cuStreamSynchronize", status)
    }

    /// Destroys stream and events. Owners of memory have waited for its copies.
    pub(crate) fn destroy(&mut self, current: &Current<'_>) {
        let functions = &current.driver.functions;
        for event in self.events.drain(..) {
            // SAFETY: created by `create`, and destroyed here only. Errors: the driver has freed it.
            let _ = unsafe { (functions.event_destroy)(event) };
        }
        let stream = std::mem::replace(&mut self.stream, ptr::null_mut());
        if !stream.is_null() {
            // SAFETY: as above.
            let _ = unsafe { (functions.stream_destroy)(stream) };
        }
    }
}
