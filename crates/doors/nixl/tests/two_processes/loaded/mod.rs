// UNSAFETY: loads the plugin and calls its C interface, with pointers to memory of this file.

//! The built library, through its C interface, and memory that it transfers.
#![allow(unsafe_code)]

mod memory;
mod texts;

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::{Mutex, MutexGuard, OnceLock};

use devmem_linux::test_util::built_library;
use libloading::Library;

use crate::setup::setup;
pub use memory::Memory;
use texts::{Notice, Pair, Put, Text, notice, put};

/// Numbers of NIXL.
pub const IN_PROGRESS: i32 = 1;
pub const SUCCESS: i32 = 0;
pub const NOT_POSTED: i32 = -1;
pub const INVALID_PARAM: i32 = -2;
pub const BACKEND: i32 = -3;
pub const NOT_FOUND: i32 = -4;
pub const MISMATCH: i32 = -5;
pub const NOT_ALLOWED: i32 = -6;
pub const REPOST_ACTIVE: i32 = -7;
pub const NOT_SUPPORTED: i32 = -9;
pub const REMOTE_DISCONNECT: i32 = -10;

fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        // SAFETY: the library's constructors are those of Rust and C++ libraries.
        unsafe { Library::new(built_library("libplugin_DEVMEM.so")) }.expect("the library loads")
    })
}

/// A range of memory, as the library wants it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Range {
    pub address: u64,
    pub len: u64,
    pub region: u64,
}

/// Calls a function of the library by its name.
macro_rules! call {
    ($name:literal, ($($type:ty),*) $(-> $result:ty)?, ($($arg:expr),*)) => {{
        type Function = unsafe extern "C" fn($($type),*) $(-> $result)?;
        // SAFETY: the function has this type (devmem_nixl.h).
        let function = unsafe { library().get::<Function>($name) }.expect("the library has the function");
        // SAFETY: pointers lead to memory that is valid for the call.
        unsafe { function($($arg),*) }
    }};
}

/// An agent of this process, and the memory that is registered with it, by number. It is closed before that is freed.
pub struct Agent(*mut c_void, Mutex<HashMap<u64, Memory>>);

// SAFETY: the library's functions may be called by any thread.
unsafe impl Send for Agent {}
// SAFETY: as above.
unsafe impl Sync for Agent {}

/// A transfer of an agent.
pub struct Transfer<'a>(&'a Agent, *mut c_void);

fn judged<T>(status: c_int, value: T) -> Result<T, i32> {
    match status {
        SUCCESS => Ok(value),
        status => Err(status),
    }
}

impl Agent {
    pub fn open(name: &str, has_thread: bool, parameters: &[(&str, &str)]) -> Result<Self, i32> {
        let pair = |(key, value): &(&str, &str)| Pair {
            key: Text::of(key.as_bytes()),
            value: Text::of(value.as_bytes()),
        };
        let setup = setup();
        let of_setup = setup.near.iter();
        let of_setup = of_setup.map(|(key, value)| (key.as_str(), value.as_str()));
        let all: Vec<_> = of_setup.chain(parameters.iter().copied()).collect();
        let pairs: Vec<_> = all.iter().map(pair).collect();
        let mut engine = null_mut();
        let status = call!(
            b"devmem_nixl_open", (Text, *const Pair, usize, c_int, *mut *mut c_void) -> c_int,
            (Text::of(name.as_bytes()), pairs.as_ptr(), pairs.len(), c_int::from(has_thread), &raw mut engine)
        );
        judged(status, Self(engine, Mutex::default()))
    }

    pub fn register(&self, memory: &Memory) -> u64 {
        self.try_register(memory).expect("memory is registered")
    }

    pub fn try_register(&self, memory: &Memory) -> Result<u64, i32> {
        let mut number = 0;
        let status = call!(
            b"devmem_nixl_register", (*mut c_void, u64, u64, *mut u64) -> c_int,
            (self.0, memory.address(), memory.len() as u64, &raw mut number)
        );
        let number = judged(status, number)?;
        self.registered().insert(number, memory.clone());
        Ok(number)
    }

    fn registered(&self) -> MutexGuard<'_, HashMap<u64, Memory>> {
        self.1.lock().expect("no panic")
    }

    /// Registers memory of the first GPU.
    pub fn register_gpu(&self, address: u64, len: usize) -> Result<u64, i32> {
        let mut number = 0;
        let status = call!(
            b"devmem_nixl_register_gpu", (*mut c_void, u64, u64, u64, *mut u64) -> c_int,
            (self.0, address, len as u64, 0, &raw mut number)
        );
        judged(status, number)
    }

    pub fn deregister(&self, region: u64) -> i32 {
        let status =
            call!(b"devmem_nixl_deregister", (*mut c_void, u64) -> c_int, (self.0, region));
        self.registered().remove(&region);
        status
    }

    pub fn describe(&self, region: u64) -> Vec<u8> {
        let mut out = Vec::<u8>::new();
        let status = call!(
            b"devmem_nixl_describe", (*mut c_void, u64, Put, *mut c_void) -> c_int,
            (self.0, region, put, (&raw mut out).cast())
        );
        judged(status, out).expect("a region has a description")
    }

    pub fn info(&self) -> Vec<u8> {
        let mut out = Vec::<u8>::new();
        let status = call!(b"devmem_nixl_info", (*mut c_void, Put, *mut c_void) -> c_int, (self.0, put, (&raw mut out).cast()));
        judged(status, out).expect("an agent has connection information")
    }

    pub fn load_agent(&self, name: &str, info: &[u8]) -> i32 {
        call!(
            b"devmem_nixl_load_agent", (*mut c_void, Text, Text) -> c_int,
            (self.0, Text::of(name.as_bytes()), Text::of(info))
        )
    }

    pub fn load_region(&self, peer: &str, data: &[u8]) -> Result<u64, i32> {
        let mut number = 0;
        let status = call!(
            b"devmem_nixl_load_region", (*mut c_void, Text, Text, *mut u64) -> c_int,
            (self.0, Text::of(peer.as_bytes()), Text::of(data), &raw mut number)
        );
        judged(status, number)
    }

    pub fn load_own(&self, region: u64) -> u64 {
        let mut number = 0;
        let status = call!(b"devmem_nixl_load_own", (*mut c_void, u64, *mut u64) -> c_int, (self.0, region, &raw mut number));
        judged(status, number).expect("a region of this agent")
    }

    pub fn disconnect(&self, peer: &str) -> i32 {
        call!(b"devmem_nixl_disconnect", (*mut c_void, Text) -> c_int, (self.0, Text::of(peer.as_bytes())))
    }

    pub fn prepare(
        &self,
        is_write: bool,
        peer: &str,
        locals: &[Range],
        remotes: &[Range],
    ) -> Result<Transfer<'_>, i32> {
        assert_eq!(locals.len(), remotes.len());
        let mut transfer = null_mut();
        let status = call!(
            b"devmem_nixl_prepare",
            (*mut c_void, c_int, Text, *const Range, *const Range, usize, *mut *mut c_void) -> c_int,
            (
                self.0, c_int::from(is_write), Text::of(peer.as_bytes()), locals.as_ptr(), remotes.as_ptr(), locals.len(),
                &raw mut transfer
            )
        );
        judged(status, ()).map(|()| Transfer(self, transfer))
    }

    pub fn notify(&self, peer: &str, message: &[u8]) -> i32 {
        call!(
            b"devmem_nixl_notify", (*mut c_void, Text, Text) -> c_int,
            (self.0, Text::of(peer.as_bytes()), Text::of(message))
        )
    }

    pub fn notifications(&self) -> Vec<(String, Vec<u8>)> {
        let mut out = Vec::<(String, Vec<u8>)>::new();
        let status = call!(
            b"devmem_nixl_notifications", (*mut c_void, Notice, *mut c_void) -> c_int,
            (self.0, notice, (&raw mut out).cast())
        );
        judged(status, out).expect("notifications can be asked for")
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        call!(b"devmem_nixl_close", (*mut c_void), (self.0));
    }
}

impl Transfer<'_> {
    pub fn post(&self, notification: Option<&[u8]>) -> i32 {
        let text = notification.map(Text::of);
        let text = text.as_ref().map_or(null(), |text| &raw const *text);
        call!(b"devmem_nixl_post", (*mut c_void, *mut c_void, *const Text) -> c_int, (self.0.0, self.1, text))
    }

    pub fn check(&self) -> i32 {
        call!(b"devmem_nixl_check", (*mut c_void, *mut c_void) -> c_int, (self.0.0, self.1))
    }
}

impl Drop for Transfer<'_> {
    fn drop(&mut self) {
        let status =
            call!(b"devmem_nixl_release", (*mut c_void, *mut c_void) -> c_int, (self.0.0, self.1));
        assert_eq!(status, SUCCESS);
    }
}

/// Posts a transfer in a child of fork(2), and returns the status there.
pub fn fork_and_check(transfer: &Transfer<'_>) -> i32 {
    // SAFETY: the child calls the library, which must find out, and ends at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let status = transfer.post(None);
        // SAFETY: ends the process, without anything that it shares with its parent.
        unsafe { libc::_exit(-status) };
    }
    let mut status = 0;
    // SAFETY: there is room for the status.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert!(waited == child && libc::WIFEXITED(status));
    -libc::WEXITSTATUS(status)
}

/// What `devmem_nixl_paths` gives.
pub fn paths() -> String {
    let mut out = Vec::<u8>::new();
    let status =
        call!(b"devmem_nixl_paths", (Put, *mut c_void) -> c_int, (put, (&raw mut out).cast()));
    judged(status, String::from_utf8(out).expect("JSON is UTF-8")).expect("paths can be asked for")
}
