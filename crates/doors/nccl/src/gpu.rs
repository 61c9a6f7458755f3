//! Memory of GPUs: whether the plugin takes it, and what is registered.
//!
//! A range of GPU memory is adopted once per NIC, however often NCCL registers it or a part of it, each time with a new dma-buf: with one
//! dma-buf, and at most one binding for sending. What identifies it is the number of its allocation, which the driver
//! gives to no other one, so an address at which other memory was allocated later is not mistaken for the old one. When the last
//! registration ends, copies end, too: the owner frees the memory next.
//!
//! The pool of a NIC is on a GPU where memory of GPUs is taken: then the GPU gathers by copies within its own memory, and the kernel's NIC writes
//! to it directly. With a pool in host memory each frag would be a copy over the bus that the CPU starts. Host memory that is
//! registered is still received, by a copy that the GPU makes.

use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use devmem_tcp::cuda::{self, Allocation, Place};
use devmem_tcp::{Dmabuf, Netdev};

use crate::config::{self, Backend, Config, GpuChoice, Ll128};
use crate::failure::{Code, Failure};
use crate::raw::gpu::{Exported, GpuRange};
use crate::raw::log;

/// For each NIC why it takes no memory of GPUs, or `None`; decided once, because the properties must always say the same.
static OFFERS: OnceLock<Vec<Option<String>>> = OnceLock::new();

static SHARED: Mutex<Cache> = Mutex::new(Cache {
    entries: Vec::new(),
    last: 0,
});

/// Bytes of the memory with which a NIC of the kernel is tried.
const TRIAL_BYTES: usize = 4096;

/// Decides at the first call which NICs take memory of GPUs, and logs why others do not.
pub(crate) fn decide(config: &Config) {
    OFFERS.get_or_init(|| {
        let decide = |device: &crate::config::Device| {
            let refusal = refusal(config, &device.backend);
            let name = device.name.to_string_lossy();
            log::info(&match &refusal {
                Some(reason) => format!("NET/Devmem: {name} takes host memory only: {reason}"),
                None => format!("NET/Devmem: {name} takes host memory and memory of GPUs"),
            });
            refusal
        };
        config.devices.iter().map(decide).collect()
    });
}

/// Returns whether a NIC takes memory of GPUs.
pub(crate) fn is_offered(device: usize) -> bool {
    why_not(device).is_none()
}

/// Returns why a NIC takes no memory of GPUs, if it takes none.
pub(crate) fn why_not(device: usize) -> Option<String> {
    let offers = OFFERS.get().and_then(|offers| offers.get(device));
    offers
        .cloned()
        .unwrap_or_else(|| Some("init was not called".to_owned()))
}

fn refusal(config: &Config, backend: &Backend) -> Option<String> {
    if config.gpu == GpuChoice::None {
        return Some("NCCL_DEVMEM_GPU is none".to_owned());
    }
    let exporting = match cuda::exporting() {
        Ok(exporting) => exporting,
        Err(error) => return Some(error.to_string()),
    };
    let can = match config.gpu {
        GpuChoice::Ordinal(ordinal) => exporting.get(ordinal as usize).copied(),
        _ => Some(exporting.contains(&true)),
    };
    if can != Some(true) {
        return Some(
            "no GPU here exports dma-bufs; they need NVIDIA's open kernel module".to_owned(),
        );
    }
    // A copy of the GPU may write the end of a line of LL128 before its beginning.
    if config.ll128 == Ll128::Possible {
        return Some(
            "NCCL may use its protocol LL128, which needs bytes in an order that copies of a GPU do not promise; set \
             NCCL_PROTO=^LL128 on all ranks for memory of GPUs"
                .to_owned(),
        );
    }
    match backend {
        // Payload is staged in host memory, and the GPU copies it.
        Backend::User { .. } => None,
        Backend::Kernel(interface) => try_to_send(config, interface).err().map(|failure| {
            let reason = failure.text.unwrap_or_default();
            format!("{interface} cannot send from memory of GPUs: {reason}")
        }),
    }
}

/// Tries whether a NIC of the kernel can send from memory of a GPU.
fn try_to_send(config: &Config, interface: &str) -> Result<(), Failure> {
    let memory = pool(config, TRIAL_BYTES)?;
    let nic = Netdev::kernel(interface)?;
    drop(nic.bind_tx(&memory)?);
    Ok(())
}

/// Allocates memory of the GPU that the settings name, or that the calling thread uses.
pub(crate) fn pool(config: &Config, bytes: usize) -> Result<Dmabuf, Failure> {
    Ok(cuda::alloc(ordinal(config)?, bytes)?)
}

/// Returns the number of that GPU.
pub(crate) fn ordinal(config: &Config) -> Result<u32, Failure> {
    Ok(match config.gpu {
        GpuChoice::Ordinal(ordinal) => ordinal,
        GpuChoice::Current | GpuChoice::None => cuda::selected()?.unwrap_or(0),
    })
}

/// Returns whether the driver knows an address as one of a GPU.
pub(crate) fn is_known(address: u64) -> bool {
    cuda::locate(address).is_ok()
}

/// Ranges that are registered.
struct Cache {
    entries: Vec<Entry>,
    last: u64,
}

struct Entry {
    number: u64,
    /// Index of the NIC.
    device: usize,
    place: Place,
    addresses: Range<u64>,
    /// Where the range begins in the memory.
    offset: usize,
    memory: Dmabuf,
    allocation: Arc<Allocation>,
    registrations: usize,
}

/// A registration of a range that others may have registered, too.
pub(crate) struct Shared {
    pub(crate) memory: Dmabuf,
    /// The bytes of the registration in it.
    pub(crate) range: Range<usize>,
    pub(crate) share: Share,
}

/// Counts as a registration until it is [ended](Self::end) or dropped.
pub(crate) struct Share {
    number: u64,
    is_ended: Mutex<bool>,
}

fn cache() -> MutexGuard<'static, Cache> {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers a range on a NIC: a new one, or a part of one that is registered.
pub(crate) fn share(
    device: usize,
    range: GpuRange,
    exported: Option<Exported<'_>>,
) -> Result<Shared, Failure> {
    let place = cuda::locate(range.address())?;
    let end = range.address().checked_add(range.len() as u64);
    let end = end.filter(|end| *end > range.address());
    let end = end.ok_or_else(|| {
        let text = format!(
            "{} bytes at {:#x} are no memory",
            range.len(),
            range.address()
        );
        Failure::new(Code::Internal, text)
    })?;
    // Locked before the locks of the fabric and of the GPU.
    let mut cache = cache();
    let known = cache.entries.iter_mut().find(|entry| {
        entry.device == device
            && entry.place == place
            && place.allocation != 0
            && entry.addresses.start <= range.address()
            && end <= entry.addresses.end
    });
    if let Some(entry) = known {
        entry.registrations += 1;
        return Ok(entry.shared(range));
    }
    let gpu = cuda::open(place.device)?;
    let adopted = match exported {
        Some(Exported { fd, offset }) => range.adopt_exported(&gpu, duplicate(fd)?, offset)?,
        None => {
            let adopted = range.adopt(&gpu)?;
            // A NIC of the kernel needs a dma-buf; where it is refused, the reason is told here.
            if config::current()?.is_kernel(device) {
                adopted.allocation.export()?;
            }
            adopted
        }
    };
    cache.last += 1;
    let entry = Entry {
        number: cache.last,
        device,
        place,
        addresses: range.address()..end,
        offset: adopted.offset,
        memory: adopted.allocation.dmabuf(),
        allocation: adopted.allocation,
        registrations: 1,
    };
    let shared = entry.shared(range);
    cache.entries.push(entry);
    Ok(shared)
}

fn duplicate(fd: BorrowedFd<'_>) -> Result<std::os::fd::OwnedFd, Failure> {
    fd.try_clone_to_owned()
        .map_err(|error| Failure::new(Code::System, format!("dup of a dma-buf: {error}")))
}

impl Entry {
    /// Returns a registration that has been counted, of a range inside of this one.
    fn shared(&self, range: GpuRange) -> Shared {
        let inside = (range.address() - self.addresses.start) as usize;
        let start = self.offset + inside;
        Shared {
            memory: self.memory.clone(),
            range: start..start + range.len(),
            share: Share {
                number: self.number,
                is_ended: Mutex::new(false),
            },
        }
    }
}

impl Share {
    /// Ends the registration. With the last one of a range its copies end, before this returns.
    pub(crate) fn end(&self) {
        let mut is_ended = self.is_ended.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *is_ended, true) {
            return;
        }
        let mut cache = cache();
        let found = cache.entries.iter().position(|it| it.number == self.number);
        let Some(at) = found else { return };
        cache.entries[at].registrations -= 1;
        if cache.entries[at].registrations > 0 {
            return;
        }
        let entry = cache.entries.swap_remove(at);
        drop(cache);
        entry.allocation.revoke();
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.end();
    }
}
