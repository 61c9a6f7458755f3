//! A device for tests: memory that only its engine can access, and an engine that copies when the test wants.

use std::any::Any;
use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::device::{
    CopyEngine, CopyPiece, CopyWay, DeviceAt, DeviceError, DeviceState, Fence, HostWindow, Lane,
    Pinned,
};
use crate::device::{CpuAccess, Exporter};
use crate::dmabuf::Dmabuf;
use crate::errors::DmabufError;
use crate::region::{Commit, MemoryRegion, RegionSpan};

/// The error of a [`FakeDevice`] that [`FakeDevice::lose`] was called for.
pub const FAKE_LOST: DeviceError = DeviceError {
    call: "fake_copy",
    name: "FAKE_LOST",
    code: 719,
    state: DeviceState::Lost,
    remedy: "end the test",
};

/// A device without hardware. Its memory cannot be mapped, and its copies are done by the CPU.
#[derive(Clone)]
pub struct FakeDevice {
    engine: Arc<FakeEngine>,
}

/// When a [`FakeDevice`] does the copies that were submitted to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FakePace {
    /// At once, in the call that submits them.
    AtOnce,
    /// When a lane's oldest submission has been asked about this number of times.
    AfterPolls(u32),
    /// When [`FakeDevice::run`] is called.
    OnDemand,
}

struct FakeEngine {
    // Lock order: a leaf. Nothing is called while it is held.
    state: Mutex<State>,
}

struct State {
    pace: FakePace,
    lost: bool,
    lanes: [FakeLane; 3],
    /// Number of copies in each submission, of all lanes.
    submissions: Vec<usize>,
    /// Number of times that it was asked whether copies are done.
    asked: usize,
    /// Number of times that copies of each lane which were not done were waited for.
    waited: [usize; 3],
}

#[derive(Default)]
struct FakeLane {
    waiting: VecDeque<OwnedCopies>,
    submitted: u64,
    done: u64,
    polls: u32,
}

/// Copies that outlive the call that submitted them, as those of a real engine.
struct OwnedCopies {
    from: Arc<MemoryRegion>,
    to: Arc<MemoryRegion>,
    pieces: Vec<CopyPiece>,
}

/// The memory of a fake device.
struct FakeMemory {
    engine: Arc<FakeEngine>,
    region: Arc<MemoryRegion>,
}

/// Host memory that is registered with a fake device.
struct FakePinned(HostWindow);

impl FakeDevice {
    /// Returns a new device.
    pub fn new(pace: FakePace) -> Self {
        let state = State {
            pace,
            lost: false,
            lanes: Default::default(),
            submissions: Vec::new(),
            asked: 0,
            waited: [0; 3],
        };
        FakeDevice {
            engine: Arc::new(FakeEngine {
                state: Mutex::new(state),
            }),
        }
    }

    /// Allocates memory of the device.
    ///
    /// # Errors
    ///
    /// [`DmabufError`] when the size is not a positive multiple of 4096, or memory is short.
    pub fn alloc(&self, size: usize) -> Result<Dmabuf, DmabufError> {
        let region = MemoryRegion::anonymous(size, Commit::Lazily)
            .map_err(|error| DmabufError::Map { size, error })?;
        Dmabuf::exported(Arc::new(FakeMemory {
            engine: Arc::clone(&self.engine),
            region: Arc::new(region),
        }))
    }

    /// Does all copies that were submitted.
    pub fn run(&self) {
        let mut state = self.engine.lock();
        state.lanes.iter_mut().for_each(FakeLane::run);
    }

    /// Makes all copies fail that are not done, and all later calls.
    pub fn lose(&self) {
        self.engine.lock().lost = true;
    }

    /// Returns the number of copies in each submission so far.
    pub fn submissions(&self) -> Vec<usize> {
        self.engine.lock().submissions.clone()
    }

    /// Returns the number of times that it was asked whether copies are done.
    pub fn asked(&self) -> usize {
        self.engine.lock().asked
    }

    /// Returns the number of times that copies of a lane which were not done were waited for.
    pub fn waited(&self, lane: Lane) -> usize {
        self.engine.lock().waited[lane as usize]
    }
}

impl FakeEngine {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn check(&self) -> Result<MutexGuard<'_, State>, DeviceError> {
        let state = self.lock();
        if state.lost {
            Err(FAKE_LOST)
        } else {
            Ok(state)
        }
    }
}

impl FakeLane {
    fn run(&mut self) {
        while !self.waiting.is_empty() {
            self.run_oldest();
        }
    }

    fn run_oldest(&mut self) {
        if let Some(OwnedCopies { from, to, pieces }) = self.waiting.pop_front() {
            for piece in pieces {
                let span = RegionSpan {
                    region: &from,
                    offset: piece.from,
                    len: piece.len,
                };
                to.copy_from(piece.to, span);
            }
        }
        self.done = self.submitted - self.waiting.len() as u64;
        self.polls = 0;
    }
}

impl State {
    fn lane(&mut self, lane: Lane) -> &mut FakeLane {
        &mut self.lanes[lane as usize]
    }
}

impl CopyEngine for FakeEngine {
    fn device(&self) -> String {
        "fake".to_owned()
    }

    fn pin(&self, memory: HostWindow) -> Result<Pinned, DeviceError> {
        self.check()
            .map(|_state| Box::new(FakePinned(memory)) as Pinned)
    }

    fn submit(
        &self,
        lane: Lane,
        way: CopyWay<'_>,
        pieces: &[CopyPiece],
    ) -> Result<Fence, DeviceError> {
        let mut state = self.check()?;
        state.submissions.push(pieces.len());
        let pace = state.pace;
        let queue = state.lane(lane);
        queue.waiting.push_back(owned(way, pieces));
        queue.submitted += 1;
        let number = queue.submitted;
        if pace == FakePace::AtOnce {
            queue.run();
        }
        Ok(Fence { lane, number })
    }

    fn is_done(&self, fence: Fence) -> Result<bool, DeviceError> {
        let mut state = self.lock();
        state.asked += 1;
        let (pace, lost) = (state.pace, state.lost);
        let lane = state.lane(fence.lane);
        lane.polls += 1;
        if matches!(pace, FakePace::AfterPolls(polls) if lane.polls > polls) && !lost {
            lane.run_oldest();
        }
        match lane.done >= fence.number {
            false if lost => Err(FAKE_LOST),
            done => Ok(done),
        }
    }

    fn wait(&self, fence: Fence) -> Result<(), DeviceError> {
        let mut state = self.lock();
        let lost = state.lost;
        let is_done = state.lane(fence.lane).done >= fence.number;
        state.waited[fence.lane as usize] += usize::from(!is_done);
        let lane = state.lane(fence.lane);
        while lane.done < fence.number && !lost {
            lane.run_oldest();
        }
        if lane.done < fence.number {
            Err(FAKE_LOST)
        } else {
            Ok(())
        }
    }

    fn read(&self, from: DeviceAt<'_>, out: &mut [u8]) -> Result<(), DeviceError> {
        let _state = self.check()?;
        device(from.memory).copy_out(from.offset, out);
        Ok(())
    }

    fn write(&self, to: DeviceAt<'_>, bytes: &[u8]) -> Result<(), DeviceError> {
        let _state = self.check()?;
        device(to.memory).copy_in(to.offset, bytes);
        Ok(())
    }
}

fn owned(way: CopyWay<'_>, pieces: &[CopyPiece]) -> OwnedCopies {
    let (from, to) = match way {
        CopyWay::In { from, to } => (host(from), device(to)),
        CopyWay::Out { from, to } => (device(from), host(to)),
        CopyWay::Within { from, to } => (device(from), device(to)),
    };
    let is_empty = pieces.iter().any(|piece| piece.len == 0);
    assert!(!is_empty, "an engine refuses copies of no bytes");
    let pieces = pieces.to_vec();
    OwnedCopies { from, to, pieces }
}

/// # Panics
///
/// When the memory is not that of a fake device.
fn device(memory: &dyn Exporter) -> Arc<MemoryRegion> {
    let any: &dyn Any = memory;
    let memory = any.downcast_ref::<FakeMemory>();
    Arc::clone(&memory.expect("memory of a fake device").region)
}

fn host(pinned: &Pinned) -> Arc<MemoryRegion> {
    let pinned = pinned.downcast_ref::<FakePinned>();
    let pinned = pinned.expect("memory that is pinned for a fake device");
    Arc::clone(&pinned.0.region)
}

impl Exporter for FakeMemory {
    fn size(&self) -> usize {
        self.region.len()
    }

    fn as_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn begin_cpu_access(&self, _access: CpuAccess) -> io::Result<()> {
        Ok(())
    }

    fn end_cpu_access(&self, _access: CpuAccess) -> io::Result<()> {
        Ok(())
    }

    fn copy_engine(&self) -> Option<Arc<dyn CopyEngine>> {
        let engine = Arc::clone(&self.engine);
        Some(engine)
    }
}
