//! The client: sends the lines of standard input from device memory.

use std::io::{self, BufRead, Read};
use std::net::TcpStream;
use std::ops::Range;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::Context;
use devmem_linux::dmabuf::{CpuAccess, DmabufFd};
use devmem_linux::netdev::{BoundTx, Netdev};
use devmem_linux::socket::{self, ErrorQueue, SendIds};
use devmem_uapi::{MsgFlags, UIO_MAXIOV, ZerocopyId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{self, sockopt};

use super::flags::ClientPlan;
use super::memory;
use super::server::{refused_binding, tcp_socket};
use tool::output::{Failure, say};

/// A packet can have too many chunks that are smaller than this.
const THIN_BYTES: usize = 2048;
/// Maximum number of such chunks per send. A NIC gathers a packet from a limited number of pieces (a gVNIC from 10). The
/// kernel cannot copy device memory to reduce their number, so it drops a packet with more pieces at every attempt.
const THIN_PIECES_MAX: usize = 8;
/// Time limit for the completion of a send.
const COMPLETION_LIMIT: Duration = Duration::from_secs(30);

/// Connects, and sends until the end of the input.
///
/// # Errors
///
/// A refused step, or a connection that failed.
pub fn run(mut netdev: Netdev, plan: &ClientPlan) -> Result<(), Failure> {
    let memory = memory::make(None)?;
    let fd = tcp_socket(plan.to).context("create socket")?;
    socket::bind_to_device(fd.as_fd(), netdev.name()).context("bindtodevice")?;
    let bound = netdev.bind_tx(memory.as_fd());
    let bound = bound.map_err(|error| refused_binding(&error))?;
    say!("got tx dmabuf id={}", bound.id());
    if let Some(from) = plan.from {
        net::bind(&fd, &from).with_context(|| format!("bind to {from}"))?;
    }
    socket::enable_zerocopy(fd.as_fd()).context("set sock opt")?;
    let (ip, port) = (plan.to.ip(), plan.to.port());
    say!("Connect to {ip} {port} (via {})", netdev.name());
    net::connect(&fd, &plan.to).with_context(|| format!("connect to {}", plan.to))?;
    let mut sender = LineSender {
        stream: TcpStream::from(fd),
        bound: &bound,
        memory: &memory,
        chunk: plan.chunk.unwrap_or(memory.size()),
        ids: SendIds::new(),
    };
    sender.send_lines(&mut io::stdin().lock())?;
    say!("ncdevmem: tx ok");
    Ok(())
}

/// A connection with its memory.
struct LineSender<'a> {
    stream: TcpStream,
    bound: &'a BoundTx,
    memory: &'a DmabufFd,
    /// Bytes of one iovec.
    chunk: usize,
    ids: SendIds,
}

impl LineSender<'_> {
    fn send_lines(&mut self, input: &mut impl BufRead) -> Result<(), Failure> {
        let most = self.memory.size();
        let mut line = Vec::new();
        loop {
            line.clear();
            let mut limited = input.by_ref().take(most as u64);
            let read = limited.read_until(b'\n', &mut line);
            if read.context("read stdin")? == 0 {
                return Ok(());
            }
            let access = self.memory.cpu_view(CpuAccess::Write)?;
            access.copy_in(0, &line)?;
            access.end()?;
            self.send(line.len())?;
        }
    }

    /// Sends the first `len` bytes of the memory and waits until the send is complete.
    fn send(&mut self, len: usize) -> Result<(), Failure> {
        let mut sent = 0;
        while sent < len {
            let ranges = ranges(sent, len, self.chunk);
            let source = self.bound.source();
            let fd = self.stream.as_fd();
            let bytes = socket::send_dmabuf(fd, source, &ranges, MsgFlags::empty())
                .context("Failed sendmsg")?;
            say!("sendmsg_ret={bytes}");
            let Some(id) = self.ids.count(bytes) else {
                return Err(Failure::failed(format!(
                    "Did not send all bytes {sent} vs {len}"
                )));
            };
            sent += bytes;
            self.wait_for(id)?;
        }
        Ok(())
    }

    /// Waits until a send is complete. It is the only one in flight.
    fn wait_for(&self, id: ZerocopyId) -> Result<(), Failure> {
        let end = Instant::now() + COMPLETION_LIMIT;
        let mut queue = ErrorQueue::default();
        loop {
            queue.drain(self.stream.as_fd())?;
            for range in queue.completions.drain(..) {
                say!("tx complete [{},{}]", range.lo.0, range.hi.0);
                if range.contains(id) {
                    return Ok(());
                }
            }
            if let Ok(Err(errno)) = sockopt::socket_error(&self.stream) {
                return Err(Failure::failed(format!("the connection failed: {errno}")));
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Failure::failed("did not receive tx completion"));
            }
            self.poll(left)?;
        }
    }

    /// Waits for an entry of the error queue, or an event of the connection.
    fn poll(&self, limit: Duration) -> Result<(), Failure> {
        let limit = Timespec::try_from(limit).context("a time limit")?;
        // POLLERR is always reported.
        let mut fds = [PollFd::new(&self.stream, PollFlags::empty())];
        match poll(&mut fds, Some(&limit)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno).context("poll")?,
        }
    }
}

/// Splits the bytes from `sent` to `len` into chunks. The chunk boundaries do not depend on `sent`.
fn ranges(sent: usize, len: usize, chunk: usize) -> Vec<Range<u64>> {
    let most = if chunk < THIN_BYTES {
        THIN_PIECES_MAX
    } else {
        UIO_MAXIOV
    };
    let mut ranges = Vec::new();
    let mut start = sent;
    while start < len && ranges.len() < most {
        let border = (start / chunk).saturating_add(1).saturating_mul(chunk);
        let end = border.min(len);
        ranges.push(start as u64..end as u64);
        start = end;
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_and_the_rest_of_it_have_the_same_chunk_boundaries() {
        assert_eq!(ranges(0, 6, 3), [0..3, 3..6]);
        assert_eq!(ranges(0, 7, 3), [0..3, 3..6, 6..7]);
        assert_eq!(ranges(4, 7, 3), [4..6, 6..7]);
        let whole = std::slice::from_ref(&(0..7));
        assert_eq!(ranges(0, 7, 4096), whole);
        assert_eq!(ranges(0, 7, usize::MAX), whole);
    }

    #[test]
    fn the_number_of_pieces_of_a_send_is_limited() {
        let many = ranges(0, 4 << 20, 2048);
        assert_eq!(many.len(), UIO_MAXIOV);
        let thin = ranges(0, 5000, 3);
        assert_eq!(
            (thin.len(), thin.last()),
            (THIN_PIECES_MAX, Some(&(21..24)))
        );
        assert_eq!(ranges(24, 5000, 3).first(), Some(&(24..27)));
    }
}
