//! Device memory TCP: receive TCP payload straight into device memory.
//!
//! Key types: [`Netdev`] (a NIC with its TCP/IP stack), [`Dmabuf`] (device memory), [`BoundRx`] (the one bound to
//! RX queues of the other), [`Listener`] and [`Stream`] (connections), [`RxBatch`] (what one receive returned:
//! where in device memory the bytes lie).
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
//! let nic = Netdev::user("mem:doc", "10.77.0.2/24")?;           // "tap:dm0" is a TAP interface
//! let setup = nic.plan_receive("10.77.0.2:5201".parse()?)       // split on, RSS away, rule to the queues
//!     .queues(1)
//!     .apply()?;                                                // restored when dropped
//! let rx = nic.bind_rx(&memory, setup.queues())?;               // unbound when dropped
//! let listener = nic.listen("10.77.0.2:5201")?;
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
//!             Frag::Linear(bytes) => consume_host(bytes),       // rare: the NIC could not split
//!         }
//!     }
//!     batch.release()?;                                         // tokens home, merged to ranges; Drop does it too
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
//! Keeping a frag: [`RxBatch::take`] moves frags out as owned [`RxFrag`]s that go home one by one when dropped.
//! Contiguous memory: [`RxBatch::gather_into`] copies device to device in one pass. Policy for bytes that missed
//! device memory: [`Stream::set_placement`].
//!
//! # Without any network
//!
//! [`Netdev::pair`] gives two NICs on an in-memory wire in virtual time, as imperfect as wished.
//!
//! ```
//! use devmem_tcp::Netdev;
//!
//! let (a, b) = Netdev::pair("loss=1%,seed=7".parse()?)?;
//! let listener = b.listen("10.77.0.2:5201")?;
//! let stream = a.connect("10.77.0.2:5201")?;
//! let (accepted, peer) = listener.accept()?;
//! assert_eq!(Some(peer), stream.local_addr());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What is not here: sending from device memory and the real kernel's sockets. Host bytes are sent by
//! [`std::io::Write`] on a [`Stream`].

#![forbid(unsafe_code)]

mod background;
mod batch;
mod bound;
mod clock;
mod driver;
mod error;
mod link_spec;
mod listener;
mod netdev;
mod open;
mod plan;
mod stream;

pub use batch::{Frag, Iter, RxBatch, RxFrag};
pub use bound::{BoundRx, NetIovCount, Unbound};
pub use error::{
    AcceptError, BindError, ConnectError, GatherError, ListenError, OpenError, RecvError,
    ReleaseError, SendError, SetupError, ShutdownError,
};
pub use link_spec::{LinkSpec, LinkSpecError};
pub use listener::Listener;
pub use netdev::Netdev;
pub use open::NetdevBuilder;
pub use plan::{ReceivePlan, Setup};
pub use stream::{Placement, Stream, StreamStats};

pub use devmem_uapi::{DmabufId, Errno};
pub use netmem::{DeviceSlice, Dmabuf, DmabufError, NiovSize, PageKind};
pub use nic::{Direction, FrameSink, Impairment};
pub use steer::RxQueueId;
