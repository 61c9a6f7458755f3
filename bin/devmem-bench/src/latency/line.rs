//! A connection of either TCP, for messages of known length.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use anyhow::{Context, Result, bail};
use devmem_linux::cpu;
use devmem_tcp::{Listener, Netdev, Stream};

use super::rows::Wait;
use crate::row::CONGESTION;

/// A connection.
pub trait Line: Read + Write {
    /// Ends the stream of this end.
    fn finish(&mut self) -> io::Result<()>;
}

impl Line for TcpStream {
    fn finish(&mut self) -> io::Result<()> {
        self.shutdown(std::net::Shutdown::Write)
    }
}

impl Line for Stream {
    fn finish(&mut self) -> io::Result<()> {
        Ok(self.shutdown_write()?)
    }
}

/// Where connections come from and go to.
#[derive(Debug)]
pub enum Host {
    /// The kernel.
    Kernel,
    /// A NIC of the library.
    Ours(Netdev),
}

/// What accepts connections.
#[derive(Debug)]
pub enum Listening {
    Kernel(TcpListener),
    Ours(Listener),
}

impl Host {
    /// Connects, with calls that wait as `wait` says.
    pub fn connect(&self, to: SocketAddr, wait: Wait) -> Result<Box<dyn Line>> {
        match self {
            Self::Kernel => of_kernel(TcpStream::connect(to).context("connect")?, wait),
            Self::Ours(nic) => ours(nic.connect(to)?, wait),
        }
    }

    /// Listens on `address`.
    pub fn listen(&self, address: SocketAddr) -> Result<Listening> {
        Ok(match self {
            Self::Kernel => Listening::Kernel(TcpListener::bind(address).context("listen")?),
            Self::Ours(nic) => Listening::Ours(nic.listen(address)?),
        })
    }
}

impl Listening {
    pub fn accept(&self, wait: Wait) -> Result<Box<dyn Line>> {
        match self {
            Self::Kernel(listener) => of_kernel(listener.accept().context("accept")?.0, wait),
            Self::Ours(listener) => ours(listener.accept()?.0, wait),
        }
    }
}

fn of_kernel(stream: TcpStream, wait: Wait) -> Result<Box<dyn Line>> {
    stream.set_nodelay(true)?;
    // The machine may have chosen another.
    cpu::set_congestion_control(&stream, CONGESTION)?;
    stream.set_nonblocking(wait == Wait::Spin)?;
    Ok(Box::new(stream))
}

fn ours(stream: Stream, wait: Wait) -> Result<Box<dyn Line>> {
    stream.set_nodelay(true)?;
    stream.set_nonblocking(wait == Wait::Spin);
    Ok(Box::new(stream))
}

/// Sends a whole message.
pub fn send(line: &mut dyn Line, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        match line.write(bytes) {
            Ok(sent) => bytes = bytes.get(sent..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context("send"),
        }
    }
    Ok(())
}

/// Receives a whole message; returns false if the stream ended before its first byte.
pub fn receive(line: &mut dyn Line, bytes: &mut [u8]) -> Result<bool> {
    let mut received = 0;
    while received < bytes.len() {
        match line.read(&mut bytes[received..]) {
            Ok(0) if received == 0 => return Ok(false),
            Ok(0) => bail!("the stream ended in the middle of a message"),
            Ok(more) => received += more,
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context("receive"),
        }
    }
    Ok(true)
}
