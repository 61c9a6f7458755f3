//! What carries bytes between two agents: connections without waiting ([`Wire`]), and the network that makes them ([`Network`]). The kernel's
//! sockets are one network (`sockets`), a NIC of the library another one (`netdev`).

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::time::Duration;

use devmem_tcp::stats::NetIovCount;
use rustix::process::Pid;

use crate::address::Address;
use crate::raw::gpu::GpuMemory;
use crate::raw::scatter::Scatter;
use crate::status::Failure;

/// Number of the listeners of a network. Those of connections are greater.
pub(crate) const LISTENERS: u64 = 0;

/// Bytes that are read at once to be thrown away.
pub(crate) const DISCARD_BYTES: usize = 64 << 10;

/// A connection that is ready for something.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    /// The number of the connection, or [`LISTENERS`].
    pub(crate) number: u64,
    pub(crate) to_read: bool,
    pub(crate) to_write: bool,
}

/// Payload bytes of memory of GPUs, by how they have passed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GpuBytes {
    /// The NIC has moved them from or to memory of the GPU.
    pub(crate) by_nic: u64,
    /// Through host memory.
    pub(crate) staged: u64,
}

/// A connection. It counts as ready from a report of its network until a call finds that it is not, so that bytes that nobody expects yet wake
/// nobody.
pub(crate) trait Wire: fmt::Debug + Send {
    /// Notes a report of the network.
    fn on_ready(&mut self, ready: Ready);

    /// Returns whether the connection is there; an error if the attempt has failed.
    fn is_connected(&mut self) -> io::Result<bool>;

    /// Returns whether a write is worth an attempt.
    fn can_write(&self) -> bool;

    /// Reads what is there. `None`: nothing yet. 0: the peer has ended its direction.
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<Option<usize>>;

    /// Writes what there is room for. `None`: there is none yet.
    fn write(&mut self, bytes: &[u8]) -> io::Result<Option<usize>>;

    /// As [`read`](Self::read), straight into registered memory, at most `at_most` bytes.
    fn receive(&mut self, to: &mut Scatter, at_most: usize) -> io::Result<Option<usize>>;

    /// As [`read`](Self::read), of at most `at_most` bytes, which go nowhere.
    fn discard(&mut self, at_most: usize) -> io::Result<Option<usize>> {
        let mut bytes = [0; DISCARD_BYTES];
        self.read(&mut bytes[..at_most.min(DISCARD_BYTES)])
    }

    /// As [`write`](Self::write), straight from registered memory, at most `at_most` bytes.
    fn send(&mut self, from: &mut Scatter, at_most: usize) -> io::Result<Option<usize>>;

    /// Returns whether [`receive`](Self::receive) and [`send`](Self::send) take memory of GPUs, too.
    fn takes_gpus(&self) -> bool {
        false
    }

    /// Returns what has passed of such memory since the last call.
    fn take_gpu_bytes(&mut self) -> GpuBytes {
        GpuBytes::default()
    }

    /// Ends this direction, after what was written.
    fn end(&self);

    /// Gives the connection another number.
    fn renumber(&mut self, number: u64) -> io::Result<()>;

    /// Returns the process at the other end, if the kernel vouches for it.
    fn process(&self) -> Option<Pid> {
        None
    }
}

/// What connections are made of. All agents speak TCP, so that those of different networks reach each other.
pub(crate) trait Network: fmt::Debug + Send + Sync {
    /// Returns the port on which peers connect.
    fn port(&self) -> u16;

    /// Returns the port for their connections for payload.
    fn payload_port(&self) -> u16 {
        self.port()
    }

    /// Returns the addresses that peers are told.
    fn addresses(&self) -> io::Result<Vec<IpAddr>>;

    /// Returns how the bytes of a peer travel, for people.
    fn describe(&self) -> String;

    /// How often the CPU copies each byte on this side: to what is sent, or from what was received.
    fn copies(&self) -> u32;

    /// Begins to connect, and watches the connection under a number.
    fn connect(&self, to: Address, number: u64) -> io::Result<Box<dyn Wire>>;

    /// As [`connect`](Self::connect), a connection for payload, to the peer's port for such.
    fn connect_payload(&self, to: Address, number: u64) -> io::Result<Box<dyn Wire>> {
        self.connect(to, number)
    }

    /// Counts the net_iovs of what payload is received into, if it is memory of a GPU.
    fn net_iovs(&self) -> Option<NetIovCount> {
        None
    }

    /// Prepares memory of a GPU for transfers.
    fn register(&self, _memory: &GpuMemory) -> Result<(), Failure> {
        Ok(())
    }

    /// Takes the next connection of a peer, and watches it under a number. `None`: there is none.
    fn accept(&self, number: u64) -> Option<Box<dyn Wire>>;

    /// Adds to `ready` what has become ready since the last call. Never waits.
    fn collect(&self, ready: &mut Vec<Ready>) -> io::Result<()>;

    /// Waits until something is ready or [`wake`](Self::wake) is called, for at most `at_most`. Ends early at a signal. One thread at a time.
    fn wait(&self, at_most: Duration);

    /// Lets another thread run until something is ready, for at most `at_most`; pays no attention to [`wake`](Self::wake).
    fn pause(&self, at_most: Duration);

    /// Ends a [`wait`](Self::wait), or the next one.
    fn wake(&self);
}
