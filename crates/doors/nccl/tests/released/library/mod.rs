// UNSAFETY: loads the released library of NCCL, puts other functions in the place of CUDA's, and calls its functions with pointers to memory
// of its callers.

//! NCCL, as a program calls it (nccl.h).
#![allow(unsafe_code)]

mod redirect;

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::{null_mut, with_exposed_provenance};
use std::time::{Duration, Instant};

use libloading::os::unix::{self, RTLD_LOCAL, RTLD_NOW};

use crate::device::{FLOAT, LAYOUTS, PLAYED, ROWS, STREAMS, VERSION, Version, functions};
use redirect::{DRIVER_LOADER, Symbol};

/// A result that is not success.
pub type Code = c_int;

/// What finds a communicator's ranks (ncclUniqueId).
#[derive(Clone, Copy)]
#[repr(C)]
pub struct UniqueId(pub [u8; 128]);

/// ncclSum, ncclUint8.
const SUM: c_int = 0;
const BYTES: c_int = 1;

const NAP: Duration = Duration::from_micros(100);
/// A collective that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(90);

/// The table of device functions, and the function that tells where the library was loaded.
const TABLE: &str = "ncclDevFuncRowToId";
const BASE: &str = "ncclGetVersion";

/// The loaded library.
pub struct Nccl(unix::Library);

/// Calls a function of the library by its name.
macro_rules! call {
    ($nccl:expr, $name:literal, ($($type:ty),*), ($($argument:expr),*)) => {{
        let name = concat!($name, "\0").as_bytes();
        // SAFETY: the function has this type, by nccl.h.
        let function = unsafe { $nccl.0.get::<unsafe extern "C" fn($($type),*) -> c_int>(name) };
        let function = function.expect("NCCL has this function");
        // SAFETY: pointers lead to variables or buffers that live until NCCL does not use them any more.
        judge(unsafe { function($($argument),*) })
    }};
}

fn judge(code: c_int) -> Result<(), Code> {
    if code == 0 { Ok(()) } else { Err(code) }
}

impl Nccl {
    /// Loads a library, which stays loaded; or says why it is not one that can run here.
    pub fn load(path: &Path) -> Result<Self, String> {
        let symbols = redirect::read(path, &[TABLE, BASE])?;
        let find = |name: &str| symbols.iter().find(|symbol| symbol.name == name);
        let need = |name| find(name).ok_or_else(|| format!("its symbol table lacks {name}"));
        need("cudaMalloc").and(need(DRIVER_LOADER))?;
        let base = need(BASE)?;
        // SAFETY: the library's constructors register its kernels with the CUDA runtime that is linked into it.
        let library = unsafe { unix::Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
        let nccl = Self(library.map_err(|error| error.to_string())?);
        // SAFETY: the address of a function.
        let loaded = unsafe { nccl.0.get::<*const c_void>(BASE.as_bytes()) };
        let loaded = loaded.map_err(|error| error.to_string())?;
        let bias = loaded.expose_provenance() - base.address;
        // SAFETY: the symbols are of the file that was loaded, a moment ago.
        unsafe { redirect::redirect(&symbols, bias, &functions()) }?;
        let table = find(TABLE).filter(|table| table.size == ROWS * size_of::<u32>());
        let version = nccl.version();
        let layout = LAYOUTS.into_iter().find(|layout| layout.0 == version);
        if let (Some(Symbol { address, .. }), Some((_, layout))) = (table, layout) {
            let number = |row: usize| {
                let number = with_exposed_provenance::<u32>(bias + address + row * 4);
                // SAFETY: an entry of a constant of the library.
                unsafe { number.read() }
            };
            let functions = PLAYED.map(|(row, function)| (number(row), function)).into();
            VERSION.get_or_init(|| Version { layout, functions });
        }
        Ok(nccl)
    }

    pub fn version(&self) -> c_int {
        let mut version = 0;
        call!(self, "ncclGetVersion", (*mut c_int), (&raw mut version)).expect("ncclGetVersion");
        version
    }

    pub fn unique_id(&self) -> Result<UniqueId, Code> {
        let mut id = UniqueId([0; 128]);
        call!(self, "ncclGetUniqueId", (*mut UniqueId), (&raw mut id))?;
        Ok(id)
    }

    /// Returns what NCCL said last of an error.
    pub fn last_error(&self) -> String {
        type Function = unsafe extern "C" fn(*mut c_void) -> *const c_char;
        // SAFETY: the function has this type, by nccl.h.
        let function = unsafe { self.0.get::<Function>(b"ncclGetLastError\0") };
        let function = function.expect("NCCL has this function");
        // SAFETY: no communicator is needed.
        let text = unsafe { function(null_mut()) };
        // SAFETY: a terminated string of NCCL.
        let text = unsafe { CStr::from_ptr(text) };
        text.to_string_lossy().into_owned()
    }
}

/// What all ranks do with their buffers of floats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast {
        root: usize,
    },
    Reduce {
        root: usize,
    },
    /// Each rank sends a part of its buffer to each rank, itself too.
    AllToAll,
}

/// A rank's place in a communicator.
pub struct Comm<'a> {
    nccl: &'a Nccl,
    comm: *mut c_void,
    stream: usize,
    pub rank: usize,
    pub ranks: usize,
}

impl<'a> Comm<'a> {
    /// Meets the other ranks.
    pub fn new(nccl: &'a Nccl, id: UniqueId, rank: usize, ranks: usize) -> Result<Self, Code> {
        let mut comm = null_mut();
        call!(
            nccl,
            "ncclCommInitRank",
            (*mut *mut c_void, c_int, UniqueId, c_int),
            (&raw mut comm, ranks as c_int, id, rank as c_int)
        )?;
        let stream = STREAMS.create();
        Ok(Self {
            nccl,
            comm,
            stream,
            rank,
            ranks,
        })
    }

    /// Runs a collective to its end. If NCCL reports an error meanwhile, the communicator is aborted.
    ///
    /// # Panics
    ///
    /// If the lengths of the buffers do not fit together.
    pub fn run(
        &mut self,
        collective: Collective,
        send: &[u8],
        receive: &mut [u8],
    ) -> Result<(), Code> {
        let fits = match collective {
            Collective::AllGather => receive.len() == send.len() * self.ranks,
            Collective::ReduceScatter => send.len() == receive.len() * self.ranks,
            _ => send.len() == receive.len(),
        };
        assert!(
            fits,
            "{collective:?}: {} and {} bytes",
            send.len(),
            receive.len()
        );
        let begun = self.begin(collective, send, receive);
        // The buffers are in use until the stream has come to its end.
        self.finish()?;
        begun
    }

    fn begin(&self, collective: Collective, send: &[u8], receive: &mut [u8]) -> Result<(), Code> {
        let count = send.len().min(receive.len()) / 4;
        macro_rules! collective {
            ($name:literal $(, $argument:expr => $type:ty)*) => {
                call!(
                    self.nccl,
                    $name,
                    (*const u8, *mut u8, usize, c_int, $($type,)* *mut c_void, usize),
                    (send.as_ptr(), receive.as_mut_ptr(), count, FLOAT as c_int, $($argument,)* self.comm, self.stream)
                )
            };
        }
        match collective {
            Collective::AllReduce => collective!("ncclAllReduce", SUM => c_int),
            Collective::AllGather => collective!("ncclAllGather"),
            Collective::ReduceScatter => collective!("ncclReduceScatter", SUM => c_int),
            Collective::Broadcast { root } => collective!("ncclBroadcast", root as c_int => c_int),
            Collective::Reduce { root } => {
                collective!("ncclReduce", SUM => c_int, root as c_int => c_int)
            }
            Collective::AllToAll => self.begin_all_to_all(send, receive),
        }
    }

    fn begin_all_to_all(&self, send: &[u8], receive: &mut [u8]) -> Result<(), Code> {
        macro_rules! message {
            ($name:literal, $buffer:expr, $pointer:ty, $peer:expr) => {
                call!(
                    self.nccl,
                    $name,
                    ($pointer, usize, c_int, c_int, *mut c_void, usize),
                    (
                        $buffer,
                        send.len() / self.ranks,
                        BYTES,
                        $peer as c_int,
                        self.comm,
                        self.stream
                    )
                )
            };
        }
        call!(self.nccl, "ncclGroupStart", (), ())?;
        let part = (send.len() / self.ranks).max(1);
        for (peer, (from, to)) in send.chunks(part).zip(receive.chunks_mut(part)).enumerate() {
            message!("ncclSend", from.as_ptr(), *const u8, peer)?;
            message!("ncclRecv", to.as_mut_ptr(), *mut u8, peer)?;
        }
        call!(self.nccl, "ncclGroupEnd", (), ())
    }

    /// Waits until the stream has come to its end, or NCCL reports an error: then its kernels are ended.
    fn finish(&self) -> Result<(), Code> {
        let stream = STREAMS
            .get(self.stream)
            .expect("made with this communicator");
        let begun = Instant::now();
        while !stream.is_idle() {
            assert!(
                begun.elapsed() < PATIENCE,
                "rank {}: a collective hangs",
                self.rank
            );
            let mut code = 0;
            let arguments = (self.comm, &raw mut code);
            call!(
                self.nccl,
                "ncclCommGetAsyncError",
                (*mut c_void, *mut c_int),
                (arguments.0, arguments.1)
            )?;
            if code != 0 {
                let noticed = Instant::now();
                call!(self.nccl, "ncclCommAbort", (*mut c_void), (self.comm)).expect("abort");
                stream.finish();
                println!("aborted in {:?} after code {code}", noticed.elapsed());
                return Err(code);
            }
            std::thread::sleep(NAP);
        }
        Ok(())
    }

    /// Leaves the communicator, which was not aborted.
    pub fn destroy(self) -> Result<(), Code> {
        STREAMS.remove(self.stream);
        call!(self.nccl, "ncclCommDestroy", (*mut c_void), (self.comm))
    }
}
