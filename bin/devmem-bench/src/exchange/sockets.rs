//! Messages over the kernel's sockets, as NCCL's own transport moves them: the sizes and the pieces of a message go over four
//! connections, which one thread polls without sleeping.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::thread;

use anyhow::{Context, Result, bail};
use devmem_linux::cpu;

use super::link::kernels_address;
use super::messages::{InTurn, Mark, Messages};
use crate::row::CONGESTION;

/// Connections between two ranks.
const CONNECTIONS: usize = 4;
/// A message shorter than this per connection uses fewer of them.
const MIN_PIECE: usize = 64 << 10;
/// Bytes of the length before each message.
const HEADER_BYTES: usize = 8;

/// Connections with buffers for each direction.
pub struct Sockets {
    streams: Vec<TcpStream>,
    outgoing: InTurn,
    incoming: InTurn,
}

impl Sockets {
    /// Listens, and prints the address.
    pub fn accept(bytes: usize) -> Result<Self> {
        let listener = TcpListener::bind(kernels_address()).context("listen")?;
        tool::output::print_line(listener.local_addr()?)?;
        let streams = (0..CONNECTIONS).map(|_| Ok(listener.accept()?.0));
        Self::new(streams.collect::<io::Result<_>>()?, bytes)
    }

    /// Connects to the address in `contact`.
    pub fn connect(contact: &str, bytes: usize) -> Result<Self> {
        let streams = (0..CONNECTIONS).map(|_| TcpStream::connect(contact));
        Self::new(
            streams.collect::<io::Result<_>>().context("connect")?,
            bytes,
        )
    }

    fn new(streams: Vec<TcpStream>, bytes: usize) -> Result<Self> {
        for stream in &streams {
            stream.set_nodelay(true)?;
            // The machine may have chosen another.
            cpu::set_congestion_control(stream, CONGESTION)?;
            stream.set_nonblocking(true)?;
        }
        Ok(Self {
            streams,
            outgoing: InTurn::new(bytes),
            incoming: InTurn::new(bytes),
        })
    }
}

/// Returns the bytes of a message that each connection carries.
fn pieces(bytes: usize) -> [Range<usize>; CONNECTIONS] {
    let piece = bytes.div_ceil(CONNECTIONS).max(MIN_PIECE);
    std::array::from_fn(|index| (index * piece).min(bytes)..((index + 1) * piece).min(bytes))
}

/// Moves all ranges with `io`, which is called with the number of a connection and what is left of its range.
fn move_all(
    mut left: Vec<Range<usize>>,
    mut io: impl FnMut(usize, Range<usize>) -> io::Result<usize>,
) -> Result<()> {
    while left.iter().any(|range| !range.is_empty()) {
        let mut worked = false;
        for (index, range) in left.iter_mut().enumerate() {
            if range.start == range.end {
                continue;
            }
            match io(index, range.clone()) {
                Ok(0) => bail!("the other rank has closed a connection"),
                Ok(bytes) => {
                    range.start += bytes;
                    worked = true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        if !worked {
            thread::yield_now();
        }
    }
    Ok(())
}

impl Messages for Sockets {
    fn send(&mut self, mark: Mark) -> Result<()> {
        let Self {
            streams, outgoing, ..
        } = self;
        let outgoing = outgoing.next();
        outgoing[0] = mark.to_byte();
        let header = (outgoing.len() as u64).to_le_bytes();
        let whole = 0..HEADER_BYTES;
        move_all(vec![whole], |_, range| (&streams[0]).write(&header[range]))?;
        let all = pieces(outgoing.len()).to_vec();
        move_all(all, |index, range| {
            (&streams[index]).write(&outgoing[range])
        })
    }

    fn receive(&mut self) -> Result<Mark> {
        let Self {
            streams, incoming, ..
        } = self;
        let incoming = incoming.next();
        let mut header = [0; HEADER_BYTES];
        let whole = 0..HEADER_BYTES;
        move_all(vec![whole], |_, range| {
            (&streams[0]).read(&mut header[range])
        })?;
        if u64::from_le_bytes(header) != incoming.len() as u64 {
            bail!("a message of another length");
        }
        let all = pieces(incoming.len()).to_vec();
        move_all(all, |index, range| {
            (&streams[index]).read(&mut incoming[range])
        })?;
        Ok(Mark::of(incoming[0]))
    }

    fn finish(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pieces_are_the_message() {
        for bytes in [8, MIN_PIECE + 1, 4 << 20, (4 << 20) + 3] {
            let pieces = pieces(bytes);
            assert_eq!((pieces[0].start, pieces[CONNECTIONS - 1].end), (0, bytes));
            assert!(pieces.windows(2).all(|two| two[0].end == two[1].start));
        }
    }
}
