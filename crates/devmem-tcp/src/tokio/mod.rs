//! [`Listener`], [`Stream`] and [`Completions`] for tokio. Feature `tokio`, off by default.
//!
//! [`Netdev`], memory, bindings and batches are the same types as without tokio, and a stream receives into an [`RxBatch`].
//! The adapter is thin: a call that would block waits with an [`AsyncFd`](::tokio::io::unix::AsyncFd), for the socket with a
//! kernel NIC, for an eventfd in user space. While all tasks wait, the background thread of the NIC polls a user-space stack.
//!
//! The documentation of every `async fn` says whether it is *cancel-safe*: whether its future can be dropped before
//! completion, as `select!` does, without losing anything.
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
//! NICs in virtual time ([`Netdev::pair`](crate::Netdev::pair)) are not supported, because only calls advance their clock
//! and a waiting task would wait forever; the constructors refuse their listeners and streams.
//!
//! Dropping the last handle of a [`Netdev`] blocks until the peers have acknowledged what dropped streams have sent, for half a
//! second at most. A program that must not block so long should drop it in `spawn_blocking`.
//!
//! [`Netdev`]: crate::Netdev
//! [`RxBatch`]: crate::RxBatch

mod completions;
mod eyeballs;
mod halves;
mod listener;
mod signal;
mod stream;

/// The fd that a task waits on cannot be created.
fn no_fd(error: std::io::Error) -> crate::error::Error {
    crate::error::Error::system("an fd to wait on")(error)
}

pub use completions::{CompletionStream, Completions};
pub use halves::{RecvHalf, SendHalf};
pub use listener::Listener;
pub use stream::Stream;
