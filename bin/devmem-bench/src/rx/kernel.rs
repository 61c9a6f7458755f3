//! Rows A and A0d: the kernel's TCP receives, and the bytes are copied to the device buffer.

use std::io::Read;
use std::net::{SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;

use anyhow::{Context, Result};
use devmem_uapi::DmabufId;
use mapped::DmaRight;
use netmem::{BufSpan, Dmabuf, MemoryProvider, NiovSize, PagePool};

use crate::meter::{Meter, MeterReading, SILENCE};
use crate::sender::{PORT, RECEIVER, Starter, wait_for_sender};

/// Bytes of one receive call.
const CHUNK: usize = 256 << 10;

/// Receives to a buffer that stays in the cache, and copies from there to the device buffer, which does not stay in the cache.
pub fn copy(memory: &Dmabuf, starter: Starter) -> Result<MeterReading> {
    let mut stream = accept(starter)?;
    let mut buffer = vec![0; CHUNK];
    let mut meter = Meter::default();
    let mut offset = 0;
    loop {
        let len = stream.read(&mut buffer).context("receive")?;
        if len == 0 {
            return Ok(meter.finish());
        }
        meter.add(len);
        memory.copy_in(offset, &buffer[..len])?;
        offset = next(offset, len, memory.size());
    }
}

/// Receives directly into the device buffer.
pub fn direct(memory: &Dmabuf, starter: Starter) -> Result<MeterReading> {
    let provider = MemoryProvider::of_dmabuf(memory, DmabufId(1), NiovSize::MAX)?;
    let mut pool = PagePool::new(Arc::new(provider));
    let port = pool.dma_port(DmaRight::of_a_nic());
    let mut pages = Vec::new();
    pool.alloc_contiguous(memory.size() / NiovSize::MAX.bytes(), &mut pages);
    let stream = accept(starter)?;
    let mut meter = Meter::default();
    let mut offset = 0;
    loop {
        let netmem = pages
            .get(offset / NiovSize::MAX.bytes())
            .context("the memory has net_iovs")?;
        let within = offset % NiovSize::MAX.bytes();
        let span = BufSpan {
            netmem,
            offset: u32::try_from(within)?,
            len: u32::try_from(CHUNK)?,
        };
        let len = port
            .readv(stream.as_fd(), &mut [], &[span], &mut [])
            .context("receive")?;
        if len == 0 {
            return Ok(meter.finish());
        }
        meter.add(len);
        offset = next(offset, CHUNK, memory.size());
    }
}

/// Returns the offset of the next chunk: after the last one, or 0 if no whole chunk fits there.
fn next(offset: usize, len: usize, size: usize) -> usize {
    let next = offset + len;
    if next + CHUNK <= size { next } else { 0 }
}

fn accept(starter: Starter) -> Result<TcpStream> {
    let listener = TcpListener::bind(SocketAddrV4::new(RECEIVER, PORT)).context("listen")?;
    starter.go().context("start the sender")?;
    wait_for_sender(&listener)?;
    let (stream, _) = listener.accept().context("accept")?;
    stream
        .set_read_timeout(Some(SILENCE))
        .context("set a time limit")?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_never_exceeds_the_memory() {
        let size = 2 << 20;
        let mut offset = 0;
        for len in [CHUNK, 1, CHUNK - 1, CHUNK, 12_345]
            .into_iter()
            .cycle()
            .take(1000)
        {
            assert!(offset + CHUNK <= size);
            offset = next(offset, len, size);
        }
    }

    #[test]
    fn chunks_of_full_length_never_cross_a_net_iov() {
        let mut offset = 0;
        for _ in 0..1000 {
            assert!(offset % NiovSize::MAX.bytes() + CHUNK <= NiovSize::MAX.bytes());
            offset = next(offset, CHUNK, 6 << 20);
        }
    }
}
