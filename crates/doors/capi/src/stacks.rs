//! The stacks and memories of this process, and the reason of each thread's last failed call.

use std::cell::RefCell;
use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use devmem_posix::{Engine, FD_BASE, Settings};
use devmem_uapi::Errno;
use netmem::Dmabuf;

use crate::handles::Handles;
use crate::settings::parse;

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

thread_local! {
    /// The text that `dmt_error` returns to this thread.
    static LAST_ERROR: RefCell<CString> = RefCell::default();
}

impl OpenStack {
    /// Returns its sockets.
    pub fn posix(&self) -> &devmem_posix::Posix<devmem_posix::RealTime> {
        self.engine.posix()
    }
}

/// Opens a stack and returns its number.
pub(crate) fn open(link: &str, settings: &str) -> Result<usize, Errno> {
    let builder = parse(link, settings).map_err(|error| explain(Errno::EINVAL, &error))?;
    let opened = devmem_tcp::internals::into_stack(builder);
    let (stack, fds) = opened.map_err(|error| explain(error.errno(), &error))?;
    let settings = Settings {
        fd_base: next_fd_base(),
        ..Settings::default()
    };
    let engine =
        Engine::start(stack, settings, fds).map_err(|error| explain(Errno::ENOMEM, &error))?;
    Ok(STACKS.insert(OpenStack { engine }))
}

/// Returns the number of a new stack's first descriptor. Each stack has a distinct range, so that a descriptor is EBADF in
/// another stack; ranges repeat after tens of thousands of stacks.
fn next_fd_base() -> i32 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed) % MAX_BASES;
    FD_BASE + i32::from(number) * FILES_OF_A_STACK
}

/// Stores the error with its chain of causes for `dmt_error`, and returns the errno.
pub(crate) fn explain(errno: Errno, error: &dyn std::error::Error) -> Errno {
    let mut text = error.to_string();
    let mut reason = error.source();
    while let Some(next) = reason {
        let cause = next.to_string();
        // Errors of the library include the text of their cause.
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
        reason = next.source();
    }
    // Our messages do not contain a NUL.
    let text = CString::new(text).unwrap_or_default();
    LAST_ERROR.with(|last| last.replace(text));
    errno
}

/// Calls `with` with the last error text of this thread.
pub(crate) fn with_last_error<T>(with: impl FnOnce(&CString) -> T) -> T {
    LAST_ERROR.with(|last| with(&last.borrow()))
}

/// Returns the stack with this number; EBADF if there is none, EOWNERDEAD if it belongs to the parent of this process.
pub(crate) fn stack(number: usize) -> Result<Arc<OpenStack>, Errno> {
    STACKS.get(number)
}

/// Closes a stack: when its last call has returned, its connections are closed and its thread ends.
pub(crate) fn close(number: usize) -> Result<(), Errno> {
    let stack = STACKS.remove(number)?;
    // Blocked calls on the stack end with EBADF.
    stack.posix().call(devmem_posix::Table::close_all);
    Ok(())
}

/// Allocates a memory and returns its number.
pub(crate) fn new_memory(bytes: usize) -> Result<usize, Errno> {
    let memory = Dmabuf::anonymous(bytes).map_err(|error| explain(Errno::ENOMEM, &error))?;
    Ok(MEMORIES.insert(memory))
}

/// Returns the memory with this number; EBADF and EOWNERDEAD as [`stack`].
pub(crate) fn memory(number: usize) -> Result<Arc<Dmabuf>, Errno> {
    MEMORIES.get(number)
}

/// Frees the handle of a memory; bindings and lent frags keep the memory itself.
pub(crate) fn free_memory(number: usize) -> Result<(), Errno> {
    MEMORIES.remove(number).map(drop)
}
