//! NVMe over TCP: a host that reads namespaces of a remote subsystem. `crate::store` writes.
//!
//! One command is one piece. Its data come behind headers of 24 bytes that name the command, so each header says where the
//! bytes behind it belong, and the NIC receives them there: data are placed PDU by PDU.
//!
//! An [`Association`](association::Association) is the admin queue of one controller and its I/O queues, each a connection.
//! When an I/O queue breaks, the association ends, as in Linux, and the next queue begins another one: so no command of a
//! broken queue can be executed after it was repeated.

mod association;
mod discovery;
mod limits;
mod namespace;
mod queue;
mod refusal;
mod session;
mod url;

pub use discovery::{NvmeListed, NvmeSubsystem};
pub use namespace::NvmeNamespace;
pub use url::NvmeUrl;

pub(crate) use association::{IoQueue, Membership};
pub(crate) use limits::Limits;
#[cfg(feature = "test-util")]
pub(crate) use session::NvmeSession;
pub(crate) use session::blocks_of;
