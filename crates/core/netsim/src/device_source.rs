//! A program that sends from device memory and writes over every byte as soon as it may.

use std::collections::VecDeque;
use std::net::Shutdown;
use std::ops::Range;

use devmem_uapi::{CmsgWriter, DmabufId, Errno, MsgFlags, ZerocopyId, ZerocopyRange, cmsg_space};
use netmem::{CopyError, Dmabuf};
use stack::{SendMsg, SocketOption};

use crate::door::Door;
use crate::pair::Progress;
use crate::pattern::Pattern;

/// What the program writes over memory that was sent.
const SCRIBBLE: u8 = 0xa5;

/// Device memory as a [`DeviceSource`] writes to it, the way its owner does.
pub type DeviceWriter = Box<dyn Fn(usize, &[u8])>;

/// Sends a pattern from device memory, used as a ring, in chunks that the ring's end cuts in two. Every chunk is
/// written over in the moment its send completes, so that a completion that comes too early is a wrong byte at the
/// receiver.
pub struct DeviceSource<D: Door> {
    id: D::Socket,
    dmabuf: DmabufId,
    pattern: Pattern,
    write: DeviceWriter,
    ring: usize,
    chunk: usize,
    total: u64,
    /// Bytes written to the ring, taken by the socket, free to be written again.
    written: u64,
    sent: u64,
    freed: u64,
    /// Stream offset behind each send that is not complete, by its id.
    under_way: VecDeque<(ZerocopyId, u64)>,
    next: ZerocopyId,
    control: Vec<u8>,
    completions: u64,
    shutdown: bool,
}

impl<D: Door> std::fmt::Debug for DeviceSource<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            id,
            sent,
            freed,
            total,
            ..
        } = self;
        write!(
            f,
            "DeviceSource({id}: {sent} sent and {freed} complete of {total})"
        )
    }
}

impl<D: Door> DeviceSource<D> {
    /// Returns a program that sends `total` bytes from the first `ring` bytes of `dmabuf`, bound as `id`, in sends of
    /// `chunk` bytes.
    ///
    /// # Panics
    /// If the socket is not open.
    pub fn new(
        door: &mut D,
        id: D::Socket,
        dmabuf: (DmabufId, &Dmabuf),
        pattern: Pattern,
        total: u64,
    ) -> Self {
        let (name, memory) = dmabuf;
        let size = memory.size();
        let memory = memory.clone();
        let write = move |offset: usize, bytes: &[u8]| {
            let written: Result<(), CopyError> = memory.copy_in(offset, bytes);
            written.expect("the ring lies inside");
        };
        Self::with_writer(door, id, (name, size), Box::new(write), (pattern, total))
    }

    /// As [`DeviceSource::new`], with memory that is written by `write`.
    ///
    /// # Panics
    /// If the socket is not open.
    pub fn with_writer(
        door: &mut D,
        id: D::Socket,
        (dmabuf, ring): (DmabufId, usize),
        write: DeviceWriter,
        (pattern, total): (Pattern, u64),
    ) -> Self {
        door.set_option(id, SocketOption::Zerocopy(true))
            .expect("it is open");
        let mut control = vec![0; cmsg_space(size_of::<u32>())];
        CmsgWriter::new(&mut control)
            .push_tx_dmabuf(dmabuf)
            .expect("there is room");
        Self {
            id,
            dmabuf,
            pattern,
            write,
            ring,
            chunk: 64 << 10,
            total,
            written: 0,
            sent: 0,
            freed: 0,
            under_way: VecDeque::new(),
            next: ZerocopyId(0),
            control,
            completions: 0,
            shutdown: true,
        }
    }

    /// Sets the bytes of each send.
    #[must_use]
    pub fn in_chunks_of(mut self, chunk: usize) -> Self {
        self.chunk = chunk.clamp(1, self.ring);
        self
    }

    /// Leaves the stream open at its end.
    #[must_use]
    pub fn without_shutdown(mut self) -> Self {
        self.shutdown = false;
        self
    }

    /// Returns the socket.
    pub fn id(&self) -> D::Socket {
        self.id
    }

    /// Returns the id of its memory.
    pub fn dmabuf(&self) -> DmabufId {
        self.dmabuf
    }

    /// Returns how many bytes the socket took.
    pub fn sent(&self) -> u64 {
        self.sent
    }

    /// Returns how many bytes are complete.
    pub fn freed(&self) -> u64 {
        self.freed
    }

    /// Returns how many entries of the error queue it read, and of how many sends.
    pub fn completions(&self) -> (u64, u32) {
        (self.completions, self.next.0)
    }

    /// Sends what the ring and the socket take, and reads the error queue; done when all of it is complete.
    ///
    /// # Panics
    /// If the socket refuses for any reason but want of room, or completions are not in order.
    pub fn run(&mut self, door: &mut D) -> Progress {
        let before = (self.sent, self.freed);
        self.collect(door);
        while self.sent < self.total {
            self.fill();
            match self.send_once(door) {
                Ok(0) | Err(Errno::EAGAIN | Errno::ENOBUFS) => break,
                Ok(_) => {}
                Err(error) => panic!("sending byte {}: {error}", self.sent),
            }
        }
        if self.sent == self.total && self.shutdown {
            door.shutdown(self.id, Shutdown::Write)
                .expect("it is connected");
            self.shutdown = false;
        }
        if self.freed == self.total {
            return Progress::Done;
        }
        if before == (self.sent, self.freed) {
            Progress::Waiting
        } else {
            Progress::Worked
        }
    }

    /// Writes the pattern wherever the ring is free.
    fn fill(&mut self) {
        let end = self
            .total
            .min(self.freed + self.ring as u64)
            .min(self.sent + self.chunk as u64);
        while self.written < end {
            let at = self.at(self.written);
            let len = (self.ring - at).min((end - self.written) as usize);
            let mut bytes = vec![0; len];
            self.pattern.fill(self.written, &mut bytes);
            (self.write)(at, &bytes);
            self.written += len as u64;
        }
    }

    /// Sends the next chunk; returns how much of it the socket took.
    ///
    /// # Errors
    /// What the socket says.
    pub fn send_once(&mut self, door: &mut D) -> Result<usize, Errno> {
        self.fill();
        let len = (self.written - self.sent).min(self.chunk as u64) as usize;
        if len == 0 {
            return Ok(0);
        }
        let ranges = self.ranges(self.sent, len);
        let taken = door.sendmsg(
            self.id,
            &SendMsg::device(&ranges, &self.control),
            MsgFlags::ZEROCOPY,
        )?;
        if taken > 0 {
            self.sent += taken as u64;
            self.under_way.push_back((self.next, self.sent));
            self.next = self.next.next();
        }
        Ok(taken)
    }

    /// Returns the ranges of the ring that stand for a stretch of the stream.
    fn ranges(&self, position: u64, len: usize) -> Vec<Range<usize>> {
        let at = self.at(position);
        let first = len.min(self.ring - at);
        [at..at + first, 0..len - first]
            .into_iter()
            .filter(|range| !range.is_empty())
            .collect()
    }

    fn at(&self, position: u64) -> usize {
        (position % self.ring as u64) as usize
    }

    /// Reads the error queue until it is empty and writes over what is complete.
    ///
    /// # Panics
    /// If an entry is not the next range of sends.
    pub fn collect(&mut self, door: &mut D) {
        loop {
            let range = match door.completion(self.id) {
                Ok(range) => range,
                Err(Errno::EAGAIN) => return,
                Err(errno) => panic!("reading the error queue: {errno}"),
            };
            assert!(!range.copied, "device memory is never copied");
            self.completions += 1;
            self.complete(range);
        }
    }

    fn complete(&mut self, range: ZerocopyRange) {
        for _ in 0..range.count() {
            let (id, end) = self
                .under_way
                .pop_front()
                .expect("only what was sent completes");
            assert!(range.contains(id), "{range:?} completes before {id}");
            let ranges = self.ranges(self.freed, (end - self.freed) as usize);
            for range in ranges {
                (self.write)(range.start, &vec![SCRIBBLE; range.len()]);
            }
            self.freed = end;
        }
    }
}
