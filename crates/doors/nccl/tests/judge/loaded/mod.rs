// UNSAFETY: loads a plugin as NCCL does, and calls its functions with pointers to memory of this file's callers.

//! A network plugin of NCCL, any one, found by its symbols; the layouts are those of NCCL's interface, counted in words.
#![allow(unsafe_code)]

mod connections;
pub mod kernel;
mod transfers;

use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::Mutex;

use libloading::os::unix::{self, RTLD_LOCAL, RTLD_NOW};

/// Bytes of a handle.
pub const HANDLE_BYTES: usize = 128;

/// Warnings that the plugin has logged.
pub static WARNINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// What else the plugin has logged.
pub static NOTES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// A pointer of the plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointer(*mut c_void);

// SAFETY: the judge never follows it.
unsafe impl Send for Pointer {}
// SAFETY: as above.
unsafe impl Sync for Pointer {}

impl Pointer {
    const NULL: Self = Self(null_mut());

    fn some(self) -> Option<Self> {
        (!self.0.is_null()).then_some(self)
    }
}

/// A handle, at an address that does not change.
pub type Handle = Box<[u8; HANDLE_BYTES]>;

/// What the judge looks at of the properties.
#[derive(Debug)]
pub struct Properties {
    pub name: String,
    pub pointers: c_int,
    pub speed: c_int,
    pub max_recvs: c_int,
    pub device_type: c_int,
    pub device_version: c_int,
    /// `None` in version 8.
    pub max_p2p: Option<u64>,
}

/// A result that is not success.
pub type Code = c_int;

/// A loaded plugin, initialized, in one version.
pub struct Plugin {
    words: *const usize,
    /// Stays loaded, unless the test unloads it.
    library: ManuallyDrop<unix::Library>,
    version: u32,
    context: Pointer,
}

// SAFETY: the structure is constant, and NCCL calls its functions from several threads.
unsafe impl Send for Plugin {}
// SAFETY: as above.
unsafe impl Sync for Plugin {}

/// Calls a function of the plugin by its place in the structure.
macro_rules! call {
    ($plugin:ident, $index:ident, ($($type:ty),*), ($($arg:expr),*)) => {{
        let function = $plugin.function(at::$index);
        // SAFETY: the function at this place has this type, by NCCL's interface.
        let function = unsafe {
            std::mem::transmute::<*const c_void, unsafe extern "C" fn($($type),*) -> c_int>(function)
        };
        // SAFETY: pointers lead to memory that is valid for the call.
        judged(unsafe { function($($arg),*) })
    }};
}
use call;

/// Indices of the functions in the structure; the name is at 0.
mod at {
    pub const INIT: usize = 1;
    pub const DEVICES: usize = 2;
    pub const PROPERTIES: usize = 3;
    pub const LISTEN: usize = 4;
    pub const CONNECT: usize = 5;
    pub const ACCEPT: usize = 6;
    pub const REG: usize = 7;
    pub const REG_DMABUF: usize = 8;
    pub const DEREG: usize = 9;
    pub const ISEND: usize = 10;
    pub const IRECV: usize = 11;
    pub const IFLUSH: usize = 12;
    pub const TEST: usize = 13;
    pub const CLOSE_SEND: usize = 14;
    pub const CLOSE_RECV: usize = 15;
    pub const CLOSE_LISTEN: usize = 16;
    pub const DEVICE_MR: usize = 17;
    pub const CONSUMED: usize = 18;
    pub const FINALIZE: usize = 20;
}

/// NCCL's logger. It is variadic there; a callee that takes the one string of the format "%s" is called in the same way.
extern "C" fn log(
    level: c_int,
    _flags: c_ulong,
    _file: *const c_char,
    _line: c_int,
    format: *const c_char,
    text: *const c_char,
) {
    // SAFETY: a terminated string.
    let format = unsafe { CStr::from_ptr(format) };
    assert_eq!(format, c"%s", "text may contain what a format means");
    // SAFETY: a terminated string, as the format says.
    let text = unsafe { CStr::from_ptr(text) };
    let lines = if level <= 2 { &WARNINGS } else { &NOTES };
    let text = text.to_string_lossy().into_owned();
    lines.lock().expect("no test panics with it").push(text);
}

fn judged(code: c_int) -> Result<(), Code> {
    assert_ne!(code, 7, "NCCL takes 'in progress' for success");
    if code == 0 { Ok(()) } else { Err(code) }
}

impl Plugin {
    /// Loads and initializes version `version` of the plugin at `path`.
    pub fn load(path: &Path, version: u32) -> Result<Self, Code> {
        // SAFETY: the library's constructors and destructors are those of a plugin.
        let library = unsafe { unix::Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
        let library = library.expect("the plugin can be loaded");
        let symbol = format!("ncclNetPlugin_v{version}");
        // SAFETY: the address of a symbol.
        let words = unsafe { library.get::<*const usize>(symbol.as_bytes()) };
        let words = *words.expect("the plugin has this version");
        let mut plugin = Self {
            words,
            library: ManuallyDrop::new(library),
            version,
            context: Pointer::NULL,
        };
        plugin.init()?;
        Ok(plugin)
    }

    fn function(&self, index: usize) -> *const c_void {
        // SAFETY: the structure has this many words in this version.
        let function = unsafe { self.words.wrapping_add(index).read() };
        assert_ne!(function, 0, "function {index} is NULL");
        std::ptr::with_exposed_provenance(function)
    }

    fn init(&mut self) -> Result<(), Code> {
        let log: *const c_void = log as *const c_void;
        let profiler = null_mut();
        match self.version {
            8 | 9 => call!(self, INIT, (*const c_void), (log)),
            10 => call!(self, INIT, (*const c_void, *mut c_void), (log, profiler)),
            _ => {
                let mut config: c_int = -1;
                let config = (&raw mut config).cast();
                let context = &raw mut self.context.0;
                call!(
                    self,
                    INIT,
                    (
                        *mut *mut c_void,
                        u64,
                        *mut c_void,
                        *const c_void,
                        *mut c_void
                    ),
                    (context, 0x1234, config, log, profiler)
                )
            }
        }
    }

    /// Ends the context, in versions that have one, and unloads the library.
    pub fn unload(self) -> Result<(), Code> {
        if self.version >= 11 {
            call!(self, FINALIZE, (*mut c_void), (self.context.0))?;
        }
        // No function of the library runs, and no pointer into it is used afterwards.
        let library = ManuallyDrop::into_inner(self.library);
        library.close().expect("the library was loaded");
        Ok(())
    }

    pub fn devices(&self) -> Result<usize, Code> {
        let mut devices: c_int = -1;
        call!(self, DEVICES, (*mut c_int), (&raw mut devices))?;
        Ok(usize::try_from(devices).expect("a number of devices"))
    }

    pub fn properties(&self, device: c_int) -> Result<Properties, Code> {
        // The memory comes uninitialized from NCCL: garbage, to find fields that are not written.
        let mut words = [u64::from_ne_bytes([0xa5; 8]); 16];
        let out = words.as_mut_ptr().cast::<c_void>();
        call!(self, PROPERTIES, (c_int, *mut c_void), (device, out))?;
        let int = |at: usize| (words[at / 8] >> (at % 8 * 8)) as u32 as c_int;
        // SAFETY: the plugin's string, valid until it is unloaded.
        let name = unsafe { CStr::from_ptr(std::ptr::with_exposed_provenance(words[0] as usize)) };
        let shift = if self.version == 8 { 0 } else { 4 };
        Ok(Properties {
            name: name.to_string_lossy().into_owned(),
            pointers: int(24),
            speed: int(32 + shift),
            max_recvs: int(48 + shift),
            device_type: int(52 + shift),
            device_version: int(56 + shift),
            max_p2p: match self.version {
                8 => None,
                12 => Some(words[104 / 8]),
                _ => Some(words[88 / 8]),
            },
        })
    }
}
