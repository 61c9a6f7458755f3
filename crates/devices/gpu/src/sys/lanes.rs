//! The streams of a device, one per lane, with the events that tell how far each one is.
//!
// UNSAFETY: a call of the driver with a stream of the application.
#![allow(unsafe_code)]

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use netmem::{DeviceError, DeviceState, Fence, Lane};

use super::context::{Context, Current};
use super::copies::{Copies, CopyKind, RawCopy};
use super::functions::RawStream;
use super::lane::{EVENTS, LaneState};
use super::revocation::{Revocation, revoked};
use crate::error::GpuError;

/// What remains to be started of copies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Remaining {
    /// All of them run.
    Nothing,
    /// At least one.
    Something,
}

/// A device's context and streams.
pub(crate) struct Lanes {
    // Released after `drop` has destroyed the streams.
    pub(crate) context: Context,
    // Lock order: a leaf. Only the driver is called while one is held; that keeps the order of copies and events.
    lanes: [Mutex<LaneState>; 3],
    /// The first error after which the device cannot be used.
    lost: OnceLock<DeviceError>,
    /// Kernels access registered host memory at other addresses than this process.
    has_foreign_addresses: AtomicBool,
}

impl fmt::Debug for Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lanes({})", self.context.name())
    }
}

impl Lanes {
    /// Creates the streams and events of a device.
    pub(crate) fn new(context: Context) -> Result<Self, GpuError> {
        let lane = || Mutex::new(LaneState::new());
        let lanes = Self {
            context,
            lanes: [lane(), lane(), lane()],
            lost: OnceLock::new(),
            has_foreign_addresses: AtomicBool::new(false),
        };
        let current = lanes.context.enter()?;
        for lane in &lanes.lanes {
            // What an earlier call created is destroyed by `drop` if a later one fails.
            lock(lane).create(&current)?;
        }
        drop(current);
        Ok(lanes)
    }

    /// Makes the context current, unless the device is lost.
    pub(crate) fn enter(&self) -> Result<Current<'_>, DeviceError> {
        match self.lost.get() {
            Some(lost) => Err(*lost),
            None => self.context.enter(),
        }
    }

    /// Remembers an error after which the device cannot be used.
    pub(crate) fn note<T>(&self, result: Result<T, DeviceError>) -> Result<T, DeviceError> {
        result.inspect_err(|error| {
            if error.state == DeviceState::Lost {
                let _ = self.lost.set(*error);
            }
        })
    }

    /// Remembers that kernels access host memory which is registered from now on at other addresses than this process.
    pub(super) fn note_foreign_addresses(&self) {
        self.has_foreign_addresses.store(true, Ordering::Relaxed);
    }

    /// Returns whether kernels access registered host memory at the addresses that it has in this process.
    pub(crate) fn has_own_addresses(&self) -> bool {
        !self.has_foreign_addresses.load(Ordering::Relaxed)
    }

    fn lane(&self, lane: Lane) -> MutexGuard<'_, LaneState> {
        lock(&self.lanes[lane as usize])
    }

    /// Starts copies.
    ///
    /// # Errors
    ///
    /// [`DeviceError`] of the driver; a piece is not inside of its memories; one of these has been revoked.
    pub(crate) fn submit(&self, lane: Lane, copies: &Copies<'_>) -> Result<Fence, DeviceError> {
        let raw: Result<Vec<_>, _> = copies.pieces.iter().map(|it| copies.raw(it)).collect();
        let raw = raw?;
        self.submit_parts(lane, EVENTS as u64, |state, current, _number| {
            if copies.is_revoked() {
                return Err(revoked());
            }
            let started = state.copy_all(current, copies.kind, &raw);
            started.map(|()| Remaining::Nothing)
        })
    }

    /// Starts work in parts: `start` starts the next one, of which it gets the number, on the stream of the lane, whose lock is held. When it is called, the
    /// submission that is `in_flight` older has ended.
    pub(super) fn submit_parts(
        &self,
        lane: Lane,
        in_flight: u64,
        mut start: impl FnMut(&LaneState, &Current<'_>, u64) -> Result<Remaining, DeviceError>,
    ) -> Result<Fence, DeviceError> {
        let current = self.enter()?;
        let mut state = self.lane(lane);
        let mut submit = || loop {
            let number = state.begin(&current, in_flight)?;
            let left = start(&state, &current, number)?;
            state.end(&current, number)?;
            if left == Remaining::Nothing {
                return Ok(number);
            }
        };
        match self.note(submit()) {
            Ok(number) => Ok(Fence { lane, number }),
            Err(error) => {
                // Those that were started have no event, and the caller will not wait for them.
                let _ = state.wait_all(&current);
                Err(error)
            }
        }
    }

    /// Does one copy of a memory of the device in the lane for gathering, whose host side need not be pinned, and waits.
    pub(crate) fn copy_and_wait(
        &self,
        revocation: &Revocation,
        kind: CopyKind,
        copy: &RawCopy,
    ) -> Result<(), DeviceError> {
        let current = self.enter()?;
        let state = self.lane(Lane::Gather);
        if revocation.is_revoked() {
            return Err(revoked());
        }
        let copied = state
            .copy(&current, kind, copy)
            .and_then(|()| state.wait_all(&current));
        self.note(copied)
    }

    /// Starts work on memories of the device in the lane for gathering, on its stream, and waits for it.
    pub(crate) fn run_and_wait(
        &self,
        revocations: [&Revocation; 2],
        start: impl FnOnce(&Current<'_>, RawStream) -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let current = self.enter()?;
        let state = self.lane(Lane::Gather);
        if revocations.into_iter().any(Revocation::is_revoked) {
            return Err(revoked());
        }
        let done = start(&current, state.stream()).and_then(|()| state.wait_all(&current));
        self.note(done)
    }

    /// Returns whether a submission is done.
    pub(crate) fn is_done(&self, fence: Fence) -> Result<bool, DeviceError> {
        let mut state = self.lane(fence.lane);
        if state.done >= fence.number {
            return Ok(true);
        }
        let current = self.enter()?;
        self.note(state.is_done(&current, fence.number))
    }

    /// Waits until a submission is done. Other submissions to the lane wait meanwhile.
    pub(crate) fn wait(&self, fence: Fence) -> Result<(), DeviceError> {
        let mut state = self.lane(fence.lane);
        if state.done >= fence.number {
            return Ok(());
        }
        let current = self.enter()?;
        self.note(state.wait(&current, fence.number))
    }

    /// Waits until all copies are done, or will never be.
    pub(crate) fn wait_all(&self) {
        let Ok(current) = self.enter() else { return };
        for lane in &self.lanes {
            // An error means that nothing is running any more.
            let _ = self.note(lock(lane).wait_all(&current));
        }
    }

    /// Makes a stream of the application wait for a submission.
    ///
    /// # Safety
    ///
    /// `stream` is a stream of this device that exists, null or one of the driver's special handles.
    pub(crate) unsafe fn hold_stream(
        &self,
        fence: Fence,
        stream: RawStream,
    ) -> Result<(), DeviceError> {
        let state = self.lane(fence.lane);
        if state.done >= fence.number {
            return Ok(());
        }
        let current = self.enter()?;
        let (event, wait) = (
            state.event(fence.number),
            current.driver.loaded().functions.stream_wait,
        );
        // SAFETY: (1) the stream exists, by the contract; (2) the event exists (invariant).
        let status = unsafe { (wait.call)(stream, event, 0) };
        self.note(current.driver.check(wait.name, status))
    }
}

impl Lanes {
    /// Waits for the work of a stream of the application.
    ///
    /// # Safety
    ///
    /// As for [`hold_stream`](Self::hold_stream).
    pub(crate) unsafe fn synchronize_stream(&self, stream: RawStream) -> Result<(), DeviceError> {
        let current = self.enter()?;
        let synchronize = current.driver.loaded().functions.stream_synchronize;
        // SAFETY: the stream exists, by the contract.
        let status = unsafe { (synchronize.call)(stream) };
        self.note(current.driver.check(synchronize.name, status))
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        // Not through `enter`: what a lost device holds is freed, too, as far as the driver does it.
        let Ok(current) = self.context.enter() else {
            return;
        };
        for lane in &mut self.lanes {
            let lane = lane.get_mut().unwrap_or_else(PoisonError::into_inner);
            lane.destroy(&current);
        }
    }
}

fn lock(lane: &Mutex<LaneState>) -> MutexGuard<'_, LaneState> {
    lane.lock().unwrap_or_else(PoisonError::into_inner)
}
