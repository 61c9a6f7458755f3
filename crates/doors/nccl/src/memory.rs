//! Registered memory.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use exchange::{Access, Memory, Region};

use crate::comm::{Comm, Direction};
use crate::failure::{Code, Failure};
use crate::gpu::{self, Share};
use crate::numbers::Table;
use crate::raw::gpu::{Exported, GpuRange};
use crate::raw::host::{HostRange, Ordered};

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
    Gpu {
        region: Region,
        share: Share,
    },
}

impl Registration {
    fn add(self) -> Result<u64, Failure> {
        MEMORIES.insert(self)
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
            (Regions::Dmabuf(region) | Regions::Gpu { region, .. }, _) => region,
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

/// Returns whether an address is to be registered as memory of a GPU.
pub(crate) fn is_on_gpu(comm: &Comm, address: u64) -> bool {
    gpu::is_offered(comm.device()) && gpu::is_known(address)
}

/// Registers GPU memory with its dma-buf, whose descriptor the caller may close afterwards.
pub(crate) fn register_exported(
    comm: &Comm,
    range: GpuRange,
    exported: Exported<'_>,
) -> Result<u64, Failure> {
    register_on_gpu(comm, range, Some(exported)).inspect_err(|failure| {
        comm.note_refusal(failure.text.as_deref().unwrap_or_default());
    })
}

/// Registers GPU memory without a dma-buf: what NCCL does when there is none, or when that was refused.
pub(crate) fn register_gpu(comm: &Comm, range: GpuRange) -> Result<u64, Failure> {
    let refused = |text: &str| {
        let mut text = format!("GPU memory cannot be registered by its address: {text}");
        if let Some(refusal) = comm.refusal() {
            text += &format!("; nor could memory of this communicator as a dma-buf: {refusal}");
        }
        Failure::new(Code::Internal, text)
    };
    if let Some(reason) = gpu::why_not(comm.device()) {
        return Err(refused(&reason));
    }
    register_on_gpu(comm, range, None)
        .map_err(|failure| refused(failure.text.as_deref().unwrap_or_default()))
}

/// All refusals have the code that makes NCCL go on without the registration, where it can.
fn register_on_gpu(
    comm: &Comm,
    range: GpuRange,
    exported: Option<Exported<'_>>,
) -> Result<u64, Failure> {
    let internal = |failure: Failure| Failure {
        code: Code::Internal,
        ..failure
    };
    let shared = gpu::share(comm.device(), range, exported).map_err(internal)?;
    let fabric = comm.fabric();
    let memory = Memory::Device(&shared.memory);
    let region = fabric
        .register_range(memory, shared.range.clone(), Access::PRIVATE)
        .map_err(|error| internal(error.into()))?;
    if comm.direction() == Direction::Send {
        fabric
            .bind_tx(&region)
            .map_err(|error| internal(error.into()))?;
    }
    Registration {
        // The addresses of a process have the width of a pointer.
        base: range.address() as usize,
        size: range.len(),
        regions: Regions::Gpu {
            region,
            share: shared.share,
        },
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
        match &self.regions {
            Regions::Host { range, .. } => range.revoke(),
            Regions::Gpu { share, .. } => share.end(),
            // The pages stay as long as somebody has the dma-buf.
            Regions::Dmabuf(_) => {}
        }
    }
}

/// Deregisters everything, when the library is unloaded.
pub(crate) fn unload() {
    for registration in MEMORIES.remove_if(|_| true) {
        registration.revoke();
    }
}
