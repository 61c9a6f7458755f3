//! NVMe over TCP: reading a namespace over an I/O queue. `crate::store` writes.
//!
//! One command is one piece. Its data come behind headers of 24 bytes that name the command, so each header says where the
//! bytes behind it belong, and the NIC receives them there: data are placed PDU by PDU.

mod session;

pub(crate) use session::{NvmeSession, blocks_of};
