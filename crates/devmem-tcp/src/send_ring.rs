//! A ring of chunks in bound memory: fill, send, reuse when complete.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;

use devmem_uapi::Errno;
use netmem::{CopyError, Dmabuf};

use crate::bound_tx::BoundTx;
use crate::completions::Completions;
use crate::error::{Error, ErrorKind};
use crate::send_half::SendHalf;
use crate::send_id::SendId;

/// Sends a stream of chunks from a region of bound device memory. A chunk is reused only when its send is complete, so the
/// program never changes bytes that TCP may still need.
///
/// [`next_slot`](Self::next_slot) waits for a free chunk, [`RingSlot::send`] sends what the program has put into it. The waits
/// obey the timeout or non-blocking mode of the sending half. As [`io::Write`], the ring copies host bytes into its chunks.
///
/// ```
/// use devmem_tcp::{Dmabuf, Netdev, SendRing};
/// # use std::io::Read;
///
/// # let (a, b) = Netdev::pair("seed=1".parse()?)?;
/// # let listener = b.listen("10.77.0.2:5201")?;
/// let memory = Dmabuf::anonymous(64 << 10)?;
/// let tx = a.bind_tx(&memory)?;
/// let mut stream = a.connect("10.77.0.2:5201")?;
/// # let (mut peer, _) = listener.accept()?;
/// # let received = std::thread::spawn(move || { let mut bytes = Vec::new(); peer.read_to_end(&mut bytes).map(|_| bytes) });
/// let (_, sending) = stream.split();
/// let mut ring = SendRing::new(sending, &tx, 0..memory.size(), 16 << 10)?;
/// for round in 0..100 {
///     let slot = ring.next_slot()?;                             // waits until a chunk is free
///     memory.fill(slot.range(), round)?;                        // on a real device: a kernel that writes there
///     slot.send(16 << 10)?;
/// }
/// ring.finish()?;                                               // all sends are complete: the memory is free
/// stream.shutdown_write()?;
/// # let bytes = received.join().expect("the peer received")?;
/// # assert!(bytes.len() == 1_638_400 && bytes.chunks(16 << 10).zip(0..).all(|(chunk, round)| chunk.iter().all(|b| *b == round)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SendRing<'a> {
    sending: &'a mut SendHalf,
    completions: Completions,
    tx: &'a BoundTx,
    region: Range<usize>,
    chunk: usize,
    /// Index of the next chunk to fill.
    next: usize,
    /// The last send of each chunk in flight, oldest first.
    in_flight: VecDeque<SendId>,
    /// Bytes of the last chunk that are not queued yet, because the send queue was full.
    unsent: Range<usize>,
    /// Bytes queued so far.
    sent_bytes: u64,
}

impl<'a> SendRing<'a> {
    /// Creates a ring in `region` of the bound memory, with chunks of `chunk` bytes.
    ///
    /// # Errors
    /// The region is outside the memory, or has no room for one chunk.
    pub fn new(
        sending: &'a mut SendHalf,
        tx: &'a BoundTx,
        region: Range<usize>,
        chunk: usize,
    ) -> Result<Self, Error> {
        let size = tx.memory().size();
        if region.end > size || chunk == 0 || region.len() < chunk {
            let (start, end) = (region.start, region.end);
            let reason = format!(
                "a ring of chunks of {chunk} bytes does not fit into bytes {start} to {end} of {size}"
            );
            let refusal = Error::new(ErrorKind::InvalidInput, Errno::EINVAL, reason)
                .with_remedy("give a region inside the memory with room for one chunk or more");
            return Err(refusal);
        }
        let completions = sending.completions();
        Ok(Self {
            sending,
            completions,
            tx,
            region,
            chunk,
            next: 0,
            in_flight: VecDeque::new(),
            unsent: 0..0,
            sent_bytes: 0,
        })
    }

    /// Returns the number of chunks.
    pub fn chunks(&self) -> usize {
        self.region.len() / self.chunk
    }

    /// Returns the number of chunks that are not free: their sends are not complete.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Returns how many bytes were queued so far. What is left of the last chunk does not count.
    pub fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    /// Returns the sending half, for its addresses and statistics.
    pub fn sender(&self) -> &SendHalf {
        self.sending
    }

    /// Returns the sending half, for its settings, and to end the stream after [`flush`](io::Write::flush).
    pub fn sender_mut(&mut self) -> &mut SendHalf {
        self.sending
    }

    /// Waits until the next chunk is free. The bytes of the slot may be changed until it is sent.
    ///
    /// # Errors
    /// `WouldBlock` or `TimedOut` if no chunk is free within the limit of the sending half; the connection has ended.
    pub fn next_slot(&mut self) -> Result<RingSlot<'_, 'a>, Error> {
        self.send_rest()?;
        while self.in_flight.len() >= self.chunks() {
            let Some(oldest) = self.in_flight.front() else {
                break;
            };
            self.completions.wait(*oldest)?;
            self.in_flight.pop_front();
        }
        Ok(RingSlot { ring: self })
    }

    /// Sends what is left of the last chunk, and waits until all sends are complete: then all chunks are free.
    ///
    /// # Errors
    /// As [`next_slot`](Self::next_slot). The chunks in flight must not be changed then; a call after `WouldBlock` or
    /// `TimedOut` goes on.
    pub fn finish(&mut self) -> Result<(), Error> {
        self.send_rest()?;
        self.completions.wait_all()?;
        self.in_flight.clear();
        Ok(())
    }

    /// Queues the bytes of the last chunk that are not queued yet.
    fn send_rest(&mut self) -> Result<(), Error> {
        while !self.unsent.is_empty() {
            let ranges = std::slice::from_ref(&self.unsent);
            let id = self.sending.send(self.tx, ranges)?;
            self.unsent.start += id.bytes();
            self.sent_bytes += id.bytes() as u64;
            if self.unsent.is_empty() {
                self.in_flight.push_back(id);
                self.next = (self.next + 1) % self.chunks();
            }
        }
        Ok(())
    }
}

/// A free chunk of a [`SendRing`]. Dropping it without sending leaves the chunk free.
#[derive(Debug)]
pub struct RingSlot<'r, 'a> {
    ring: &'r mut SendRing<'a>,
}

impl RingSlot<'_, '_> {
    /// Returns the range of the chunk in the bound memory.
    pub fn range(&self) -> Range<usize> {
        let start = self.ring.region.start + self.ring.next * self.ring.chunk;
        start..start + self.ring.chunk
    }

    /// Returns the bound memory.
    pub fn memory(&self) -> &Dmabuf {
        self.ring.tx.memory()
    }

    /// Copies host bytes to the beginning of the chunk: as many as fit. Returns their number.
    ///
    /// # Errors
    /// The exporter of the memory cannot synchronise it for the CPU.
    pub fn copy_in(&mut self, bytes: &[u8]) -> Result<usize, CopyError> {
        let len = bytes.len().min(self.ring.chunk);
        let start = self.range().start;
        self.memory().copy_in(start, &bytes[..len])?;
        Ok(len)
    }

    /// Sends the first `len` bytes of the chunk. If the send queue has no room within the limit of the sending half, the next
    /// call of [`SendRing::next_slot`] or [`SendRing::finish`] queues the rest.
    ///
    /// # Errors
    /// `len` exceeds the chunk; the connection has ended.
    pub fn send(self, len: usize) -> Result<(), Error> {
        let range = self.range();
        if len > range.len() {
            let reason = format!(
                "{len} bytes are more than the chunk of {} bytes",
                range.len()
            );
            let refusal = Error::new(ErrorKind::InvalidInput, Errno::EINVAL, reason);
            return Err(refusal.with_remedy("send at most one chunk"));
        }
        self.ring.unsent = range.start..range.start + len;
        match self.ring.send_rest() {
            Err(error) if error.kind().is_not_ready() => Ok(()),
            result => result,
        }
    }
}

impl io::Write for SendRing<'_> {
    /// Copies bytes into the next chunk and sends them.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut slot = self.next_slot()?;
        let len = slot.copy_in(bytes).map_err(io::Error::other)?;
        slot.send(len)?;
        Ok(len)
    }

    /// Queues and flushes what is left of the last chunk; does not wait until it is acknowledged.
    fn flush(&mut self) -> io::Result<()> {
        self.send_rest()?;
        self.sending.flush()
    }
}
