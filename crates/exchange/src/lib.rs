//! Exchange: messages between processes, from and into registered memory.
//!
//! Key types: [`Fabric`] (a NIC with what all endpoints on it share), [`Region`] (registered memory), [`Endpoint`] (one end
//! of the connections between two processes) and [`Event`] (how an operation ended). Two kinds of operations: a *send*
//! meets a *receive* that the peer has posted, by tag, in order; a *put*, a *get* and a *notification* need nothing of the
//! peer but a published region.
//!
//! ```
//! use devmem_tcp::Netdev;
//! use devmem_exchange::{Access, Buffer, Event, Fabric, Memory, Options, Part};
//!
//! let (a, b) = Netdev::pair("seed=1".parse()?)?;
//! let (a, b) = (Fabric::open(a, Options::default())?, Fabric::open(b, Options::default())?);
//! let listener = b.listen()?;
//! let mut dial = a.dial(&listener.ticket())?;               // the ticket is 128 bytes of plain data
//! let (mut ours, mut theirs) = (None, None);
//! while ours.is_none() || theirs.is_none() {
//!     ours = ours.or(dial.poll()?);
//!     theirs = theirs.or(listener.poll()?);
//! }
//! let (ours, theirs) = (ours.expect("connected"), theirs.expect("accepted"));
//!
//! let from = Buffer::new(b"sixteen bytes ..".to_vec());
//! let to = Buffer::new(vec![0; 100]);
//! let source = a.register(Memory::Host(from), Access::PRIVATE)?;
//! let target = b.register(Memory::Host(to.clone()), Access::PRIVATE)?;
//! theirs.receive(&[Part { region: &target, range: 0..100, tag: 7 }], 1)?;
//! ours.send(&source, 0..16, 7, 2)?;
//! let received = loop {
//!     ours.progress();
//!     theirs.progress();
//!     if let Some(event) = theirs.next_event() {
//!         break event;
//!     }
//! };
//! assert!(matches!(received, Event::Received { user: 1, sizes } if *sizes == [16]));
//! assert!(to.with(|bytes| bytes.starts_with(b"sixteen bytes ..")));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Connections
//!
//! An endpoint has one *control stream*, with records of 64 bytes in both directions ([`Record`]), and some *data
//! streams*, which carry payload and nothing else: a frag in device memory never contains a header. The receiving side
//! learns from a record what the next bytes of a data stream are before it takes them from TCP, so it takes no byte that
//! has no place. Bytes that have to be copied anyway, at most [`INLINE_BYTES`] of them, follow their record in the control
//! stream.
//!
//! All listeners of a fabric share two ports: one for control streams, told apart by the cookie in their first record, and
//! one for data streams, recognised by the peer's address, which the control stream names. The steering rule of the data
//! port exists before the first ticket, so no payload can miss the bound memory, and connecting needs no rule per flow.
//! Between the two sides no device may translate addresses.
//!
//! ```text
//!  side that connects                                     side that listens
//!  ------------------                                     -----------------
//!  connect control, data 0..N    --- SYN ... --->         accept
//!  Hello{version, cookie, N}     ------------->           cookie known?
//!  Address{i, local address}     ------------->           data stream i = connection from that address
//!                                <-------------  Ready    all N are here
//! ```
//!
//! # One message
//!
//! 1. [`Endpoint::receive`] announces each part with a `Posted` record: permission to send one message. Nothing is sent
//!    without it, so the memory in use is bounded by what was posted. The record leaves with what the endpoint sends next, or when
//!    it makes progress: often in one packet with a message in the other direction.
//! 2. [`Endpoint::send`] looks for the first posted part of its tag (`Matcher`); without one it waits.
//! 3. A message of at most [`INLINE_BYTES`] from host memory follows its `Chunk` record in the control stream, and is done. So does
//!    one from a dma-buf that the NIC cannot send from. The peer copies it to its place, and steps 4 and 5 are left out; a GPU
//!    writes to its own memory.
//!    A longer message is cut into chunks. Each goes to the data stream with the fewest queued bytes, behind a `Chunk` record
//!    that says which stream, which message and which offset. So a slow stream gets less and does not hold up the others.
//! 4. The chunk is sent from the registered memory: from a dma-buf without a copy, through one binding per dma-buf; from host
//!    memory by TCP's copy.
//! 5. The peer checks the record against what it has posted, and expects the chunk on that stream. It receives at most
//!    the bytes of the expected chunk, copies the frags to the posted address (`region::gather`), and returns their
//!    tokens at once.
//! 6. The receive is done when every chunk is in place, the send when TCP no longer needs the bytes: after the
//!    acknowledgement for a dma-buf that the NIC reads, after the copy for other memory.
//!
//! ```text
//!            side that sends                                        side that receives
//!
//!         send()                                                        receive()
//!           |                                                               |
//!           v             <----------- Posted{op, part, len, tag} ---  +---------+
//!      +---------+                                                     | Posted  |
//!      |  Taken  |  no part of its tag is posted                       +---------+
//!      +---------+                                                          |
//!           | a part of its tag                                             |
//!           v                                                               |
//!      +---------+  --- Chunk{op, part, carrier, offset, len, total} -->    v
//!      | Matched |                                                     +----------+
//!      +---------+  === the bytes, behind the record or on a ======>   | Arriving | copy, or gather
//!           | the last chunk is cut                data stream         +----------+
//!           v                                                               | every part is whole
//!      +---------+                                                          v
//!      |   Cut   |  TCP still needs the bytes                        Event::Received
//!      +---------+
//!           | every chunk is acknowledged (dma-buf) or copied (host memory)
//!           v
//!      Event::Sent
//!
//!      From each state: the endpoint breaks -> Event::Failed, once.
//! ```
//!
//! The endpoint itself:
//!
//! ```text
//!              Bye, Failed, or the end of the control stream was read
//!      +------+                                                    +--------+
//!      | Open | -------------------------------------------------> | Ending |  what was announced
//!      +------+                                                    +--------+  before still arrives
//!        |   |  violation, broken connection, memory gone               |
//!        |   +------------------------+---------------------------------+
//!        | close()                    v
//!        v                      +---------------+
//!   +--------+                  | Broken{cause} |  every operation fails once, later ones at once
//!   | Closed |                  +---------------+
//!   +--------+
//!    the connections linger until the peer has closed, for two seconds at most
//! ```
//!
//! A put is a message to a published region instead of a part; its record carries the region's key, and the *receiver*
//! checks key, range and permission. The key is a random number that one endpoint accepts ([`Endpoint::publish`]). A get asks the peer for such a message. A notification waits at the receiver until all
//! chunks that were announced before it are in place.
//!
//! # What the peer cannot do
//!
//! No number of the peer sizes an allocation. An unknown or impossible record, a chunk of the wrong length, for nothing that
//! was posted, or outside of what was, breaks the endpoint with a cause that names it, and the peer is told. When more is
//! announced than an endpoint keeps in mind, it stops reading records, and TCP stops the peer: 4,096 chunks, 256 gets, or 1,024
//! notifications or 1 MiB of them, those counted that the program has not taken. What a turn does is bounded, too, in bytes and in records,
//! so that no call lasts as long as the peer sends.
//!
//! A connection that is not part of an endpoint is closed after 30 seconds, when its peer has closed, when there are more than 4,096 of
//! its kind, or when the listener that it names is dropped. Of each hello only connections from its own address are taken.
//!
//! # Progress
//!
//! Posting, polling and [`Endpoint::progress`] move what can be moved, and never wait. [`Endpoint::wait_event`] does so until
//! there is an event, and sleeps in between. With [`Engine::Thread`] one thread of the fabric makes progress with all of its
//! endpoints; it sleeps while there is nothing to do. An endpoint is behind one lock. Endpoints of a fabric are independent: one
//! that breaks does not touch the others.
//!
//! # Handing frags out
//!
//! A receive into a [`Landing`] copies nothing: the landing takes the frags over, as batches whose memory is lent until they are dropped, and a
//! copy of bytes that came in host memory. It is for devices that gather by themselves, such as kernels that unpack. Whoever keeps many frags
//! needs a large pool: what is lent cannot receive.
//!
//! # What it does not do
//!
//! It does not reconnect, encrypt or authenticate: whoever sees a ticket can connect. Only the side that accepts receives into bound device memory; payload for the
//! side that connects arrives in host memory and is copied. Messages are not ordered with puts.

#![forbid(unsafe_code)]

mod accept;
mod arrivals;
mod budget;
mod closing_thread;
mod control;
mod core;
mod cut;
mod data;
mod dial;
mod endpoint;
mod engine;
mod error;
mod fabric;
mod fabric_connections;
mod fabric_state;
mod in_flight;
mod inner;
mod limits;
mod linger;
mod matching;
mod notifications;
mod operations;
mod options;
mod placing;
mod published_regions;
mod record;
mod region;
mod remedy;
mod shared;
mod ticket;
mod wait;
mod wires;

use std::time::Duration;

use devmem_tcp::{Stream, tcp::Keepalive};

pub use accept::Listener;
pub use core::EndpointStats;
pub use dial::Dial;
pub use endpoint::{Closing, Endpoint, Part};
pub use error::{
    Cause, ConnectError, FabricError, PostError, PublishError, RegionInUse, RegisterError,
    StreamName, Violation, explain,
};
pub use fabric::Fabric;
pub use limits::{
    DEFAULT_CHUNK, DEFAULT_STREAMS, MAX_CHUNK, MAX_NOTIFY_BYTES, MAX_PARTS, MAX_RECEIVES,
    MAX_SENDS, MAX_STREAMS, MIN_CHUNK,
};
pub use operations::{Event, Sizes};
pub use options::{Engine, Options, Placement, Pool};
pub use record::{BadRecord, Carrier, Failure, Hello, INLINE_BYTES, RECORD_BYTES, Record, VERSION};
pub use region::{Access, Buffer, HostMemory, Landing, Memory, MemoryGone, Region, RegionKey};
pub use remedy::Remedy;
pub use ticket::{BadTicket, TICKET_BYTES, Ticket};

/// A host that is gone sends no reset: after about 20 seconds of silence and of unanswered probes the connection ends.
const KEEPALIVE: Keepalive = Keepalive {
    idle: Duration::from_secs(10),
    interval: Duration::from_secs(2),
    probes: 5,
};

/// Sets up a connection of an endpoint.
fn keep_alive(stream: &Stream) {
    // Both fail only in a child of fork(2), where the next call on the stream says so.
    let _ = stream.set_keepalive(Some(KEEPALIVE));
    let _ = stream.set_nodelay(true);
}
