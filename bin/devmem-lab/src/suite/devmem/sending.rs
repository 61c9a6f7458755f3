//! Sends a stream from device memory with the guest's kernel.

use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use devmem_linux::dmabuf::{CpuAccess, DmabufFd};
use devmem_linux::netdev::{BoundTx, Netdev};
use devmem_linux::socket::{ErrorQueue, SendIds, TxSource, enable_zerocopy, send_dmabuf};
use devmem_uapi::MsgFlags;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::bound::unless_unsupported;
use crate::suite::nic::nic;
use crate::suite::traffic::{self, Direction, Family, Network, Rate, STUCK, pair};
use pattern::PositionPattern;

/// Bytes of one zero-copy send, and number of sends that fit the ring.
const SEND_BYTES: usize = 256 << 10;
const SEND_SLOTS: usize = 64;

/// Sends one stream from device memory to a kernel socket of the peer, which checks it. Returns its rate and the number of
/// sends that the kernel copied.
///
/// # Errors
///
/// A byte is wrong, a send is not completed, or the stream is stuck.
pub fn tx(network: &Network, family: Family, bytes: u64) -> anyhow::Result<(Rate, u64)> {
    let memory = DmabufFd::udmabuf(SEND_BYTES * SEND_SLOTS)?;
    let bound = bind(&memory)?;
    let listener = network.listen(Direction::Out, family)?;
    let (sender, mut receiver) = pair(network, Direction::Out, &listener)?;
    enable_zerocopy(sender.as_fd())?;
    let start = Instant::now();
    thread::scope(|scope| {
        let receiving = scope.spawn(move || -> anyhow::Result<Duration> {
            traffic::check_to_end(&mut receiver, bytes)?;
            Ok(start.elapsed())
        });
        let pattern = PositionPattern::new(0);
        let sent = DmabufSender::new(&sender, &memory, bound.source())
            .send(bytes, &|position, out| pattern.fill(position, out));
        if sent.is_err() {
            let _ = sender.shutdown(Shutdown::Both);
        }
        let received = traffic::join(receiving);
        let copied = sent?;
        Ok((
            Rate {
                bytes,
                elapsed: received?,
            },
            copied,
        ))
    })
}

/// Sends `bytes` bytes of device memory on a connection. Returns the number of sends that the kernel copied.
///
/// # Errors
///
/// A send is refused or not completed.
pub fn send_to(
    stream: &TcpStream,
    bytes: u64,
    fill: &dyn Fn(u64, &mut [u8]),
) -> anyhow::Result<u64> {
    let memory = DmabufFd::udmabuf(SEND_BYTES * SEND_SLOTS)?;
    let bound = bind(&memory)?;
    enable_zerocopy(stream.as_fd())?;
    DmabufSender::new(stream, &memory, bound.source()).send(bytes, fill)
}

/// Skips the row if the kernel cannot bind memory for sending.
///
/// # Errors
///
/// The kernel refused.
pub fn require_tx() -> anyhow::Result<()> {
    bind(&DmabufFd::udmabuf(SEND_BYTES)?).map(drop)
}

fn bind(memory: &DmabufFd) -> anyhow::Result<BoundTx> {
    let bound = Netdev::by_name(nic())?.bind_tx(memory.as_fd());
    bound.map_err(unless_unsupported)
}

struct DmabufSender<'a> {
    stream: &'a TcpStream,
    memory: &'a DmabufFd,
    source: TxSource<'a>,
    ids: SendIds,
    errors: ErrorQueue,
    /// Number of sends made, and of sends completed.
    made: u64,
    completed: u64,
    copied: u64,
}

impl<'a> DmabufSender<'a> {
    fn new(stream: &'a TcpStream, memory: &'a DmabufFd, source: TxSource<'a>) -> Self {
        Self {
            stream,
            memory,
            source,
            ids: SendIds::new(),
            errors: ErrorQueue::default(),
            made: 0,
            completed: 0,
            copied: 0,
        }
    }

    fn send(mut self, bytes: u64, fill: &dyn Fn(u64, &mut [u8])) -> anyhow::Result<u64> {
        let mut chunk = vec![0; SEND_BYTES];
        let mut position = 0;
        let mut round = 0usize;
        while position < bytes {
            let count = usize::try_from(bytes - position)
                .unwrap_or(usize::MAX)
                .min(SEND_BYTES);
            // A slot may be reused when its sends are complete; for simplicity this waits for all sends, once per round.
            if round > 0 && round.is_multiple_of(SEND_SLOTS) {
                self.wait_for_all()?;
            }
            let offset = (round % SEND_SLOTS) * SEND_BYTES;
            fill(position, &mut chunk[..count]);
            let access = self.memory.cpu_view(CpuAccess::Write)?;
            access.copy_in(offset, &chunk[..count])?;
            access.end()?;
            let mut range = offset as u64..(offset + count) as u64;
            while range.start < range.end {
                let sent = send_dmabuf(
                    self.stream.as_fd(),
                    self.source,
                    std::slice::from_ref(&range),
                    MsgFlags::empty(),
                )
                .with_context(|| format!("send after {position} bytes"))?;
                self.made += u64::from(self.ids.count(sent).is_some());
                range.start += sent as u64;
                self.collect()?;
            }
            position += count as u64;
            round += 1;
        }
        self.stream.shutdown(Shutdown::Write)?;
        self.wait_for_all()?;
        Ok(self.copied)
    }

    fn collect(&mut self) -> anyhow::Result<()> {
        self.errors.drain(self.stream.as_fd())?;
        for range in self.errors.completions.drain(..) {
            let sends = u64::from(range.hi.0.wrapping_sub(range.lo.0)) + 1;
            self.completed += sends;
            self.copied += if range.copied { sends } else { 0 };
        }
        Ok(())
    }

    fn wait_for_all(&mut self) -> anyhow::Result<()> {
        let limit = Timespec::try_from(STUCK)?;
        loop {
            self.collect()?;
            if self.completed >= self.made {
                ensure!(
                    self.completed == self.made,
                    "{} completions of {} sends",
                    self.completed,
                    self.made
                );
                return Ok(());
            }
            // POLLERR is always reported.
            let mut fds = [PollFd::new(self.stream, PollFlags::empty())];
            ensure!(
                poll(&mut fds, Some(&limit))? > 0,
                "{} of {} sends completed",
                self.completed,
                self.made
            );
        }
    }
}
