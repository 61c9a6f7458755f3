//! NVMe over TCP up to the first command for data: a host is asked for its subsystems, and a namespace for its size and its rules.
//!
//! An `Association` is the admin queue of one controller and its I/O queues, each a connection.
//! When an I/O queue breaks, the association ends, as in Linux, and the next queue begins another one: so no command of a
//! broken queue can be executed after it was repeated.

mod association;
mod discovery;
mod limits;
mod namespace;
mod queue;
mod refusal;
mod url;

pub use association::{IoQueue, Membership};
pub use discovery::{NvmeListed, NvmeSubsystem};
pub use limits::Limits;
pub use namespace::NvmeNamespace;
pub use url::NvmeUrl;
