//! The copies of a device, between its memory and the host's.

mod crc32c;

use std::any::Any;
use std::sync::{Arc, Mutex};

use netmem::{
    CopyEngine, CopyPiece, CopyWay, DeviceAt, DeviceError, Exporter, Fence, HostWindow, Lane,
    PieceList, Pinned,
};

use crate::allocation::Allocation;
use crate::sys::chunk_sums::ChunkSums;
use crate::sys::copies::{Copies, CopyKind, out_of_range};
use crate::sys::lanes::Lanes;
use crate::sys::memory::{DeviceMemory, Registration};
use crate::sys::piece_copier::PieceCopier;

/// The copy engine of a device.
pub(crate) struct Engine {
    pub(crate) lanes: Arc<Lanes>,
    /// The code that computes checksums, once it was loaded. Lock order: before those of the lanes.
    chunk_sums: Mutex<Option<Arc<ChunkSums>>>,
    /// The code that copies pieces in each lane; `None`: the driver has none, or does not take it.
    copiers: Option<[PieceCopier; 3]>,
}

impl CopyEngine for Engine {
    fn device(&self) -> String {
        self.lanes.context.name()
    }

    fn pin(&self, memory: HostWindow) -> Result<Pinned, DeviceError> {
        Ok(Box::new(Registration::new(&self.lanes, memory)?))
    }

    fn submit(
        &self,
        lane: Lane,
        way: CopyWay<'_>,
        pieces: &[CopyPiece],
    ) -> Result<Fence, DeviceError> {
        let copies = self.copies(way, pieces).ok_or_else(out_of_range)?;
        if PieceCopier::suits(&copies)
            && self.lanes.has_own_addresses()
            && let Some(copiers) = &self.copiers
        {
            return copiers[lane as usize].submit(lane, &copies);
        }
        self.lanes.submit(lane, &copies)
    }

    fn submit_list(
        &self,
        lane: Lane,
        way: CopyWay<'_>,
        list: &PieceList,
    ) -> Result<Option<Fence>, DeviceError> {
        let Some(copiers) = &self.copiers else {
            return Ok(None);
        };
        if !PieceCopier::takes(list) || !self.lanes.has_own_addresses() {
            return Ok(None);
        }
        let sides = self.copies(way, &[]).ok_or_else(out_of_range)?;
        let fence = copiers[lane as usize].submit_list(lane, &sides, list)?;
        Ok(Some(fence))
    }

    fn is_done(&self, fence: Fence) -> Result<bool, DeviceError> {
        self.lanes.is_done(fence)
    }

    fn wait(&self, fence: Fence) -> Result<(), DeviceError> {
        self.lanes.wait(fence)
    }

    fn read(&self, from: DeviceAt<'_>, out: &mut [u8]) -> Result<(), DeviceError> {
        if out.is_empty() {
            return Ok(());
        }
        let memory = self.device_side(from.memory).ok_or_else(out_of_range)?;
        memory.read(from.offset, out)
    }

    fn write(&self, to: DeviceAt<'_>, bytes: &[u8]) -> Result<(), DeviceError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let memory = self.device_side(to.memory).ok_or_else(out_of_range)?;
        memory.write(to.offset, bytes)
    }

    fn crc32c(&self, from: DeviceAt<'_>, len: usize) -> Result<Option<u32>, DeviceError> {
        let memory = self.device_side(from.memory).ok_or_else(out_of_range)?;
        self.crc32c_at(memory, from.offset, len)
    }
}

impl Engine {
    pub(crate) fn new(lanes: Arc<Lanes>) -> Self {
        // Not when it is first needed: a driver that loads code may wait for the kernels of the program, and these for the copies. Without the code, each
        // copy is one of its own; a device that is lost says so to the next call.
        let copiers = PieceCopier::load(&lanes).ok().flatten();
        Self {
            lanes,
            chunk_sums: Mutex::default(),
            copiers,
        }
    }

    /// Returns whether many pieces are copied by one call of the driver.
    pub(crate) fn batches_copies(&self) -> bool {
        self.copiers.is_some() || self.lanes.context.driver.batches_copies()
    }

    /// Returns the copies with the addresses of their sides; `None` for memory of others.
    fn copies<'a>(&self, way: CopyWay<'a>, pieces: &'a [CopyPiece]) -> Option<Copies<'a>> {
        let (kind, from, to, revocations) = match way {
            CopyWay::In { from, to } => {
                let (host, memory) = (self.host_side(from)?, self.device_side(to)?);
                let revocations = [memory.revocation(); 2];
                (CopyKind::In, host.extent(), memory.extent(), revocations)
            }
            CopyWay::Out { from, to } => {
                let (memory, host) = (self.device_side(from)?, self.host_side(to)?);
                let revocations = [memory.revocation(); 2];
                (CopyKind::Out, memory.extent(), host.extent(), revocations)
            }
            CopyWay::Within { from, to } => {
                let (from, to) = (self.device_side(from)?, self.device_side(to)?);
                let revocations = [from.revocation(), to.revocation()];
                (CopyKind::Within, from.extent(), to.extent(), revocations)
            }
        };
        let lens = pieces.iter().map(|piece| piece.len);
        Some(Copies {
            kind,
            from,
            to,
            revocations,
            pieces,
            bytes: lens.fold(0, usize::wrapping_add),
        })
    }

    fn device_side<'a>(&self, memory: &'a dyn Exporter) -> Option<&'a DeviceMemory> {
        let any: &dyn Any = memory;
        let memory = any.downcast_ref::<Allocation>()?.memory();
        Arc::ptr_eq(&memory.lanes, &self.lanes).then_some(memory)
    }

    fn host_side<'a>(&self, pinned: &'a Pinned) -> Option<&'a Registration> {
        let registration = pinned.downcast_ref::<Registration>()?;
        Arc::ptr_eq(&registration.lanes, &self.lanes).then_some(registration)
    }
}
