// UNSAFETY: calls functions of NCCL with pointers to memory of its callers.

//! NCCL, as a program calls it (nccl.h).
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::path::Path;
use std::time::{Duration, Instant};

use libloading::os::unix;

use crate::runtime::{self, FLOAT, STREAMS};

/// A result that is not success.
pub type Code = c_int;

/// What finds a communicator's ranks (ncclUniqueId).
#[derive(Clone, Copy)]
#[repr(C)]
pub struct UniqueId(pub [u8; 128]);

/// ncclSum, ncclUint8.
const SUM: usize = 0;
const BYTES: usize = 1;

const NAP: Duration = Duration::from_micros(100);

/// The loaded library.
pub struct Nccl(unix::Library);

fn judge(code: c_int) -> Result<(), Code> {
    if code == 0 { Ok(()) } else { Err(code) }
}

impl Nccl {
    /// Loads a library, which stays loaded; or says why it is not one that can run here.
    pub fn load(path: &Path) -> Result<Self, String> {
        runtime::load(path).map(Self)
    }

    /// Calls a function of nccl.h. Integers and pointers are words, and a function takes no note of more than it has parameters, on x86-64.
    fn call(&self, name: &str, arguments: &[usize]) -> Result<(), Code> {
        type W = usize;
        type Function = unsafe extern "C" fn(W, W, W, W, W, W, W, W) -> c_int;
        // SAFETY: as the comment above says.
        let function = unsafe { self.0.get::<Function>(name.as_bytes()) };
        let function = function.unwrap_or_else(|_| panic!("NCCL has no {name}"));
        let mut all = [0; 8];
        all[..arguments.len()].copy_from_slice(arguments);
        let [a, b, c, d, e, f, g, h] = all;
        // SAFETY: pointers lead to variables or buffers that live until NCCL does not use them any more.
        judge(unsafe { function(a, b, c, d, e, f, g, h) })
    }

    pub fn unique_id(&self) -> Result<UniqueId, Code> {
        let mut id = UniqueId([0; 128]);
        self.call("ncclGetUniqueId", &[(&raw mut id).expose_provenance()])?;
        Ok(id)
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
    comm: usize,
    stream: usize,
    pub rank: usize,
    pub ranks: usize,
}

impl<'a> Comm<'a> {
    /// Meets the other ranks.
    pub fn new(nccl: &'a Nccl, id: UniqueId, rank: usize, ranks: usize) -> Result<Self, Code> {
        type Function = unsafe extern "C" fn(*mut usize, c_int, UniqueId, c_int) -> c_int;
        // SAFETY: the function has this type, by nccl.h.
        let function = unsafe { nccl.0.get::<Function>(b"ncclCommInitRank") };
        let function = function.expect("NCCL has this function");
        let mut comm = 0;
        // SAFETY: there is room for the communicator.
        judge(unsafe { function(&raw mut comm, ranks as c_int, id, rank as c_int) })?;
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
        assert!(fits, "{collective:?}");
        let begun = self.begin(collective, send, receive);
        // The buffers are in use until the stream has come to its end.
        self.finish()?;
        begun
    }

    fn begin(&self, collective: Collective, send: &[u8], receive: &mut [u8]) -> Result<(), Code> {
        let (nccl, comm, stream) = (self.nccl, self.comm, self.stream);
        let count = send.len().min(receive.len()) / 4;
        let from = send.as_ptr().expose_provenance();
        let to = receive.as_mut_ptr().expose_provenance();
        let last: &[usize] = &[comm, stream];
        let call =
            |name, own: &[usize]| nccl.call(name, &[&[from, to, count, FLOAT], own, last].concat());
        match collective {
            Collective::AllReduce => call("ncclAllReduce", &[SUM]),
            Collective::AllGather => call("ncclAllGather", &[]),
            Collective::ReduceScatter => call("ncclReduceScatter", &[SUM]),
            Collective::Broadcast { root } => call("ncclBroadcast", &[root]),
            Collective::Reduce { root } => call("ncclReduce", &[SUM, root]),
            Collective::AllToAll => {
                nccl.call("ncclGroupStart", &[])?;
                let part = send.len() / self.ranks;
                for peer in 0..self.ranks {
                    let [from, to] = [from, to].map(|buffer| buffer + peer * part);
                    nccl.call("ncclSend", &[from, part, BYTES, peer, comm, stream])?;
                    nccl.call("ncclRecv", &[to, part, BYTES, peer, comm, stream])?;
                }
                nccl.call("ncclGroupEnd", &[])
            }
        }
    }

    /// Waits until the stream has come to its end, or NCCL reports an error: then its kernels are ended.
    fn finish(&self) -> Result<(), Code> {
        let stream = STREAMS.get(self.stream).expect("its own");
        let end = stream.end();
        while end.get().is_none() {
            let mut code: Code = 0;
            let out = (&raw mut code).expose_provenance();
            self.nccl.call("ncclCommGetAsyncError", &[self.comm, out])?;
            if code != 0 {
                let noticed = Instant::now();
                self.nccl.call("ncclCommAbort", &[self.comm])?;
                end.wait();
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
        self.nccl.call("ncclCommDestroy", &[self.comm])
    }
}
