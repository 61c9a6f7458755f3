//! Device memory TCP: receive TCP payload straight into device memory, and send it from there.
//!
//! Key types: [`Netdev`] (a NIC with its TCP/IP stack), [`Dmabuf`] (device memory), [`BoundRx`] (device memory bound to
//! RX queues of a NIC), [`Listener`] and [`Stream`] (connections), [`RxBatch`] (the result of one receive:
//! where in device memory the bytes lie), [`BoundTx`] (device memory bound for sending) and [`Completions`] (reports when
//! sent memory may be reused).
//!
//! # Receive
//!
//! ```
//! use devmem_tcp::{Dmabuf, Frag, Netdev, RxBatch};
//! # use std::io::Write;
//! # // The peer, on the other end of the wire: any TCP sender would do.
//! # fn peer() -> std::thread::JoinHandle<()> {
//! #     std::thread::spawn(|| {
//! #         let nic = Netdev::user("mem:doc", "10.77.0.1/24").expect("the wire has a free end");
//! #         let mut stream = nic.connect("10.77.0.2:5201").expect("the receiver listens");
//! #         stream.write_all(&[7; 100_000]).expect("the receiver receives");
//! #     })
//! # }
//! # let mut received = 0;
//! # fn consume(slice: devmem_tcp::DeviceSlice<'_>) { assert!(slice.to_vec().iter().all(|byte| *byte == 7)); }
//! # fn consume_host(_: &[u8]) {}
//!
//! let memory = Dmabuf::anonymous(64 << 20)?;                    // huge pages if the machine has them
//! let nic = Netdev::user("mem:doc", "10.77.0.2/24")?;           // on a TAP: "tap:dm0,10.77.0.1/24"
//! let (listener, rx) = nic.listen_into("10.77.0.2:5201", &memory)?; // sets the NIC up, binds the memory; undone with `rx`
//! # let peer = peer();
//! let (mut stream, _peer) = listener.accept()?;
//!
//! let mut batch = RxBatch::with_capacity(1024);                 // reused; holds frags, not bytes
//! while stream.recv(&mut batch)? > 0 {
//!     for frag in &batch {
//!         match frag {
//!             Frag::Device { range, .. } => {
//!                 # received += range.len();
//!                 consume(memory.slice(range))                  // offset..offset+len in `memory`
//!             }
//!             Frag::Linear(bytes) => consume_host(bytes),       // rare: the NIC could not split the packet
//!         }
//!     }
//!     batch.release()?;                                         // returns the frags' memory; so does dropping the batch
//! }
//! println!("{}", stream.stats());
//! # assert_eq!(received, 100_000);
//! # peer.join().expect("the peer sent everything");
//! # drop((stream, listener));
//! # let net_iovs = rx.unbind().net_iovs();
//! # assert_eq!(net_iovs.home, net_iovs.total);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`Netdev::listen_into`] is four steps in one: [`Netdev::plan_receive`] and [`ReceivePlan::apply`] set the NIC up (header split, RSS,
//! flow rules), [`Netdev::bind_rx`] binds the memory, and [`Netdev::listen`] listens.
//!
//! [`RxBatch::take`] moves frags out of the batch as owned [`RxFrag`]s; each returns its memory when it is dropped.
//! [`RxBatch::gather_into`] copies a batch into contiguous memory, device to device, in one pass. A program that knows where the next
//! bytes belong can save that copy: [`Stream::place_next`] makes a user-space NIC receive them in that place.
//! [`Stream::set_placement`] sets what happens to bytes that did not land in device memory.
//!
//! # Send
//!
//! ```
//! use devmem_tcp::{Dmabuf, Netdev};
//! # use devmem_tcp::{RxBatch, Frag};
//! # // The peer, on the other end of the wire: any TCP receiver would do.
//! # let peer = std::thread::spawn(|| {
//! #     let nic = Netdev::user("mem:doc-send", "10.77.0.1/24").expect("the wire has a free end");
//! #     let listener = nic.listen("10.77.0.1:5201").expect("the port is free");
//! #     let (mut stream, _) = listener.accept().expect("the sender connects");
//! #     let (mut batch, mut received) = (RxBatch::with_capacity(64), Vec::new());
//! #     while stream.recv(&mut batch).expect("the sender sends") > 0 {
//! #         for frag in &batch {
//! #             let Frag::Linear(bytes) = frag else { panic!("nothing is bound here") };
//! #             received.extend_from_slice(bytes);
//! #         }
//! #     }
//! #     received
//! # });
//!
//! let memory = Dmabuf::anonymous(1 << 20)?;
//! memory.fill(65536..131072, 7)?;
//! let nic = Netdev::user("mem:doc-send", "10.77.0.2/24")?;
//! let tx = nic.bind_tx(&memory)?;                               // unbound when dropped
//! # let mut stream = loop {
//! #     // The peer's thread may not listen yet.
//! #     match nic.connect("10.77.0.1:5201") {
//! #         Ok(stream) => break stream,
//! #         Err(_) => std::thread::yield_now(),
//! #     }
//! # };
//! # /*
//! let mut stream = nic.connect("10.77.0.1:5201")?;
//! # */
//! let id = stream.send_all(&tx, &[0..4096, 65536..131072])?;    // ranges of the bound memory, no copy
//! stream.completions().wait(id)?;                               // only now may those bytes change
//! memory.fill(0..131072, 9)?;
//! stream.shutdown_write()?;
//! # let received = peer.join().expect("the peer received everything");
//! # assert_eq!(received.len(), 4096 + 65536);
//! # assert!(received[..4096].iter().all(|byte| *byte == 0));
//! # assert!(received[4096..].iter().all(|byte| *byte == 7));
//! # assert_eq!(tx.in_flight(), 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`SendRing`] does the bookkeeping of a sender that reuses its memory: it waits for a free chunk, and sends what the program
//! has put into it.
//!
//! A program that must not wait polls [`Completions::readiness_fd`] and calls [`Completions::try_next`], which returns the sends that
//! have completed. A dropped stream still sends what is queued; [`Completions`] that outlive it still report these sends,
//! and [`BoundTx::in_flight`] counts the incomplete sends of all streams.
//!
//! With the feature `tokio`, the module `tokio` provides asynchronous listeners, streams and completions.
//!
//! # Messages, threads, host memory
//!
//! Messages are received by length: [`Stream::recv_exact`] copies a header to host memory, [`Stream::recv_at_most`] receives a body, and
//! both leave later bytes queued; [`Stream::peek`] copies the first bytes without taking them. [`Stream::into_split`] gives the directions to two
//! threads. [`std::io::Read`] copies what has arrived to host memory, also out of device memory, and [`std::io::Write`] sends host memory;
//! one stream may send both host and device memory.
//!
//! The streams of a NIC in user space share one stack and its lock. A program that receives on several processors opens the NIC with
//! [`NetdevBuilder::shards`]: it then has several stacks, and streams of different shards do not wait for each other.
//!
//! # Errors
//!
//! Calls return an [`Error`]: a kind for programs ([`ErrorKind`]), the errno of the same refusal by Linux, a reason and a
//! [`Remedy`] for people. [`RecvError`] and [`BindError`] have variants that programs act on. All of them become a
//! [`std::io::Error`] by `?`, and an [`Error`].
//!
//! `{}` prints the reason in one line, with the reasons of its causes. `{:?}` prints the remedy, too, also when `main` returns the error;
//! `{:#?}` prints the fields.
//!
//! ```
//! use devmem_tcp::{ErrorKind, Netdev};
//!
//! let error = Netdev::kernel("nosuch0").unwrap_err();
//! assert_eq!(error.kind(), ErrorKind::NotFound);
//! assert_eq!(error.remedy(), Some("`ip link` lists those of this network namespace".into()));
//! assert!(error.to_string().starts_with("there is no interface nosuch0"));
//! assert!(format!("{error:?}").ends_with("\n  `ip link` lists those of this network namespace"));
//! ```
//!
//! # Without any network
//!
//! [`Netdev::pair`] returns two NICs on an in-memory wire in virtual time, with any impairments.
//!
//! ```
//! use devmem_tcp::Netdev;
//!
//! let (a, b) = Netdev::pair("loss=1%,seed=7".parse()?)?;
//! let listener = b.listen("10.77.0.2:5201")?;
//! let stream = a.connect("10.77.0.2:5201")?;
//! let (accepted, peer) = listener.accept()?;
//! assert_eq!(peer, stream.local_addr()?);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # On the real kernel
//!
//! [`Netdev::kernel`] uses a network interface of Linux and the kernel's own TCP. It needs a NIC that supports device memory
//! TCP. The program stays the same, with memory that the NIC can access ([`memory::udmabuf`], [`memory::dma_heap`], [`memory::import`], or
//! [`Dmabuf::memfd`], which becomes a udmabuf when it is bound).
//!
//! ```no_run
//! use devmem_tcp::{Netdev, Placement, RxBatch};
//!
//! let memory = devmem_tcp::memory::udmabuf(64 << 20)?;
//! let nic = Netdev::kernel("eth1")?;
//! let plan = nic.plan_receive("10.77.0.2:5201".parse()?).queues(1);
//! println!("{}", plan.commands()?.join("\n"));
//! let setup = plan.apply()?;                                    // read back; restored when it and `rx` are dropped
//! let rx = nic.bind_rx(&memory, setup.queues())?;
//! let (mut stream, _peer) = nic.listen("10.77.0.2:5201")?.accept()?;
//! stream.set_placement(Placement::Strict);                      // payload in host memory is an error with its cause
//! let mut batch = RxBatch::with_capacity(1024);
//! while stream.recv(&mut batch)? > 0 { /* ... */ }
//! # drop(rx);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # After fork
//!
//! A NIC and everything made from it belong to the process that opened it. In a child of fork(2), every call on them fails at once
//! ([`ErrorKind::Forked`], EOWNERDEAD), and dropping them has no effect. The child may open other NICs. See [`Netdev`].
//!
//! # Either backend
//!
//! [`Netdev::auto`] uses the kernel's interface if it supports what the program needs and a user-space NIC otherwise,
//! and returns the reason.

#![forbid(unsafe_code)]

mod backend;
mod batch;
mod bind_options;
mod bound;
mod bound_target;
mod bound_tx;
pub mod capture;
pub mod choice;
mod completions;
mod conflicts;
mod congestion;
mod connect;
mod connecting;
#[cfg(feature = "cuda")]
pub mod cuda;
mod driver;
mod early;
mod error;
mod flows;
mod frags;
#[cfg(feature = "hip")]
pub mod hip;
mod home;
mod interest;
mod kernel;
mod limit;
pub mod link;
mod listener;
pub mod memory;
mod net_iov_count;
mod netdev;
mod open;
mod plan;
mod poller;
mod queue_stats;
mod ranges;
mod recv_half;
mod recv_request;
mod resolve;
mod restore;
mod send_half;
mod send_id;
mod send_ring;
mod send_signal;
mod signals;
pub mod stats;
mod stream;
mod syn_data;
pub mod tcp;
mod tcp_info;
mod tcp_options;
#[cfg(feature = "tokio")]
pub mod tokio;
mod user;
#[cfg(feature = "vulkan")]
pub mod vulkan;
mod watchers;

pub use batch::gather::Gather;
pub use batch::{Frag, Iter, RxBatch, RxFrag};
pub use bind_options::BindOptions;
pub use bound::{BoundRx, Unbound};
pub use bound_target::BoundTarget;
pub use bound_tx::BoundTx;
pub use completions::Completions;
pub use conflicts::AddressConflict;
pub use connect::ConnectOptions;
pub use connecting::Connecting;
pub use early::EarlyData;
pub use error::{BindError, Error, ErrorKind, RecvError, Remedy};
pub use interest::Interest;
pub use link::LinkSpec;
pub use listener::Listener;
pub use netdev::Netdev;
pub use open::NetdevBuilder;
pub use plan::{ReceivePlan, Setup};
pub use poller::{Poller, Watch};
pub use recv_half::RecvHalf;
pub use recv_request::Placement;
pub use restore::{Drift, RestoreReport};
pub use send_half::SendHalf;
pub use send_id::{Completion, SendId};
pub use send_ring::{RingSlot, SendRing};
pub use send_signal::SendSignal;
pub use stream::Stream;
pub use syn_data::EarlyCookie;

pub use devmem_uapi::{DmabufId, Errno, text};
pub use netmem::{DeviceSlice, Dmabuf, NiovSize};
pub use nic::{Impairment, LinkState};
pub use steer::RxQueueId;
