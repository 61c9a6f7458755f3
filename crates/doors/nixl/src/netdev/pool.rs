//! Memory of a GPU that a NIC receives payload into. The GPU gathers it from there to registered memory of it, and the NIC sends from such memory.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use devmem_tcp::memory::SteeredPeer;
use devmem_tcp::stats::NetIovCount;
use devmem_tcp::{BoundRx, Dmabuf, Frag, Netdev, Placement, RxBatch, Setup, Stream};

use crate::raw::gpu::{Gpu, GpuMemory, alloc};
use crate::raw::scatter::{Lists, Scatter};
use crate::settings::PoolSettings;
use crate::status::{Failure, Status, text_of};
use crate::wire::GpuBytes;

/// Frags of one receive: pages, of a NIC of the kernel.
const BATCH_FRAGS: usize = 1024;

/// The memory, bound to queues of the NIC. The fields are dropped in order: unbind first, then restore the settings.
pub(super) struct Pool {
    bound: BoundRx,
    setup: Setup,
    memory: Dmabuf,
    gpu: Gpu,
    placement: Placement,
    /// Used in each receive and send, one at a time.
    scratch: Mutex<Scratch>,
}

/// What a receive or a send needs while it runs.
pub(super) struct Scratch {
    batch: RxBatch,
    pub(super) lists: Lists,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("bytes", &self.memory.size())
            .field("gpu", &self.gpu)
            .finish_non_exhaustive()
    }
}

impl Pool {
    /// Allocates the memory, and steers what arrives at `payload` to queues with it.
    pub(super) fn open(
        nic: &Netdev,
        settings: &PoolSettings,
        payload: SocketAddr,
    ) -> Result<Self, Failure> {
        let bytes = settings.bytes;
        let (memory, gpu) = alloc(settings.gpu, bytes).map_err(|error| {
            refused(&format!(
                "the pool of {bytes} bytes needs memory of a GPU: {}",
                text_of(&error)
            ))
        })?;
        let setup = nic.plan_receive(payload).queues(settings.queues);
        let bind = || -> Result<_, devmem_tcp::Error> {
            let setup = setup.apply()?;
            let bound = nic.bind_rx(&memory, setup.queues())?;
            Ok((setup, bound))
        };
        let (setup, bound) = bind().map_err(|error| {
            refused(&format!(
                "the NIC cannot receive into memory of a GPU: {}",
                text_of(&error)
            ))
        })?;
        Ok(Self {
            bound,
            setup,
            memory,
            gpu,
            placement: match settings.is_strict {
                true => Placement::Strict,
                false => Placement::Mixed,
            },
            scratch: Mutex::new(Scratch {
                batch: RxBatch::with_capacity(BATCH_FRAGS),
                lists: Lists::default(),
            }),
        })
    }

    pub(super) fn gpu(&self) -> Gpu {
        self.gpu
    }

    pub(super) fn net_iovs(&self) -> NetIovCount {
        self.bound.net_iovs()
    }

    pub(super) fn placement(&self) -> Placement {
        self.placement
    }

    /// Steers what a peer sends on connections that this side makes.
    pub(super) fn steer_from(&self, peer: SocketAddr) -> io::Result<SteeredPeer> {
        Ok(self.setup.steer_from(peer)?)
    }

    /// Prepares memory of a GPU for transfers: the NIC sends from it, and the GPU copies to it what has arrived in the pool.
    pub(super) fn register(&self, nic: &Netdev, gpu: &GpuMemory) -> Result<(), Failure> {
        if gpu.gpu() != self.gpu {
            return Err(refused(&format!(
                "the memory is of {}, and payload is received into memory of {}: name the GPU by the parameter gpu, and use an agent for each",
                gpu.gpu(),
                self.gpu
            )));
        }
        gpu.bind(nic).map_err(|error| {
            let error = text_of(&error);
            refused(&format!(
                "the NIC cannot send from memory of a GPU: {error}"
            ))
        })
    }

    pub(super) fn scratch(&self) -> MutexGuard<'_, Scratch> {
        // Nothing is left of a call that panicked: both are emptied before they are used.
        self.scratch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Receives bytes that were announced for memory of its GPU, or of the host. 0: the peer has ended its direction, or `to` is full.
    pub(super) fn receive(
        &self,
        stream: &mut Stream,
        to: &mut Scatter,
        at_most: usize,
        passed: &mut GpuBytes,
    ) -> io::Result<usize> {
        let most = at_most.min(usize::try_from(to.left()).unwrap_or(usize::MAX));
        if most == 0 {
            return Ok(0);
        }
        let Scratch { batch, lists } = &mut *self.scratch();
        let bytes = stream.recv_at_most(batch, most)?;
        let landed = self.land(batch, lists, to);
        batch.release()?;
        let staged = landed? as u64;
        passed.staged += staged;
        passed.by_nic += (bytes as u64).saturating_sub(staged);
        Ok(bytes)
    }

    /// Receives at most `at_most` bytes that go nowhere: nobody copies them. 0: the peer has ended its direction, or `at_most` is 0.
    pub(super) fn discard(&self, stream: &mut Stream, at_most: usize) -> io::Result<usize> {
        if at_most == 0 {
            return Ok(0);
        }
        let Scratch { batch, .. } = &mut *self.scratch();
        let bytes = stream.recv_at_most(batch, at_most)?;
        batch.release()?;
        Ok(bytes)
    }

    /// Puts a batch in place. Returns how many bytes went through host memory.
    fn land(&self, batch: &RxBatch, lists: &mut Lists, to: &mut Scatter) -> io::Result<usize> {
        let mut staged = 0;
        let mut frags = batch.iter().peekable();
        while let Some(frag) = frags.peek() {
            if let Frag::Linear(bytes) = frag {
                to.fill(bytes)?;
                staged += bytes.len();
                frags.next();
                continue;
            }
            let run = std::iter::from_fn(|| match frags.peek() {
                Some(Frag::Device { range, .. }) => {
                    let range = range.clone();
                    frags.next();
                    Some(range)
                }
                Some(Frag::Linear(_)) | None => None,
            });
            staged += to.land(&self.memory, run, lists)?;
        }
        Ok(staged)
    }
}

fn refused(why: &str) -> Failure {
    let text = format!("{why}; without require=device and pool, payload goes through host memory");
    Failure::new(Status::NotSupported, text)
}
