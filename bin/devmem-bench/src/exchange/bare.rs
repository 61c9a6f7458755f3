//! Messages on one TCP connection of our stack: what the exchange is measured against.

use std::io::{Read, Write};

use anyhow::{Context, Result};
use devmem_tcp::{Netdev, Stream};

use super::messages::{InTurn, Mark, Messages};

/// A connection with buffers for each direction.
pub struct Bare {
    stream: Stream,
    outgoing: InTurn,
    incoming: InTurn,
    _nic: Netdev,
}

impl Bare {
    /// Listens, and prints the address.
    pub fn accept(nic: Netdev, bytes: usize) -> Result<Self> {
        let address = nic.addresses().into_iter().next();
        let listener = nic.listen((address.context("the NIC has no address")?, 0))?;
        tool::output::print_line(listener.local_addr()?)?;
        let (stream, _) = listener.accept()?;
        Self::new(nic, stream, bytes)
    }

    /// Connects to the address in `contact`.
    pub fn connect(nic: Netdev, contact: &str, bytes: usize) -> Result<Self> {
        let stream = nic.connect(contact)?;
        Self::new(nic, stream, bytes)
    }

    fn new(nic: Netdev, stream: Stream, bytes: usize) -> Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            outgoing: InTurn::new(bytes),
            incoming: InTurn::new(bytes),
            _nic: nic,
        })
    }
}

impl Messages for Bare {
    fn send(&mut self, mark: Mark) -> Result<()> {
        let outgoing = self.outgoing.next();
        outgoing[0] = mark.to_byte();
        self.stream.write_all(outgoing).context("send")
    }

    fn receive(&mut self) -> Result<Mark> {
        let incoming = self.incoming.next();
        self.stream.read_exact(incoming).context("receive")?;
        Ok(Mark::of(incoming[0]))
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        // The stack ends with the process: what was sent must arrive before.
        self.stream.shutdown_write()?;
        while self
            .stream
            .read(self.incoming.next())
            .context("wait for the end")?
            > 0
        {}
        Ok(())
    }
}
