// UNSAFETY: loads a library, and calls its functions with pointers to variables of this file, by the contract of NCCL's network interface.

//! The functions of a plugin, by the layout of `ncclNet_v12_t` (nccl src/include/plugin/net/net_v12.h).
#![allow(unsafe_code)]

mod table;

use std::ffi::{CStr, c_char, c_int, c_ulong, c_void};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::ptr::{NonNull, null_mut, without_provenance_mut};

use libloading::os::unix::{self, RTLD_LOCAL, RTLD_NOW};

use crate::PluginError;
use crate::log::{self, Level};
use table::Table;

/// Bytes of a handle (NCCL_NET_HANDLE_MAXSIZE).
pub const HANDLE_BYTES: usize = 128;

/// What the connecting side needs to find a listener. Boxed, because a plugin may keep its state of a connection in it.
pub type Handle = Box<[u8; HANDLE_BYTES]>;

const SYMBOL: &str = "ncclNetPlugin_v12";
/// NCCL_PTR_CUDA: the type of memory that NCCL registers with a dma-buf.
const POINTER_CUDA: c_int = 2;
/// NCCL_LOG_WARN: this level and lower ones are warnings.
const LOG_WARN: c_int = 2;
/// Traffic class: NCCL_NET_TRAFFIC_CLASS_UNDEF.
const NO_TRAFFIC_CLASS: c_int = -1;
/// Identifies the communicator of NCCL; any number.
const COMM_ID: u64 = 1;

/// A value of the plugin that is only given back to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opaque(NonNull<c_void>);

/// What ends: the functions with one parameter.
#[derive(Clone, Copy, Debug)]
pub enum Closing {
    Send,
    Receive,
    Listen,
}

/// A loaded plugin, initialized.
#[derive(Debug)]
pub struct Library {
    /// In the library, and constant.
    table: NonNull<Table>,
    /// NULL before `init`; the plugin chooses the value.
    context: *mut c_void,
    /// Unloaded by its drop, which follows that of this type. `plugin.rs` borrows this type for every value of the plugin.
    _library: unix::Library,
}

/// Calls a function of the table, and judges its result.
macro_rules! call {
    ($library:ident . $function:ident ( $($argument:expr),* )) => {{
        const NAME: &str = stringify!($function);
        let function = $library.table().$function.ok_or(PluginError::NoFunction(NAME))?;
        // SAFETY: the function has this type by NCCL's interface. Its arguments are values that the plugin has returned and that
        // were not given back, by the types of `plugin.rs`, and pointers to variables that live until it returns.
        judge(NAME, unsafe { function($($argument),*) })
    }};
}

impl Library {
    /// Loads and initializes a plugin. Its code runs in this process: the user names it as the program to run.
    pub fn load(path: &Path) -> Result<Self, PluginError> {
        // SAFETY: 1. running the library's constructors is what the caller asks for; 2. its destructors run when nothing of it is
        // used any more, see `_library`.
        let library = unsafe { unix::Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(|error| PluginError::NotLoaded(error.to_string()))?;
        // SAFETY: the address of a symbol, which may be NULL.
        let table = unsafe { library.get::<Option<NonNull<Table>>>(SYMBOL.as_bytes()) };
        let table = table.ok().and_then(|symbol| *symbol);
        let mut library = Self {
            table: table.ok_or(PluginError::NoInterface(SYMBOL))?,
            context: null_mut(),
            _library: library,
        };
        let mut traffic_class = NO_TRAFFIC_CLASS;
        let mut context = null_mut();
        let config = (&raw mut traffic_class).cast();
        call!(library.init(&raw mut context, COMM_ID, config, log_line, null_mut()))?;
        library.context = context;
        Ok(library)
    }

    fn table(&self) -> &Table {
        // SAFETY: the symbol is a constant structure of this layout, by its name, in a library that is loaded until the drop.
        unsafe { self.table.as_ref() }
    }

    pub fn devices(&self) -> Result<c_int, PluginError> {
        let mut devices = -1;
        call!(self.devices(&raw mut devices))?;
        Ok(devices)
    }

    pub fn listen(&self, device: c_int) -> Result<(Handle, Opaque), PluginError> {
        let (mut handle, mut out) = (Box::new([0_u8; HANDLE_BYTES]), null_mut());
        let room = handle.as_mut_ptr().cast();
        call!(self.listen(self.context, device, room, &raw mut out))?;
        Ok((handle, some("listen", out)?))
    }

    /// `None`: call it again with the same handle.
    pub fn connect(
        &self,
        device: c_int,
        handle: &mut Handle,
    ) -> Result<Option<Opaque>, PluginError> {
        let (to, mut out) = (handle.as_mut_ptr().cast(), null_mut());
        // No room for a device handle: none is wanted.
        call!(self.connect(self.context, device, to, &raw mut out, null_mut()))?;
        Ok(NonNull::new(out).map(Opaque))
    }

    /// `None`: call it again.
    pub fn accept(&self, listener: Opaque) -> Result<Option<Opaque>, PluginError> {
        let mut out = null_mut();
        call!(self.accept(listener.0.as_ptr(), &raw mut out, null_mut()))?;
        Ok(NonNull::new(out).map(Opaque))
    }

    /// Registers the first `size` bytes of a dma-buf for a communicator, under the address `base`, which nobody follows.
    pub fn register(
        &self,
        comm: Opaque,
        fd: BorrowedFd<'_>,
        (base, size): (usize, usize),
    ) -> Result<Opaque, PluginError> {
        let (fd, data, mut out) = (fd.as_raw_fd(), without_provenance_mut(base), null_mut());
        let comm = comm.0.as_ptr();
        call!(self.reg_mr_dma_buf(comm, data, size, POINTER_CUDA, 0, fd, &raw mut out))?;
        some("reg_mr_dma_buf", out)
    }

    pub fn deregister(&self, comm: Opaque, memory: Opaque) -> Result<(), PluginError> {
        call!(self.dereg_mr(comm.0.as_ptr(), memory.0.as_ptr()))
    }

    /// Sends `size` bytes at the address `data` of registered memory. `None`: not now.
    pub fn send(
        &self,
        comm: Opaque,
        memory: Opaque,
        (data, size): (usize, usize),
        tag: c_int,
    ) -> Result<Option<Opaque>, PluginError> {
        let (data, mut out) = (without_provenance_mut(data), null_mut());
        let (comm, memory) = (comm.0.as_ptr(), memory.0.as_ptr());
        call!(self.isend(comm, data, size, tag, memory, null_mut(), &raw mut out))?;
        Ok(NonNull::new(out).map(Opaque))
    }

    /// Receives at most `size` bytes to the address `data` of registered memory. `None`: not now.
    pub fn receive(
        &self,
        comm: Opaque,
        memory: Opaque,
        (data, mut size): (usize, usize),
        mut tag: c_int,
    ) -> Result<Option<Opaque>, PluginError> {
        let (comm, mut memory) = (comm.0.as_ptr(), memory.0.as_ptr());
        let (mut data, mut out) = (without_provenance_mut(data), null_mut());
        let (data, size, tag) = (&raw mut data, &raw mut size, &raw mut tag);
        // Arrays of one entry; no handles for a profiler.
        let memory = &raw mut memory;
        call!(self.irecv(comm, 1, data, size, tag, memory, null_mut(), &raw mut out))?;
        Ok(NonNull::new(out).map(Opaque))
    }

    /// Returns the bytes of a finished request of one part. `None`: it is not done.
    pub fn test(&self, request: Opaque) -> Result<Option<c_int>, PluginError> {
        let (mut done, mut size) = (0, -1);
        call!(self.test(request.0.as_ptr(), &raw mut done, &raw mut size))?;
        Ok((done != 0).then_some(size))
    }

    pub fn close(&self, what: Closing, closed: Opaque) -> Result<(), PluginError> {
        let closed = closed.0.as_ptr();
        match what {
            Closing::Send => call!(self.close_send(closed)),
            Closing::Receive => call!(self.close_recv(closed)),
            Closing::Listen => call!(self.close_listen(closed)),
        }
    }

    /// Ends what `init` began.
    pub fn finalize(&mut self) -> Result<(), PluginError> {
        let context = std::mem::replace(&mut self.context, null_mut());
        match context.is_null() {
            true => Ok(()),
            false => call!(self.finalize(context)),
        }
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        // A failure was logged by the plugin, and nobody is left to be told.
        let _finalized = self.finalize();
    }
}

fn judge(function: &'static str, code: c_int) -> Result<(), PluginError> {
    match code {
        0 => Ok(()),
        code => Err(PluginError::Failed {
            function,
            code,
            warning: log::take_last_warning(),
        }),
    }
}

fn some(function: &'static str, out: *mut c_void) -> Result<Opaque, PluginError> {
    let missing = PluginError::Nonsense { function, value: 0 };
    NonNull::new(out).map(Opaque).ok_or(missing)
}

/// NCCL's logger. It is variadic there; on x86-64 and AArch64, a callee with one more parameter takes the first variable argument.
extern "C" fn log_line(
    level: c_int,
    _subsystems: c_ulong,
    _file: *const c_char,
    _line: c_int,
    format: *const c_char,
    text: *const c_char,
) {
    // SAFETY: a plugin passes a terminated format.
    let format = unsafe { CStr::from_ptr(format) };
    let line = match format == c"%s" {
        // SAFETY: the argument of this format is a terminated string.
        true => unsafe { CStr::from_ptr(text) },
        // Formatting is left to NCCL.
        false => format,
    };
    let kind = match level <= LOG_WARN {
        true => Level::Warning,
        false => Level::Note,
    };
    kind.add(line.to_string_lossy().into_owned());
}
