//! Sockets of the kernel with device memory: receive, give frags back, send, learn what was sent.
//!
//! Everything here works on any descriptor of a TCP socket, blocking or not; std and rustix do the rest
//! of what one does with sockets. [`RecvBuffer::recv`] receives, [`FragReturns`] gives frags back,
//! [`send_dmabuf`] sends and [`ErrorQueue::drain`] says what may be reused.
//!
//! What the system calls return is judged apart from them, in [`Received::parse`] and
//! [`ErrorQueue::parse`], so that recorded control buffers can test it.

mod completions;
mod dontneed;
mod numbers;
mod options;
mod received;
mod recv;
mod send;
mod tcp_info;

pub use completions::{CompletionError, ErrorQueue};
pub use dontneed::{DontneedError, FragReturns, Freed};
pub use options::{bind_to_device, enable_zerocopy, incoming_napi, set_receive_low_water};
pub use received::{Content, ControlProblem, Frags, Received, RxFrag};
pub use recv::{HostRoom, RecvBuffer, RecvError, recv_into};
pub use send::{SendError, SendIds, TxSource, send_dmabuf};
pub use tcp_info::TcpInfo;
