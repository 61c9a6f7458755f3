//! The stacks and memories of this process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use devmem_posix::{Engine, FD_BASE, Settings};
use devmem_uapi::Errno;
use netmem::Dmabuf;

use crate::failure::Failure;
use crate::handles::Handles;
use crate::settings::{SettingsError, parse};

/// A stack with its background thread.
#[derive(Debug)]
pub struct OpenStack {
    engine: Engine,
}

/// Most files of one stack (`Table` has no more).
const FILES_OF_A_STACK: i32 = 1 << 16;

/// Number of stacks with distinct descriptor ranges: as many as fit above [`FD_BASE`].
const MAX_BASES: u16 = 32_512;
const _: () = assert!(FD_BASE as i64 + MAX_BASES as i64 * FILES_OF_A_STACK as i64 == 1 << 31);

static STACKS: Handles<OpenStack> = Handles::new();
static MEMORIES: Handles<Dmabuf> = Handles::new();

impl OpenStack {
    /// Returns its sockets.
    pub fn posix(&self) -> &devmem_posix::Posix<devmem_posix::RealTime> {
        self.engine.posix()
    }
}

/// Opens a stack and returns its number.
pub(crate) fn open(link: &str, settings: &str) -> Result<usize, Failure> {
    let only = open_shards(link, settings, 1)?.pop();
    Ok(only.ok_or(Errno::EIO)?)
}

/// Opens a NIC with `shards` shards and returns the number of the stack of each.
pub(crate) fn open_shards(
    link: &str,
    settings: &str,
    shards: usize,
) -> Result<Vec<usize>, Failure> {
    let builder = parse(link, settings).map_err(|error| match error {
        SettingsError::Library(error) => Failure::of_open(&error),
        SettingsError::Setting(text) => Failure::new(Errno::EINVAL, text),
    })?;
    // The library refuses more than 64.
    let shards = u16::try_from(shards).unwrap_or(u16::MAX);
    let opened = builder.shards(shards).open_stacks();
    let opened = opened.map_err(|error| Failure::of_open(&error))?;
    let started = Engine::start(opened, || Settings {
        fd_base: next_fd_base(),
        ..Settings::default()
    });
    let started = started.map_err(|error| Failure::of(Errno::ENOMEM, &error))?;
    let insert = |engine| STACKS.insert(OpenStack { engine });
    Ok(started.into_iter().map(insert).collect())
}

/// Returns the number of a new stack's first descriptor. Each stack has a distinct range, so that a descriptor is EBADF in
/// another stack; ranges repeat after tens of thousands of stacks.
fn next_fd_base() -> i32 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed) % MAX_BASES;
    FD_BASE + i32::from(number) * FILES_OF_A_STACK
}

/// Returns the stack with this number; EBADF if there is none, EOWNERDEAD if it belongs to the parent of this process.
pub(crate) fn stack(number: usize) -> Result<Arc<OpenStack>, Failure> {
    STACKS
        .get(number)
        .map_err(|errno| Failure::of_handle(errno, "stack"))
}

/// Closes a stack: when its last call has returned, its connections are closed and its thread ends.
pub(crate) fn close(number: usize) -> Result<(), Failure> {
    let removed = STACKS.remove(number);
    let stack = removed.map_err(|errno| Failure::of_handle(errno, "stack"))?;
    // Blocked calls on the stack end with EBADF.
    stack.posix().call(devmem_posix::Table::close_all);
    Ok(())
}

/// Allocates a memory and returns its number.
pub(crate) fn new_memory(bytes: usize) -> Result<usize, Failure> {
    let memory = Dmabuf::anonymous(bytes).map_err(|error| Failure::of(Errno::ENOMEM, &error))?;
    Ok(MEMORIES.insert(memory))
}

/// Adds a memory that the kernel exported, and returns its number.
pub(crate) fn add_memory(made: Result<Dmabuf, devmem_tcp::Error>) -> Result<usize, Failure> {
    let memory = made.map_err(|error| Failure::of(error.errno(), &error))?;
    Ok(MEMORIES.insert(memory))
}

/// Returns the memory with this number; EBADF and EOWNERDEAD as [`stack`].
pub(crate) fn memory(number: usize) -> Result<Arc<Dmabuf>, Failure> {
    MEMORIES
        .get(number)
        .map_err(|errno| Failure::of_handle(errno, "memory"))
}

/// Frees the handle of a memory; bindings and lent frags keep the memory itself.
pub(crate) fn free_memory(number: usize) -> Result<(), Failure> {
    let removed = MEMORIES.remove(number);
    removed
        .map(drop)
        .map_err(|errno| Failure::of_handle(errno, "memory"))
}
