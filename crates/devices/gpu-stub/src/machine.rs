//! The state of the driver: devices and memory, and what else exists.
//!
// UNSAFETY: maps memory files.
#![allow(unsafe_code)]

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::plan::Plan;
use crate::ptx::Program;
use crate::streams::{Event, Stream};

pub(crate) const INVALID_VALUE: i32 = 1;
pub(crate) const OUT_OF_MEMORY: i32 = 2;
pub(crate) const NOT_INITIALIZED: i32 = 3;
pub(crate) const DEINITIALIZED: i32 = 4;
pub(crate) const INVALID_CONTEXT: i32 = 201;
pub(crate) const INVALID_HANDLE: i32 = 400;
pub(crate) const ILLEGAL_ADDRESS: i32 = 700;

const FILE_FLAGS: u32 = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
const LARGE_PAGE_BYTES: usize = 2 << 20;

thread_local! {
    /// The contexts that are current in this thread, as numbers of devices from 1.
    pub(crate) static CURRENT: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    /// The mode of this thread while another one captures a graph.
    pub(crate) static CAPTURE_MODE: Cell<i32> = const { Cell::new(0) };
}

/// The whole driver.
pub(crate) struct Machine {
    pub(crate) plan: Plan,
    /// The process that called cuInit.
    pub(crate) initialised: Option<u32>,
    pub(crate) retained: BTreeMap<usize, usize>,
    pub(crate) memory: BTreeMap<u64, Memory>,
    /// Registered host memory: address and bytes.
    pub(crate) registered: BTreeMap<usize, usize>,
    pub(crate) streams: BTreeMap<usize, Stream>,
    pub(crate) events: BTreeMap<usize, Event>,
    /// Loaded device code.
    pub(crate) modules: BTreeMap<usize, Arc<Program>>,
    /// The module that a function is in.
    pub(crate) functions: BTreeMap<usize, usize>,
    next_handle: usize,
    pub(crate) submissions: usize,
    allocations: u64,
    /// Addresses of memory that was freed, with its bytes.
    freed: Vec<(u64, usize)>,
}

/// Memory that functions access: `len` bytes at the address `start`, which are at `bytes`.
#[derive(Clone, Copy, Default)]
pub(crate) struct KernelRange {
    start: u64,
    len: u64,
    bytes: usize,
}

impl KernelRange {
    pub(crate) fn has(self, address: u64, len: u64) -> bool {
        let offset = address.checked_sub(self.start);
        offset.is_some_and(|offset| offset < self.len && len <= self.len - offset)
    }

    /// Returns where bytes are, if they are in the range, and aligned as a whole.
    pub(crate) fn bytes_at(self, address: u64, len: u64) -> Option<usize> {
        let is_right = self.has(address, len) && address.is_multiple_of(len);
        is_right.then(|| self.bytes + (address - self.start) as usize)
    }
}

/// Device memory: nobody can access `address`; the bytes are at `bytes`.
pub(crate) struct Memory {
    pub(crate) size: usize,
    pub(crate) device: usize,
    pub(crate) file: i32,
    /// No other allocation has this number.
    pub(crate) id: u64,
    bytes: usize,
}

/// Returns the driver.
pub(crate) fn machine() -> MutexGuard<'static, Machine> {
    static MACHINE: OnceLock<Mutex<Machine>> = OnceLock::new();
    let machine = MACHINE.get_or_init(|| {
        Mutex::new(Machine {
            plan: Plan::of_environment(),
            initialised: None,
            retained: BTreeMap::new(),
            memory: BTreeMap::new(),
            registered: BTreeMap::new(),
            streams: BTreeMap::new(),
            events: BTreeMap::new(),
            modules: BTreeMap::new(),
            functions: BTreeMap::new(),
            next_handle: 0,
            submissions: 0,
            allocations: 0,
            freed: Vec::new(),
        })
    });
    machine.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Machine {
    pub(crate) fn handle(&mut self) -> usize {
        self.next_handle += 0x10;
        self.next_handle
    }

    /// Returns the number of the device whose context is current in this thread.
    pub(crate) fn current(&self) -> Result<usize, i32> {
        CURRENT
            .with_borrow(|stack| stack.last().copied())
            .ok_or(INVALID_CONTEXT)
    }

    /// Logs what is still allocated.
    pub(crate) fn log_left(&mut self) {
        let left = format!(
            "left memory={} registered={} streams={} events={} modules={} contexts={}",
            self.memory.len(),
            self.registered.len(),
            self.streams.len(),
            self.events.len(),
            self.modules.len(),
            self.retained.values().sum::<usize>(),
        );
        self.plan.log(&left);
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.plan.lost.is_some_and(|after| self.submissions > after)
    }

    pub(crate) fn alloc(&mut self, size: usize) -> Result<u64, i32> {
        let device = self.current()?;
        let used: usize = self.memory.values().map(|memory| memory.size).sum();
        if size == 0 {
            return Err(INVALID_VALUE);
        }
        if used + size > self.plan.memory {
            return Err(OUT_OF_MEMORY);
        }
        // SAFETY: a terminated name; the file belongs to this memory from here on.
        let file = unsafe { libc::memfd_create(c"stub-gpu".as_ptr(), FILE_FLAGS) };
        // SAFETY: the descriptor was opened above.
        assert_eq!(unsafe { libc::ftruncate(file, size as i64) }, 0);
        let bytes = map(size, libc::PROT_READ | libc::PROT_WRITE, file);
        let again = self.freed.iter().rposition(|(_, freed)| *freed == size);
        let address = match again {
            Some(at) => self.freed.swap_remove(at).0,
            None => {
                let address = map(size + LARGE_PAGE_BYTES, libc::PROT_NONE, -1);
                address.next_multiple_of(LARGE_PAGE_BYTES) as u64
            }
        };
        self.allocations += 1;
        let id = self.allocations;
        self.memory.insert(
            address,
            Memory {
                size,
                device,
                file,
                id,
                bytes,
            },
        );
        Ok(address)
    }

    pub(crate) fn free(&mut self, address: u64) -> Result<(), i32> {
        let memory = self.memory.remove(&address).ok_or(INVALID_VALUE)?;
        // The addresses stay reserved, so that none is given twice, unless the plan says so.
        if self.plan.reuse {
            self.freed.push((address, memory.size));
        }
        // SAFETY: mapped by `alloc`, with this length, and unmapped here only.
        unsafe { libc::munmap(ptr::with_exposed_provenance_mut(memory.bytes), memory.size) };
        // SAFETY: opened by `alloc`, and closed here only.
        unsafe { libc::close(memory.file) };
        Ok(())
    }

    /// Returns the allocation of an address.
    pub(crate) fn find(&self, address: u64) -> Option<(u64, &Memory)> {
        let (&start, memory) = self.memory.range(..=address).next_back()?;
        (address < start + memory.size as u64).then_some((start, memory))
    }

    /// Returns where the bytes of a range of device memory are.
    pub(crate) fn device_bytes(&self, address: u64, len: usize) -> Result<usize, i32> {
        let (start, memory) = self.find(address).ok_or(INVALID_VALUE)?;
        let offset = (address - start) as usize;
        match offset + len <= memory.size {
            true => Ok(memory.bytes + offset),
            false => Err(INVALID_VALUE),
        }
    }

    /// Returns the memory of an address that functions access: device memory, or registered memory of the host.
    pub(crate) fn range_for_kernels(&self, address: u64) -> Option<KernelRange> {
        if let Some((start, memory)) = self.find(address) {
            let (len, bytes) = (memory.size as u64, memory.bytes);
            return Some(KernelRange { start, len, bytes });
        }
        let (&start, &size) = self.registered.range(..=address as usize).next_back()?;
        let range = KernelRange {
            start: start as u64,
            len: size as u64,
            bytes: start,
        };
        range.has(address, 1).then_some(range)
    }

    /// Returns whether a range of host memory is registered.
    pub(crate) fn is_registered(&self, address: usize, len: usize) -> bool {
        let found = self.registered.range(..=address).next_back();
        found.is_some_and(|(start, size)| address + len <= start + size)
    }
}

/// # Panics
///
/// When there is no memory: the test cannot go on.
fn map(size: usize, protection: i32, file: i32) -> usize {
    let flags = match file {
        -1 => libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        _ => libc::MAP_SHARED,
    };
    // SAFETY: without MAP_FIXED, mmap uses free addresses and changes no other mapping.
    let start = unsafe { libc::mmap(ptr::null_mut(), size, protection, flags, file, 0) };
    assert_ne!(start, libc::MAP_FAILED, "{size} bytes of address space");
    start.expose_provenance()
}
