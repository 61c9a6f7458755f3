//! A backend for NIXL on device memory TCP: `libplugin_DEVMEM.so`.
//!
//! NIXL loads it with `dlopen`, and makes an engine by the record of `nixl_plugin_init`. The C++ part (`shim/plugin.cc`) is that engine's
//! class and no more: each of its functions calls the C interface (`shim/devmem_nixl.h`, `ffi/`), which is the rest of this crate.
//!
//! Key types: `Agent` (memory, peers, transfers), `Connections` (with all peers; `Initiator` and `Target` are one peer, in one direction of
//! calling), `Transfer` (what a program posts), `Scatter` (ranges of registered memory, sent or received by one system call), and `Network` and
//! `Wire` (what connections are made of: the kernel's sockets, or a NIC of `devmem-tcp`).
//!
//! Modules stand on those below them, from the words up:
//!
//! ```text
//!  ffi                                       the C interface
//!  engine                                    the lock, the thread, waiting
//!  agent                                     memory, peers, transfers; opens the network
//!  connections                               a slot for each peer and direction
//!  dial, arrivals   initiator, target   own  how peers meet; the two sides; copies within the process
//!  wires: control, carriers: data, near      records; what carries payload
//!  sockets, netdev                           the networks
//!  transfer, regions, inbox                  what is moved, from where to where
//!  wire, raw                                 traits of networks; memory by its address
//!  record, info, settings, status, log       words
//! ```
//!
//! # One write
//!
//! ```text
//!  initiator                                                        target
//!  ---------                                                        ------
//!  postXfer: Transfer::post keeps the memory registered
//!  Initiator::cut: pieces of at most 1 MiB and 1,024 ranges
//!      Write{transfer, bytes, message}   -- control -->             Target::on_write
//!      Put{stream, ranges, bytes}        -- control -->             Target::on_put: Regions::resolve checks each key and range
//!      the bytes, sendmsg from memory    == payload ==>             recvmsg into memory (Carriers::pull)
//!                                                                   the last byte: the message goes to the inbox
//!  checkXfer: Initiator::on_done         <-- control --  Done{transfer}
//! ```
//!
//! Of a piece of at most 8 KiB the bytes follow its record: then a short write is one packet. A read is announced by `Get{stream, ranges,
//! bytes}`, and the target sends the bytes, in the order of these records.
//!
//! With a pool, the payload of memory of GPUs takes no turn through this process:
//!
//! ```text
//!  Sends::send: the NIC reads the bytes where they are     == payload ==>   the NIC writes them to the pool (Setup::steer_from, port for payload)
//!  (BoundTx of GpuMemory, MSG_ZEROCOPY)                                     Pool::receive: frags of the pool
//!                                                                           Scatter::land: pieces, which the GPU copies together
//!                                                                           RxBatch::release: the pool has its room back
//! ```
//!
//! # What a peer cannot do
//!
//! No number of a peer sizes an allocation: input grows with the bytes that have come, and pieces, writes, messages and connections are
//! bounded where they are kept. A range is checked against the region of its key, which is random. What the protocol does not allow ends the
//! connections with a cause that names it.
//!
//! # What it does not do
//!
//! Only one way is without a copy by the CPU: `kernel:` with a `Pool`, memory of a GPU that the NIC receives into. Without one, `sockets` (TCP of
//! the kernel) and `kernel:` copy each byte once on each side, `unix` (`NearMemory`: the memory of a process on the same machine) once, a stack in
//! user space (`packet:`, `macvtap:`, `tap:`) twice on its side, and memory of GPUs goes through host memory. See `DECISIONS.md`.
#![allow(
    non_snake_case,
    reason = "NIXL makes the file's name of the backend's: libplugin_DEVMEM.so"
)]

#[cfg(feature = "test-util")]
pub use ffi::scene;

mod abi;
mod address;
mod agent;
mod arrivals;
mod awaited;
mod broken;
mod carriers;
mod connections;
mod control;
mod data;
mod dial;
mod engine;
mod ffi;
mod inbox;
mod info;
mod initiator;
mod log;
mod near;
mod netdev;
mod own;
mod raw;
mod record;
mod regions;
mod settings;
mod sockets;
mod status;
mod target;
mod transfer;
mod wire;
mod wires;
