//! The same calls, awaited: [`Listener`], [`Stream`] and [`Completions`] for tokio. Feature `tokio`, off by default.
//!
//! Everything else is as without tokio: [`Netdev`], memory, bindings and batches are used directly, and what a stream
//! receives is an [`RxBatch`]. The adapter is thin: a call that would block waits, by an
//! [`AsyncFd`](::tokio::io::unix::AsyncFd), for the fd that a program with its own event loop would wait for. A stack
//! in user space is driven by its own thread while every task waits.
//!
//! Every `async fn` here says whether it is *cancel-safe*: whether dropping its future before it is done loses nothing,
//! as `select!` does to the branches that were not first.
//!
//! ```no_run
//! use devmem_tcp::{Dmabuf, Netdev, RxBatch, tokio::Listener};
//!
//! # async fn receive() -> Result<(), Box<dyn std::error::Error>> {
//! let memory = Dmabuf::anonymous(64 << 20)?;
//! let nic = Netdev::user("tap:dm0", "10.77.0.2/24")?;
//! let setup = nic.plan_receive("10.77.0.2:5201".parse()?).queues(1).apply()?;
//! let rx = nic.bind_rx(&memory, setup.queues())?;
//! let listener = Listener::new(nic.listen("10.77.0.2:5201")?)?;
//! let (mut stream, peer) = listener.accept().await?;
//! let mut batch = RxBatch::with_capacity(1024);
//! while stream.recv(&mut batch).await? > 0 {
//!     println!("{} bytes from {peer}", batch.device_bytes());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! What is not here: two NICs in virtual time ([`Netdev::pair`](crate::Netdev::pair)), where only calls move the clock
//! and a task that waits would wait for ever; making one of these of such a NIC's is refused.
//!
//! The last handle of a [`Netdev`] that is dropped lets connections say goodbye, for half a second at most; in a
//! program that must not block for so long it is dropped on a thread of its own (`spawn_blocking`).
//!
//! [`Netdev`]: crate::Netdev
//! [`RxBatch`]: crate::RxBatch

mod completions;
mod listener;
mod signal;
mod stream;

pub use completions::Completions;
pub use listener::Listener;
pub use stream::Stream;
