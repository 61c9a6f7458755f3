//! Settings of a fabric.

use std::net::IpAddr;

use devmem_tcp::Dmabuf;

use crate::error::FabricError;
use crate::limits::{DEFAULT_CHUNK, DEFAULT_STREAMS, MAX_STREAMS, is_chunk};

/// Settings of a fabric.
#[derive(Clone, Debug)]
pub struct Options {
    /// Data streams of an endpoint that this side dials: 1 to [`MAX_STREAMS`]. Several where one flow does not fill the
    /// network; otherwise they only cost turns.
    pub streams: u16,
    /// Length of a chunk: a multiple of [`MIN_CHUNK`](crate::MIN_CHUNK), at most [`MAX_CHUNK`](crate::MAX_CHUNK). A message is spread over the streams in chunks, and
    /// each costs a record.
    pub chunk: usize,
    /// Device memory to bind for receiving, and the queues to bind it to; `None`: payload arrives in host memory. Only
    /// connections that this side has accepted use it.
    pub pool: Option<Pool>,
    /// Address to listen on; `None`: the first one of the NIC.
    pub address: Option<IpAddr>,
    /// What makes progress.
    pub engine: Engine,
    /// When bytes may be written to a region.
    pub placement: Placement,
}

/// When the bytes of a message may be written to a region of mapped device memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Placement {
    /// As they arrive: the NIC of the user-space stack receives them at their place, without a further copy. Until the message
    /// is there, its place may have any bytes.
    #[default]
    Direct,
    /// In order, each byte once: they are received into other memory first. For programs that look at a place before the
    /// message is there.
    InOrder,
}

/// Device memory for receiving.
#[derive(Clone, Debug)]
pub struct Pool {
    /// The memory.
    pub memory: Dmabuf,
    /// Number of queues: the last ones of the NIC.
    pub queues: u16,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            streams: DEFAULT_STREAMS,
            chunk: DEFAULT_CHUNK,
            pool: None,
            address: None,
            engine: Engine::Calls,
            placement: Placement::Direct,
        }
    }
}

/// What makes progress with the endpoints of a fabric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Engine {
    /// Calls of the program: [`Endpoint::progress`](crate::Endpoint::progress), or waiting for an event. Only closing connections needs
    /// no call: in real time a thread that exists for it does that.
    #[default]
    Calls,
    /// Also a thread of the fabric. Operations go on while the program does something else, and it sleeps in
    /// [`Endpoint::wait_event`](crate::Endpoint::wait_event) until there is an event. The thread sleeps while there is nothing to do.
    Thread,
}

impl Options {
    pub(crate) fn check(&self) -> Result<(), FabricError> {
        if !(1..=MAX_STREAMS).contains(&self.streams) {
            return Err(FabricError::Options("an endpoint has 1 to 64 data streams"));
        }
        if !is_chunk(self.chunk) {
            return Err(FabricError::Options(
                "the length of a chunk is a multiple of 4096 bytes, at most 64 MiB",
            ));
        }
        Ok(())
    }
}
