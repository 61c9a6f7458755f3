//! Registered memory.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use transfer::exchange::{Access, Memory, Region};

use crate::comm::Comm;
use crate::failure::{Code, Failure};
use crate::ffi::host::{HostRange, Ordered};
use crate::numbers::Table;

static MEMORIES: Table<Registration> = Table::new();

/// How received bytes are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Writing {
    /// In any order.
    Any,
    /// Ascending, each aligned word at once: a GPU may be polling the memory meanwhile (NCCL's protocols LL and LL128).
    Ordered,
}

/// Memory as NCCL has registered it.
pub(crate) struct Registration {
    /// Address of the first byte, as NCCL names it.
    base: usize,
    size: usize,
    regions: Regions,
}

enum Regions {
    Host {
        range: Arc<HostRange>,
        any: Region,
        ordered: Region,
    },
    Dmabuf(Region),
}

impl Registration {
    fn add(self) -> Result<u64, Failure> {
        let full = || {
            Failure::new(
                Code::Internal,
                "the plugin has used up its numbers; restart the process",
            )
        };
        MEMORIES.insert(self).ok_or_else(full)
    }

    /// Returns the region, and the range of it that begins at the address `data`.
    pub(crate) fn part(
        &self,
        data: usize,
        len: usize,
        writing: Writing,
    ) -> Result<(Region, Range<usize>), Failure> {
        let start = data.checked_sub(self.base);
        let range = start.and_then(|start| Some(start..start.checked_add(len)?));
        let range = range.filter(|range| range.end <= self.size);
        let range = range.ok_or_else(|| {
            let size = self.size;
            Failure::new(
                Code::Internal,
                format!("{len} bytes at {data:#x} are outside of the registered memory, {size} bytes at {:#x}", self.base),
            )
        })?;
        let region = match (&self.regions, writing) {
            (Regions::Host { any, .. }, Writing::Any) => any,
            (Regions::Host { ordered, .. }, Writing::Ordered) => ordered,
            (Regions::Dmabuf(region), _) => region,
        };
        Ok((region.clone(), range))
    }
}

/// Registers host memory.
pub(crate) fn register_host(comm: &Comm, range: HostRange) -> Result<u64, Failure> {
    let range = Arc::new(range);
    let ordered = Arc::new(Ordered::new(Arc::clone(&range)));
    let fabric = comm.fabric();
    Registration {
        base: range.address(),
        size: range.len(),
        regions: Regions::Host {
            any: fabric.register(Memory::Host(Arc::clone(&range) as _), Access::PRIVATE)?,
            ordered: fabric.register(Memory::Host(ordered), Access::PRIVATE)?,
            range,
        },
    }
    .add()
}

/// Registers a range of a dma-buf, whose descriptor the caller may close afterwards.
pub(crate) fn register_dmabuf(
    comm: &Comm,
    base: usize,
    range: Range<usize>,
    fd: BorrowedFd<'_>,
) -> Result<u64, Failure> {
    let size = range.len();
    let region = comm
        .fabric()
        .register_range(Memory::Fd(fd), range, Access::PRIVATE)?;
    Registration {
        base,
        size,
        regions: Regions::Dmabuf(region),
    }
    .add()
}

/// Returns registered memory.
pub(crate) fn registered(number: u64) -> Result<Arc<Registration>, Failure> {
    MEMORIES
        .get(number)
        .ok_or_else(|| Failure::no_such("memory handle"))
}

/// Deregisters memory. From then on nothing touches host memory; operations that still need it break their communicator.
pub(crate) fn deregister(number: u64) -> Result<(), Failure> {
    let registration = MEMORIES
        .remove(number)
        .ok_or_else(|| Failure::no_such("memory handle"))?;
    registration.revoke();
    Ok(())
}

impl Registration {
    fn revoke(&self) {
        if let Regions::Host { range, .. } = &self.regions {
            range.revoke();
        }
    }
}

/// Deregisters everything, when the library is unloaded.
pub(crate) fn unload() {
    for registration in MEMORIES.remove_if(|_| true) {
        registration.revoke();
    }
}
