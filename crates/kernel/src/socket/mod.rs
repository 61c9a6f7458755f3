//! Device memory on sockets of the kernel: receive, return frags, send, read completions.
//!
//! Everything here works on any descriptor of a TCP socket, blocking or not; for other socket calls use std or rustix.
//! [`RecvBuffer::recv`] receives, [`FragReturns`] returns frags, [`send_dmabuf`] sends, and [`ErrorQueue::drain`] reads
//! completions.
//!
//! [`ReceivedMessage::parse`] and [`ErrorQueue::parse`] validate the results, separately from the system calls, so that they
//! can be tested with recorded control buffers.
//!
//! What is called for each frag is `#[inline]`: this crate is not optimised (Cargo.toml of the workspace), those that call it are.

mod completions;
mod dontneed;
mod numbers;
mod options;
mod received;
mod recv;
mod send;
mod tcp_info;

pub use completions::{CompletionError, ErrorQueue};
pub use devmem_uapi::Freed;
pub use dontneed::{DontneedError, FragReturns};
pub use options::{
    allow_fast_open_without_cookie, bind_to_device, demand_fast_open_cookie, enable_zerocopy,
    incoming_napi, set_fast_open, set_receive_low_water,
};
pub use received::{Content, ControlProblem, Frags, ReceivedMessage, RxFrag};
pub use recv::{HostRoom, RecvBuffer, RecvError, recv_into};
pub use send::{SendError, SendIds, TxSource, send_dmabuf};
pub use tcp_info::TcpInfo;
